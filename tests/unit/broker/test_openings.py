"""How attempts begin: routes, admission, queues, prepared calls, retries."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_broker.core.events import (
    PeerDisconnected,
    Side,
    StopRequested,
)
from trunkline_protocol import frames
from trunkline_protocol.codec import pack_body
from trunkline_protocol.ids import LeaseId
from trunkline_protocol.limits import MAX_BODY_BYTES

from tests.support.broker_rig import (
    NORMAL,
    Rig,
    RigClient,
    RigWorker,
    a_pool,
    done,
    only,
    status_of,
)

LEASE = LeaseId(b"L" * 16)


def a_rig(**pool: Any) -> tuple[Rig, RigClient, RigWorker]:
    """Return a broker with one ready worker and one client."""
    rig = Rig(a_pool(**pool))
    worker = rig.a_worker(policy=NORMAL)
    return rig, rig.a_client(), worker


def test_an_open_starts_and_is_accepted() -> None:
    """The worker gets what it needs, the client what was captured."""
    rig, client, worker = a_rig()
    opened = client.open()
    start = only(worker.got(frames.Start))
    assert (start.call, start.attempt, start.client) == (opened.call, 0, client.id)
    assert (start.stream_key, start.provider, start.model) == (opened.stream_key, "p", "m")
    assert (start.window_chunks, start.window_bytes, start.body) == (1024, 1 << 20, b"body")
    accepted = only(client.got(frames.Accepted))
    assert (accepted.pool, accepted.slot, accepted.generation) == ("p", 0, worker.generation)
    assert (accepted.window_chunks, accepted.policy, accepted.token) == (1024, NORMAL, None)
    rig.check()


def test_an_open_again_is_answered_again_and_starts_nothing() -> None:
    """In every state of the call."""
    rig, client, worker = a_rig(concurrency=1)
    opened = client.open()
    waiting = client.open()
    assert only(client.got(frames.Queued)).reason == "concurrency"
    client.say(waiting)
    assert only(client.got(frames.Queued)).call == waiting.call
    client.say(opened)
    assert only(client.got(frames.Accepted)).call == opened.call
    assert worker.got(frames.Start) == []
    worker.end(opened)
    client.say(opened)
    assert client.got(frames.Accepted)
    assert only(client.got(frames.Ended)).call == opened.call
    assert worker.got(frames.Start) == []
    rig.check()


def test_frames_of_other_attempts_and_clients_change_nothing() -> None:
    """They are counted, and their senders need not wait for anything."""
    rig, client, worker = a_rig()
    opened = client.open(attempt=2)
    other = rig.a_client()
    other.say(opened)
    assert other.failure()["code"] == "ABORTED"
    for attempt in (1, 3):
        client.say(client.an_open(call=opened.call, attempt=attempt))
        assert only(client.got(frames.Failed)).attempt == attempt
        assert worker.got(frames.Start) == []
    assert (rig.count("foreign_call"), rig.count("stale_attempt")) == (1, 2)


@pytest.mark.parametrize("is_detachable", [False, True])
def test_a_client_that_seemed_gone_is_not_left_waiting(is_detachable: bool) -> None:
    """It never heard that its call began; meanwhile that was cancelled, or nobody is attached."""
    rig, client, worker = a_rig()
    opened = client.open(detachable=is_detachable)
    client.die()
    client.reconnect()
    client.say(opened)
    assert only(client.got(frames.Failed)).failure["code"] == "TRANSPORT"
    worker.end(opened, finish={"kind": "aborted"})
    rig.live(31.0, worker)  # the tail of a detached call is kept for a while
    assert len(rig.hub.calls) == 0
    client.say(opened)
    assert only(client.got(frames.Failed)).failure["code"] == "TRANSPORT"
    assert worker.got(frames.Start) == []
    rig.check()


def test_an_unknown_provider_fails() -> None:
    """And the failure is repeated for a repeated OPEN, without leaving a trace of the name."""
    rig, client, _ = a_rig()
    opened = client.open("nobody")
    failed = only(client.got(frames.Failed))
    assert failed.failure["code"] == "NO_ADAPTER"
    client.say(opened)
    assert client.got(frames.Failed) == [failed]
    client.say(client.an_open(call=opened.call, attempt=1))
    assert client.failure()["code"] == "NO_ADAPTER"
    other = rig.a_client()
    other.say(opened)
    assert other.failure()["code"] == "ABORTED"
    assert [route for route, _ in rig.hub.gates] == []


def test_a_call_that_was_seen_is_never_started_anew() -> None:
    """The client hears that nobody holds it."""
    rig, client, worker = a_rig()
    opened = client.open(seen=True)
    assert only(client.got(frames.Lost)).call == opened.call
    assert worker.got(frames.Start) == []
    assert len(rig.hub.calls) == 0


def test_bounds_on_open_calls() -> None:
    """Per client and in all; only the call that passes the bound is refused."""
    rig = Rig(max_calls_per_client=2, max_calls=3)
    rig.a_worker()
    client = rig.a_client()
    client.open()
    client.open()
    client.open()
    assert client.failure()["code"] == "OVERLOADED"
    other = rig.a_client()
    other.open()
    other.open()
    assert other.failure()["code"] == "OVERLOADED"
    rig.check()


def test_a_route_that_is_starting_lets_calls_wait() -> None:
    """They start when the worker is ready."""
    rig = Rig()
    client = rig.a_client()
    opened = client.open()
    assert only(client.got(frames.Queued)).reason == "starting"
    client.open("nobody")
    assert client.failure()["code"] == "NO_ADAPTER"
    worker = rig.a_worker()
    assert only(worker.got(frames.Start)).call == opened.call
    assert only(client.got(frames.Accepted)).call == opened.call
    rig.check()


def test_a_pool_without_configured_routes_may_register_any_until_it_was_ready() -> None:
    """Afterwards its routes are known."""
    rig = Rig(a_pool(providers=()))
    client = rig.a_client()
    client.open("x")
    assert client.got(frames.Queued)
    rig.a_worker("y")
    assert client.failure()["code"] == "NO_ADAPTER"
    client.open("x")
    assert client.failure()["code"] == "NO_ADAPTER"


def test_a_wait_for_a_worker_ends_in_time() -> None:
    """With a failure that says what was missing."""
    rig = Rig(a_pool(queue_timeout_s=5.0))
    client = rig.a_client()
    client.open()
    rig.wait(61.0)
    failure = client.failure()
    assert failure["code"] == "TRANSPORT"
    assert "ready" in failure["message"]
    rig.check()


def test_clients_take_turns_for_a_place() -> None:
    """A queue is fair over clients; its bound and its timeout say what was full."""
    rig, client, worker = a_rig(concurrency=1, queue_size=3, queue_timeout_s=5.0)
    other = rig.a_client()
    running = client.open()
    waiting = [client.open(), client.open(), other.open()]
    client.open()
    assert client.failure()["code"] == "OVERLOADED"
    assert "full" in client.failure()["message"]
    order: list[frames.Open] = []
    for _ in range(3):
        worker.end(running)
        running = next(f for f in waiting if f.call == only(worker.got(frames.Start)).call)
        order.append(running)
    assert order == [waiting[0], waiting[2], waiting[1]]
    other.open()
    rig.live(5.0, worker)
    assert other.failure()["code"] == "OVERLOADED"
    assert "1 attempts run" in other.failure()["message"]
    rig.check()


def test_a_new_call_does_not_overtake_those_that_wait() -> None:
    """Even if a place is free at that moment for it."""
    rig, client, worker = a_rig(concurrency=1)
    client.open()
    client.open()
    rig.hub.gates.at(client.an_open().provider).running = 0
    client.open()
    assert only(client.got(frames.Queued)).reason == "turn"
    assert worker.got(frames.Start) == []


def test_bodies_that_wait_are_bounded_in_bytes() -> None:
    """The bound holds over all queues, also while the broker settles."""
    rig = Rig(a_pool(concurrency=1), queue_bytes=6)
    rig.a_worker()
    client = rig.a_client()
    client.open()
    client.open()
    client.open()
    assert "bytes" in client.failure()["message"]
    assert rig.hub.queued_bytes == 4


def test_the_replica_with_the_fewest_attempts_is_chosen() -> None:
    """One whose connection is being re-made gets none; a full one gets none."""
    rig = Rig(a_pool(replicas=2), max_calls_per_worker=2)
    spawns = rig.spawned()
    one, two = (rig.a_worker(spawn=spawn) for spawn in spawns)
    client = rig.a_client()
    first = client.open()
    assert one.got(frames.Start)
    client.open()
    assert two.got(frames.Start)
    two_peer = two.peer

    rig.tell(PeerDisconnected(Side.WORKER, two_peer))
    client.open()
    assert one.got(frames.Start)
    waiting = client.open()
    assert only(client.got(frames.Queued)).reason == "workers"
    one.end(first)
    assert only(one.got(frames.Start)).call == waiting.call
    rig.check()


def test_a_place_on_a_full_worker_serves_its_other_routes() -> None:
    """Calls of another route that wait for the same worker are looked at too."""
    rig = Rig(a_pool(providers=("a", "b")), max_calls_per_worker=1)
    worker = rig.a_worker("a", "b")
    client = rig.a_client()
    first = client.open("a")
    second = client.open("b")
    assert only(client.got(frames.Queued)).reason == "workers"
    worker.end(first)
    assert only(worker.got(frames.Start)).call == second.call


def test_windows_follow_the_open_streams() -> None:
    """Both sides are told when the number has doubled, and when it has halved."""
    rig, client, worker = a_rig()
    opened = [client.open() for _ in range(5)]
    client.open()
    window = only(client.got(frames.Window))
    assert worker.got(frames.Window) == [window]
    assert (window.call, window.window_chunks) == (opened[2].call, 682)
    worker.end(opened[2])
    for frame in opened[3:]:
        worker.end(frame)
    client.say(done(*opened[3:]))
    assert len(client.got(frames.Window)) == 0  # the streams that had a smaller one have ended
    rig.check()


# --- prepared calls ---------------------------------------------------------------------------


def prepare(rig: Rig, client: RigClient, worker: RigWorker, lease_ms: float = 5000.0) -> None:
    query = client.query("prepareCall", {}, provider="p")
    body = pack_body({"lease": LEASE, "leaseMs": lease_ms})
    worker.say(frames.Reply(query.query, body=body))
    assert client.got(frames.Reply)
    rig.check()


def test_a_prepared_call_goes_to_the_worker_that_holds_it() -> None:
    """Once: the lease is used up."""
    rig, client, worker = a_rig()
    prepare(rig, client, worker)
    client.open(lease=LEASE)
    assert only(worker.got(frames.Start)).lease == LEASE
    client.open(lease=LEASE)
    assert client.failure()["code"] == "INVALID_PREPARED_CALL"
    rig.check()


def test_a_prepared_call_waits_for_a_place_of_its_worker() -> None:
    """It does not go to another one."""
    rig, client, worker = a_rig(concurrency=1)
    prepare(rig, client, worker)
    first = client.open()
    second = client.open(lease=LEASE)
    assert only(client.got(frames.Queued)).reason == "concurrency"
    worker.end(first)
    assert only(worker.got(frames.Start)).call == second.call


def test_a_prepared_call_waits_for_the_connection_of_its_worker() -> None:
    """It starts when the worker is back and still holds it."""
    rig, client, worker = a_rig()
    prepare(rig, client, worker)

    rig.tell(PeerDisconnected(Side.WORKER, worker.peer))
    opened = client.open(lease=LEASE)
    assert only(client.got(frames.Queued)).reason == "workers"
    worker.reconnect(leases=(LEASE,))
    assert only(worker.got(frames.Start)).call == opened.call


@pytest.mark.parametrize("seconds", [5.0, 4.9])
def test_a_lease_runs_out(seconds: float) -> None:
    """Afterwards the prepared call is a clear error, and so is one for another provider."""
    rig, client, worker = a_rig()
    prepare(rig, client, worker)
    rig.live(seconds, worker)
    client.open("other" if seconds < 5 else "p", lease=LEASE)
    assert client.failure()["code"] == "INVALID_PREPARED_CALL"


# --- pauses and retries -------------------------------------------------------------------------


def test_a_retry_after_pauses_the_route_for_everybody() -> None:
    """Calls wait and start when the pause is over."""
    rig, client, worker = a_rig()
    opened = client.open()
    worker.end_with(opened, "RATE_LIMIT", providerRetryAfterMs=4000.0)
    other = rig.a_client()
    waiting = other.open()
    assert only(other.got(frames.Queued)).reason == "paused"
    rig.live(4.0, worker)
    assert only(worker.got(frames.Start)).call == waiting.call


def test_a_long_retry_after_sends_callers_away_with_the_rest() -> None:
    """Those that wait and those that come; afterwards all is as before."""
    rig, client, worker = a_rig(concurrency=1)
    opened = client.open()
    waiting = client.open()
    worker.end_with(opened, "RATE_LIMIT", providerRetryAfterMs=60_000.0)
    failed = only(client.got(frames.Failed))
    assert failed.call == waiting.call
    assert failed.failure["providerRetryAfterMs"] == 60_000.0
    rig.live(25.0, worker)
    client.open()
    assert client.failure()["providerRetryAfterMs"] == 35_000.0
    rig.live(35.0, worker)
    client.open()
    assert worker.got(frames.Start)


def test_a_queue_timeout_while_paused_is_a_rate_limit() -> None:
    """It says how long the pause still takes."""
    rig, client, worker = a_rig(queue_timeout_s=2.0)
    worker.end_with(client.open(), "RATE_LIMIT", providerRetryAfterMs=8000.0)
    client.open()
    rig.wait(2.0)
    assert client.failure()["code"] == "RATE_LIMIT"
    assert client.failure()["providerRetryAfterMs"] == 6000.0


def test_a_retry_begins_with_the_clients_open() -> None:
    """Not before its delay is over; the repeated OPEN of an early one is told how long."""
    rig, client, worker = a_rig()
    opened = client.open(recovery="policy")
    worker.end_with(opened, "SERVER")
    retry = only(client.got(frames.Retry))
    assert (retry.attempt, retry.retry, retry.delay_ms, retry.max_retries) == (1, 1, 1000.0, 2)
    again = client.an_open(call=opened.call, attempt=1, recovery="policy")
    rig.wait(0.4)
    client.say(again)
    assert only(client.got(frames.Retry)).delay_ms == pytest.approx(600.0)
    rig.wait(0.6)
    assert only(client.got(frames.RetryStarted)).retry_id == retry.retry_id
    client.say(again)
    start = only(worker.got(frames.Start))
    assert (start.attempt, start.stream_key) == (1, again.stream_key)
    worker.end_with(again, "SERVER")
    assert only(client.got(frames.Retry)).retry == 2
    rig.wait(2.0)
    last = client.an_open(call=opened.call, attempt=2, recovery="policy")
    worker.beat()
    client.say(last)
    worker.end_with(last, "SERVER")
    assert client.got(frames.Retry) == []
    assert client.got(frames.Ended)
    rig.check()


def test_a_retry_goes_without_the_lease_that_its_first_attempt_used_up() -> None:
    """It is served by whoever serves the route."""
    rig, client, worker = a_rig()
    prepare(rig, client, worker)
    opened = client.open(lease=LEASE, recovery="policy")
    worker.end_with(opened, "SERVER")
    rig.wait(1.0)
    client.say(client.an_open(call=opened.call, attempt=1, lease=LEASE, recovery="policy"))
    assert only(worker.got(frames.Start)).lease is None


def test_a_re_offered_retry_goes_back_to_its_backoff() -> None:
    """With what is left of its delay, and with its count."""
    rig, client, worker = a_rig()
    offer = {"retryId": "i", "policyKey": "k", "retry": 2, "delayMs": 700}
    opened = client.open(attempt=2, recovery="policy", retry_offer=offer)
    retry = only(client.got(frames.Retry))
    assert (retry.attempt, retry.retry, retry.retry_id, retry.delay_ms) == (2, 2, "i", 700.0)
    rig.wait(0.7)
    assert client.got(frames.RetryStarted)
    client.say(opened)
    worker.end_with(opened, "SERVER")
    assert client.got(frames.Ended)  # two retries were allowed, and both are used up
    rig.check()


def test_a_re_offer_whose_delay_is_over_runs_at_once() -> None:
    """An unusable one is an ordinary OPEN; one for a vanished route fails."""
    rig, client, worker = a_rig()
    client.open(attempt=2, retry_offer={"retryId": "i", "policyKey": "k", "retry": 2})
    assert worker.got(frames.Start)
    client.open(attempt=2, retry_offer={})
    assert worker.got(frames.Start)
    offer = {"retryId": "i", "policyKey": "k", "retry": 2, "delayMs": 700}
    opened = client.open("nobody", attempt=2, retry_offer=offer)
    assert client.got(frames.Retry)
    rig.wait(0.7)
    client.say(opened)
    assert client.failure()["code"] == "NO_ADAPTER"


def test_a_draining_broker_opens_nothing() -> None:
    """It says that it stops."""
    rig, client, worker = a_rig()
    client.open()

    rig.tell(StopRequested(drain_s=10.0))
    client.open()
    assert client.failure()["code"] == "STOPPING"
    assert worker.got(frames.Start) == []


def test_a_detachable_call_has_a_token() -> None:
    """Worker and client get the same one."""
    _, client, worker = a_rig()
    client.open(detachable=True)
    token = only(client.got(frames.Accepted)).token
    assert token
    assert only(worker.got(frames.Start)).token == token


def test_a_worker_that_was_handed_a_lot_and_says_nothing_gets_no_more() -> None:
    """It may stand still, and what it does not read lies here; a word of it sets the rest free."""
    rig = Rig(a_pool(replicas=2), queue_bytes=100)
    one, two = (rig.a_worker(spawn=spawn) for spawn in rig.spawned())
    client = rig.a_client()
    for worker in (one, two):
        client.open(body=bytes(101))
        assert worker.got(frames.Start)
    waiting = client.open(body=bytes(10))
    assert only(client.got(frames.Queued)).reason == "workers"
    assert client.got(frames.Accepted) == []
    two.beat()
    assert only(two.got(frames.Start)).call == waiting.call
    client.open(body=bytes(10))
    assert two.got(frames.Start)
    rows = [row for row in status_of(rig)["queues"] if row["name"].endswith("unheard bytes")]
    assert [(row["depth"], row["highWater"]) for row in rows] == [(101, 101), (20, 101)]
    assert {row["bound"] for row in rows} == {100 + MAX_BODY_BYTES}
    rig.check()
