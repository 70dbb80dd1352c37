"""Queries that workers answer."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_broker.core.events import PeerDisconnected, Side, StopRequested
from trunkline_protocol import frames
from trunkline_protocol.codec import pack_body, unpack_body
from trunkline_protocol.ids import ClientId, LeaseId

from tests.support.broker_rig import Rig, RigClient, RigWorker, a_pool, only, status_of

LEASE = LeaseId(b"L" * 16)


def a_rig(**spec: Any) -> tuple[Rig, RigClient, RigWorker]:
    rig = Rig(**spec)
    worker = rig.a_worker()
    return rig, rig.a_client(), worker


def test_a_query_passes_to_the_worker_of_its_route_and_back() -> None:
    """With one reply, whatever is repeated."""
    rig, client, worker = a_rig()
    query = client.query("listModels", provider="p")
    assert worker.got(frames.Query) == [query]
    client.say(query)
    assert worker.got(frames.Query) == []
    reply = frames.Reply(query.query, body=pack_body([1]))
    worker.say(reply)
    assert client.answer() == [1]
    worker.say(reply)
    assert rig.count("reply_unknown") == 1
    assert next(iter(rig.hub.clients)).queries == set()


def test_a_repeated_query_reaches_a_worker_that_has_connected_anew() -> None:
    """Once per connection, with its argument: it may have been lost with the one before."""
    rig, client, worker = a_rig()
    query = client.query("prepareCall", {"model": "m"}, provider="p")
    assert [asked.body for asked in worker.got(frames.Query)] == [query.body]
    worker.reconnect()
    assert worker.got(frames.Query) == []
    rig.a_client().say(query)
    assert worker.got(frames.Query) == []
    client.say(query)
    assert [asked.body for asked in worker.got(frames.Query)] == [query.body]
    client.say(query)
    assert worker.got(frames.Query) == []
    rig.tell(PeerDisconnected(Side.WORKER, worker.peer))
    client.say(query)
    assert worker.got(frames.Query) == []
    worker.reconnect()
    client.say(query)
    assert len(worker.got(frames.Query)) == 1
    worker.say(frames.Reply(query.query, body=pack_body({"lease": LEASE, "leaseMs": 5000})))
    assert client.answer()["lease"] == LEASE


def test_no_route_no_answer() -> None:
    """The failure is that of a call."""
    _, client, _ = a_rig()
    client.query("resolveModelInfo", {}, provider="nobody")
    assert client.answer()["code"] == "NO_ADAPTER"


def test_a_query_waits_for_a_worker_that_starts() -> None:
    """And is answered when it can't come any more."""
    rig = Rig(a_pool(start_timeout_s=100.0))
    client = rig.a_client()
    query = client.query("listModels", provider="p", timeout_ms=50_000)
    worker = rig.a_worker()
    assert worker.got(frames.Query) == [query]
    worker.exit()
    assert client.answer()["code"] == "TRANSPORT"
    client.query("listModels", provider="p", timeout_ms=50_000)
    assert client.got(frames.Reply) == []
    client.query("drain", {"pool": "p"})
    replies = {reply.failure["code"] for reply in client.got(frames.Reply) if reply.failure}
    assert replies == {"NO_ADAPTER"}


def test_a_query_times_out_and_is_cancelled_at_the_worker() -> None:
    """By its own timeout, or the broker's."""
    rig, client, worker = a_rig()
    query = client.query("listModels", provider="p", timeout_ms=1500)
    rig.live(2.0, worker)
    assert client.answer()["code"] == "TIMEOUT"
    assert only(worker.got(frames.QueryCancel)).query == query.query
    client.query("listModels", provider="p")
    rig.live(31.0, worker)
    assert client.answer()["code"] == "TIMEOUT"


def test_a_query_that_waits_times_out_too() -> None:
    """Nobody has to be told but the asker."""
    rig = Rig()
    client = rig.a_client()
    client.query("listModels", provider="p", timeout_ms=1000)
    rig.wait(1.0)
    assert client.answer()["code"] == "TIMEOUT"
    rig.a_worker()
    assert client.got(frames.Reply) == []


def test_a_query_is_cancelled_by_its_asker_only() -> None:
    """Also by the asker's death."""
    rig, client, worker = a_rig()
    query = client.query("listModels", provider="p")
    other = rig.a_client()
    other.say(frames.QueryCancel(query.query))
    assert worker.got(frames.QueryCancel) == []
    client.say(frames.QueryCancel(query.query))
    assert worker.got(frames.QueryCancel)
    client.say(frames.QueryCancel(query.query))
    assert worker.got(frames.QueryCancel) == []
    client.query("listModels", provider="p")
    client.die()
    assert worker.got(frames.QueryCancel)


def test_queries_are_bounded_and_refused_while_draining() -> None:
    """Only the query that passes the bound."""
    rig, client, _ = a_rig(max_queries_per_client=1)
    client.query("listModels", provider="p")
    client.query("listModels", provider="p")
    assert client.answer()["code"] == "OVERLOADED"
    client.open()
    rig.tell(StopRequested(drain_s=5.0))
    client.query("listModels", provider="p")
    assert client.answer()["code"] == "STOPPING"


def test_the_replica_that_was_asked_the_least_answers() -> None:
    """Queries do not pile up on one."""
    rig = Rig(a_pool(replicas=2))
    one, two = (rig.a_worker(spawn=spawn) for spawn in rig.spawned())
    client = rig.a_client()
    client.query("listModels", provider="p")
    assert one.got(frames.Query)
    client.query("listModels", provider="p")
    assert two.got(frames.Query)


def test_discovery_goes_to_the_worker_of_the_namespace() -> None:
    """Not to a route."""
    rig = Rig()
    worker = rig.a_worker(discovery=("ns",))
    client = rig.a_client()
    query = client.query("discoverModels", {"settingsNs": "ns", "request": {}})
    assert worker.got(frames.Query) == [query]
    for argument in ({"settingsNs": "no"}, {"settingsNs": 5}, [1]):
        client.query("discoverModels", argument)
        assert client.answer()["code"] == "NO_DISCOVERY"


def test_a_lease_is_noted_and_released() -> None:
    """By the worker that holds it."""
    rig, client, worker = a_rig()
    query = client.query("prepareCall", {}, provider="p")
    worker.say(frames.Reply(query.query, body=pack_body({"lease": LEASE, "leaseMs": 5000})))
    assert rig.hub.leases == {LEASE: worker.generation}
    release = client.query("releaseCall", {"lease": LEASE})
    assert worker.got(frames.Query) == [release]
    worker.say(frames.Reply(release.query, {"message": "", "code": "BUSY"}))
    assert rig.hub.leases
    release = client.query("releaseCall", {"lease": LEASE})
    worker.say(frames.Reply(release.query))
    assert rig.hub.leases == {}
    client.query("releaseCall", {"lease": LEASE})
    assert client.answer()["code"] == "INVALID_PREPARED_CALL"
    client.query("releaseCall", {"lease": b"short"})
    assert client.answer()["code"] == "INVALID_PREPARED_CALL"


def test_a_renewed_lease_is_held_longer() -> None:
    """As long as its worker says; a refusal changes nothing."""
    rig, client, worker = a_rig()
    query = client.query("prepareCall", {}, provider="p")
    worker.say(frames.Reply(query.query, body=pack_body({"lease": LEASE, "leaseMs": 5000})))
    rig.live(4, worker)
    renew = client.query("renewCall", {"lease": LEASE})
    assert worker.got(frames.Query) == [renew]
    worker.say(frames.Reply(renew.query, body=pack_body({"lease": LEASE, "leaseMs": 5000})))
    rig.live(4, worker)
    assert rig.hub.leases
    renew = client.query("renewCall", {"lease": LEASE})
    worker.say(frames.Reply(renew.query, {"message": "", "code": "INVALID_PREPARED_CALL"}))
    rig.live(2, worker)
    assert rig.hub.leases == {}


def test_leases_of_a_dead_worker_are_gone() -> None:
    """A prepared call is bound to one process."""
    rig, client, worker = a_rig()
    query = client.query("prepareCall", {}, provider="p")
    worker.say(frames.Reply(query.query, body=pack_body({"lease": LEASE, "leaseMs": 5000})))
    worker.exit()
    assert rig.hub.leases == {}
    client.open(lease=LEASE)
    assert client.failure()["code"] == "INVALID_PREPARED_CALL"


@pytest.mark.parametrize(
    "body", [b"\xc1", b"", pack_body({"lease": LEASE}), pack_body({"leaseMs": 1})]
)
def test_an_unreadable_lease_is_counted(body: bytes) -> None:
    """The answer passes all the same."""
    rig, client, worker = a_rig()
    query = client.query("prepareCall", {}, provider="p")
    worker.say(frames.Reply(query.query, body=body))
    assert client.got(frames.Reply)
    assert rig.count("lease_unreadable") == 1


def test_a_failed_preparation_has_no_lease() -> None:
    """Nothing is noted."""
    rig, client, worker = a_rig()
    query = client.query("prepareCall", {}, provider="p")
    worker.say(frames.Reply(query.query, {"message": "", "code": "X"}))
    assert client.answer()["code"] == "X"
    assert rig.count("lease_unreadable") == 0


def test_a_release_that_lost_its_lease_meanwhile() -> None:
    """It may have run out while the worker answered."""
    rig, client, worker = a_rig()
    query = client.query("prepareCall", {}, provider="p")
    worker.say(frames.Reply(query.query, body=pack_body({"lease": LEASE, "leaseMs": 1000})))
    release = client.query("releaseCall", {"lease": LEASE})
    rig.live(1.0, worker)
    worker.say(frames.Reply(release.query))
    assert client.got(frames.Reply)


def test_a_deadline_without_its_query_is_a_defect() -> None:
    """Closing a query clears it."""
    rig, client, _ = a_rig()
    with pytest.raises(AssertionError):
        rig.broker._questions.on_query_due(client.query("models").query)


def test_open_queries_are_counted() -> None:
    """For the status."""
    rig, client, _ = a_rig()
    client.query("listModels", provider="p")
    assert len(rig.broker._questions) == 1


def a_lease(client: RigClient, worker: RigWorker) -> None:
    """Have a worker grant a client one lease."""
    query = client.query("prepareCall", {}, provider="p")
    worker.say(frames.Reply(query.query, body=pack_body({"lease": LEASE, "leaseMs": 5000})))


def test_the_lease_of_a_dead_client_is_given_back_at_once() -> None:
    """Here and at its worker, whose answer is nobody's."""
    rig, client, worker = a_rig()
    a_lease(client, worker)
    client.die()
    assert rig.hub.leases == {}
    assert rig.hub.lease_clients == {}
    release = only(worker.got(frames.Query))
    assert (release.op, unpack_body(release.body)) == ("releaseCall", {"lease": LEASE})
    worker.say(frames.Reply(release.query))
    assert rig.count("reply_unknown") == 0
    assert all(not each.queries for each in rig.hub.workers)


def test_a_dead_client_s_lease_is_dropped_though_its_worker_is_away() -> None:
    """It says what it holds when it is back; the lease of an unknown client ends with that."""
    rig, client, worker = a_rig()
    a_lease(client, worker)
    rig.tell(PeerDisconnected(Side.WORKER, worker.peer))
    client.say(frames.Bye())
    assert rig.hub.leases == {}
    worker.reconnect(leases=(LEASE,), lease_holders=(frames.HeldLease(LEASE, client.id),))
    assert rig.hub.leases == {LEASE: worker.generation}
    rig.live(31.0, worker)
    assert rig.hub.leases == {}
    assert rig.hub.clients.get(client.id) is None


def test_a_worker_is_told_who_prepares_and_nobody_can_pretend() -> None:
    """Only there; what a client writes into the field counts for nothing."""
    _, client, worker = a_rig()
    liar = ClientId(b"l" * 16)
    client.query("prepareCall", {}, provider="p", client=liar)
    assert only(worker.got(frames.Query)).client == client.id
    client.query("listModels", provider="p", client=liar)
    assert only(worker.got(frames.Query)).client is None


def test_a_used_or_foreign_lease_is_no_dead_client_s() -> None:
    """Who renews it does not become its owner."""
    rig, client, worker = a_rig()
    a_lease(client, worker)
    other = rig.a_client()
    renew = other.query("renewCall", {"lease": LEASE})
    worker.say(frames.Reply(renew.query, body=pack_body({"lease": LEASE, "leaseMs": 5000})))
    other.die()
    assert rig.hub.leases
    client.open(lease=LEASE)
    assert rig.hub.lease_clients == {}
    client.die()
    assert worker.got(frames.Query) == []


def test_arguments_of_questions_that_wait_count_with_calls_that_wait() -> None:
    """All together have one bound; one that was put to its worker counts no more."""
    rig = Rig(a_pool(start_timeout_s=100.0), queue_bytes=100)
    client = rig.a_client()
    client.query("resolveModelInfo", "x" * 60, provider="p", timeout_ms=50_000)
    held = rig.hub.queued_bytes
    assert 60 < held < 70
    client.query("resolveModelInfo", "x" * 60, provider="p", timeout_ms=50_000)
    assert client.answer()["code"] == "OVERLOADED"
    client.open(body=bytes(60))
    assert client.failure()["code"] == "OVERLOADED"
    assert rig.hub.queued_bytes == held
    worker = rig.a_worker()
    assert rig.hub.queued_bytes == 0
    (asked,) = worker.got(frames.Query)
    assert len(asked.body) == held
    rig.check()


def test_a_withdrawn_question_gives_its_room_back() -> None:
    rig = Rig(a_pool(start_timeout_s=100.0))
    client = rig.a_client()
    query = client.query("resolveModelInfo", "x" * 60, provider="p", timeout_ms=50_000)
    assert rig.hub.queued_bytes
    client.say(frames.QueryCancel(query.query))
    assert rig.hub.queued_bytes == 0
    client.query("resolveModelInfo", "x" * 60, provider="p", timeout_ms=1000)
    rig.wait(1.0)
    assert client.answer()["code"] == "TIMEOUT"
    assert rig.hub.queued_bytes == 0


def test_a_worker_is_asked_no_more_than_it_may_be() -> None:
    """Whoever asks."""
    rig, client, worker = a_rig(max_queries_per_worker=2)
    for asker in (client, rig.a_client()):
        asker.query("listModels", provider="p")
        assert worker.got(frames.Query)
    client.query("listModels", provider="p")
    assert client.answer()["code"] == "OVERLOADED"
    (row,) = [row for row in status_of(rig)["queues"] if row["name"].endswith("queries")][-1:]
    assert (row["depth"], row["highWater"], row["bound"]) == (2, 2, 2)


def test_a_worker_that_reads_nothing_is_asked_nothing_more() -> None:
    """Large arguments lie in the broker's memory until it reads them, as requests do."""
    _, client, worker = a_rig(queue_bytes=1000)
    client.query("resolveModelInfo", {"x": bytes(1000)}, provider="p")
    assert worker.got(frames.Query)
    client.query("listModels", provider="p")
    assert worker.got(frames.Query) == []
    assert client.answer()["code"] == "OVERLOADED"
    worker.beat()
    client.query("listModels", provider="p")
    assert worker.got(frames.Query)


@pytest.mark.parametrize(
    "op", ["renewCall", "releaseCall", "discoverModels", "swap", "putAttachment"]
)
def test_a_large_argument_is_not_read(op: str) -> None:
    """Everybody would wait; what workers answer goes on unread, whatever its size."""
    _, client, worker = a_rig()
    client.query(op, {"lease": LEASE, "settingsNs": "ns", "x": bytes(300_000)})
    assert client.answer()["code"] in {
        "INVALID_PREPARED_CALL", "NO_DISCOVERY", "INVALID_REQUEST", "INVALID_ATTACHMENT"
    }  # fmt: skip
    client.query("resolveModelInfo", {"x": bytes(300_000)}, provider="p")
    assert len(only(worker.got(frames.Query)).body) > 300_000
