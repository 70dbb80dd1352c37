"""A new broker takes over what the old one's workers and clients hold."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_broker.core.effects import Adopt, Forget, NoteUnseen, WatchClient
from trunkline_broker.core.events import ClientExited
from trunkline_broker.core.specs import AliveWorker
from trunkline_protocol import frames
from trunkline_protocol.ids import ClientId, Epoch, Generation, LeaseId, PoolName, StreamKey
from trunkline_protocol.secret import SecretBytes

from tests.support.broker_rig import (
    NORMAL,
    Rig,
    RigClient,
    RigWorker,
    a_pool,
    adapters,
    done,
    held,
    only,
    restated,
)

OLD = Generation(Epoch(900), 3)
OLDER = Generation(Epoch(900), 2)
LEASE = LeaseId(b"L" * 16)
KEY = StreamKey(b"12345678")
TICKET = b"ticket" * 2
TOKEN = b"t" * 32


def alive(generation: Generation = OLD, pool: str = "p", **fields: Any) -> AliveWorker:
    values: dict[str, Any] = {"slot": 0, "pid": 70_000, "token": SecretBytes(TOKEN), **fields}
    return AliveWorker(pool=PoolName(pool), generation=generation, **values)


def an_old_worker(rig: Rig, generation: Generation = OLD, pool: str = "p") -> RigWorker:
    """Return a worker of the older broker that has not registered yet."""
    return RigWorker(rig, pool, 0, generation, TOKEN)


def a_client(rig: Rig) -> RigClient:
    """Return a client that has not said HELLO yet."""
    return RigClient(rig, rig.number())


def test_a_living_worker_is_adopted_and_not_replaced() -> None:
    """It serves as soon as it has said its registrations again."""
    rig = Rig(alive=(alive(),))
    assert rig.spawned() == []
    adopt = only(rig.of(Adopt))
    assert (adopt.generation, adopt.pid, adopt.token.get_secret_value()) == (
        OLD,
        70_000,
        TOKEN,
    )
    worker = an_old_worker(rig)
    worker.register("serving")
    assert only(worker.got(frames.Registered)).generation == OLD
    assert rig.hub.is_settling
    worker.ready("p")
    assert only(worker.got(frames.Role)).role == "serving"
    assert not rig.hub.is_settling
    rig.wait(1.0)
    assert rig.spawned() == []
    assert rig.a_client().open()
    assert worker.got(frames.Start)


def test_a_worker_that_can_not_prove_itself_is_refused() -> None:
    """The token of the hint file is the proof."""
    rig = Rig(alive=(alive(),))
    worker = an_old_worker(rig)
    worker.register("serving", token=b"no")
    assert only(worker.got(frames.Refused)).code == "BAD_TOKEN"


def test_other_slots_are_filled_at_once() -> None:
    """Only slots whose worker lives wait."""
    rig = Rig(a_pool(replicas=2), a_pool("q"), alive=(alive(),))
    assert [(spawn.pool, spawn.slot) for spawn in rig.spawned()] == [("p", 1), ("q", 0)]


def test_a_dead_worker_of_the_hint_file_is_replaced_when_all_is_known() -> None:
    """Its exit ends the settling."""
    rig = Rig(alive=(alive(),))
    an_old_worker(rig).exit("unknown status")
    assert not rig.hub.is_settling
    assert rig.spawned()


def test_a_silent_worker_is_killed_after_the_settle_time() -> None:
    """And replaced at once."""
    rig = Rig(alive=(alive(),))
    rig.wait(5.0)
    assert rig.signals() == [(OLD, "KILL")]
    assert rig.spawned()
    an_old_worker(rig).exit("signal 9")
    rig.wait(1.0)
    assert rig.spawned() == []


def test_a_worker_that_registered_but_is_not_ready_gets_its_start_time() -> None:
    """It is not killed for being slow to say its registrations."""
    rig = Rig(alive=(alive(),))
    worker = an_old_worker(rig)
    worker.register("serving")
    rig.wait(5.0)
    assert rig.signals() == []
    assert rig.spawned() == []
    worker.ready("p")
    assert only(worker.got(frames.Role)).role == "serving"


@pytest.mark.parametrize("order", ["higher first", "lower first"])
def test_the_higher_of_two_serving_workers_is_waited_for(order: str) -> None:
    """The lower one serves only if the higher one dies."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    lower, higher = an_old_worker(rig, OLDER), an_old_worker(rig, OLD)
    for worker in (lower, higher) if order == "lower first" else (higher, lower):
        worker.register("serving")
    lower.ready("p")
    assert only(lower.got(frames.Role)).role == "draining"
    higher.exit()
    rig.wait(1.0)
    assert rig.spawned()


def test_a_lower_serving_worker_serves_where_the_higher_one_died() -> None:
    """Before it was ready."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    lower, higher = an_old_worker(rig, OLDER), an_old_worker(rig, OLD)
    lower.register("serving")
    higher.register("serving")
    higher.exit()
    lower.ready("p")
    assert only(lower.got(frames.Role)).role == "serving"
    rig.wait(1.0)
    assert rig.spawned() == []


def test_a_running_call_is_rebound_whoever_comes_first() -> None:
    """Client first: its claim waits. The worker is told window and position."""
    for client_first in (True, False):
        rig = Rig(alive=(alive(),))
        worker, client = an_old_worker(rig), a_client(rig)
        opened = client.an_open()
        entry = held(opened, client)
        if client_first:
            client.hello()
            client.say(restated(opened))
            assert client.got(frames.Lost) == []
            worker.register("serving", calls=(entry,))
            assert only(worker.got(frames.Credit)).received == 4
            worker.ready("p", policy=NORMAL)
        else:
            worker.register("serving", calls=(entry,))
            assert only(worker.got(frames.Window)).call == opened.call
            worker.ready("p", policy=NORMAL)
            client.hello()
            client.say(restated(opened))
            assert only(worker.got(frames.Credit)).received == 4
        accepted = only(client.got(frames.Accepted))
        assert (accepted.generation, accepted.policy) == (OLD, NORMAL)
        assert rig.hub.gates.at(opened.provider).running == 1
        worker.end(opened)
        assert client.got(frames.Ended)
        client.say(done(opened))
        assert len(rig.hub.calls) == 0
        rig.check()


def test_a_rebound_call_that_asked_for_it_is_still_retried() -> None:
    """The new broker learns from the restatement that the policy applies."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    opened = client.an_open(recovery="policy")
    worker.register("serving", calls=(held(opened, client),))
    worker.ready("p", policy=NORMAL)
    client.hello()
    client.say(restated(opened, received=4))
    worker.end_with(opened, "SERVER")
    assert only(client.got(frames.Retry)).attempt == opened.attempt + 1


@pytest.mark.parametrize("is_ended", [True, False])
def test_an_offered_attempt_supersedes_the_one_that_a_worker_brought_along(is_ended: bool) -> None:
    """The broker died between its `RETRY` and the worker's hearing that the last one is done with.

    Whoever comes first, nothing is lost; one that seems to run is stopped.
    """
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    last = client.an_open(recovery="policy")
    offer = {"retryId": "i", "policyKey": "k", "retry": 1, "delayMs": 700}
    worker.register("serving", calls=(held(last, client, is_ended=is_ended),))
    client.hello()
    key = StreamKey(b"n" * 8)
    client.open(call=last.call, attempt=1, stream_key=key, recovery="policy", retry_offer=offer)
    if is_ended:
        assert only(worker.got(frames.Done)).calls == done(last).calls
    else:
        assert only(worker.got(frames.Cancel)).attempt == 0
    worker.ready("p", policy=NORMAL)
    assert only(client.got(frames.Retry)).attempt == 1
    rig.live(0.7, worker)
    assert only(client.got(frames.RetryStarted)).attempt == 1
    client.open(call=last.call, attempt=1, stream_key=key, recovery="policy")
    assert only(worker.got(frames.Start)).attempt == 1
    rig.check()


@pytest.mark.parametrize(
    "order",
    [
        "ended, ready, restated",
        "restated, ready, ended",
        "ended, restated, ready",
        "ready, restated, ended",
    ],
)
def test_an_attempt_that_failed_without_a_broker_is_retried(order: str) -> None:
    """The policy applies to it as to any other, when worker and client have said what they know."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    opened = client.an_open(recovery="policy")
    worker.register("serving", calls=(held(opened, client, is_ended=True),))
    client.hello()
    for step in order.split(", "):
        assert client.got(frames.Ended) == client.got(frames.Retry) == []
        if step == "ended":
            worker.end_with(opened, "SERVER")
        elif step == "ready":
            worker.ready("p", policy=NORMAL)
        else:
            client.say(restated(opened))
    assert client.got(frames.Ended) == []
    assert only(client.got(frames.Retry)).attempt == 1
    client.say(done(opened))
    assert only(worker.got(frames.Done)).calls == done(opened).calls
    rig.live(1.0, worker)
    client.open(call=opened.call, attempt=1, recovery="policy")
    assert only(worker.got(frames.Start)).attempt == 1
    rig.check()


@pytest.mark.parametrize(("recovery", "code"), [("none", "SERVER"), ("policy", "AUTH")])
def test_an_attempt_that_failed_without_a_broker_may_also_be_the_last(
    recovery: str, code: str
) -> None:
    """It did not ask for retries, or its failure is none that is repeated; said once it is sure."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    opened = client.an_open(recovery=recovery)
    worker.register("serving", calls=(held(opened, client, is_ended=True),))
    client.hello()
    worker.end_with(opened, code)
    worker.ready("p", policy=NORMAL)
    assert client.got(frames.Ended) == []
    client.say(restated(opened))
    assert only(client.got(frames.Ended)).finish["failure"]["code"] == code
    client.reconnect()
    assert client.got(frames.Ended)
    client.say(done(opened))
    assert len(rig.hub.calls) == 0
    rig.check()


def test_an_open_that_nobody_confirmed_is_rebound_if_a_worker_holds_it() -> None:
    """It waits until that is known, and is never started twice."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    client.hello()
    opened = client.open()
    assert only(client.got(frames.Queued)).reason == "settling"
    client.say(opened)
    assert only(client.got(frames.Queued)).reason == "settling"
    worker.register("serving", calls=(held(opened, client),))
    rig.check()
    worker.ready("p", policy=NORMAL)
    assert worker.got(frames.Start) == []
    assert only(client.got(frames.Accepted)).policy == NORMAL
    assert rig.hub.queued_bytes == 0
    client.say(opened)
    assert client.got(frames.Accepted)
    rig.check()


def test_a_re_offer_while_settling_is_not_confirmed() -> None:
    """`QUEUED` would begin the retry before its delay is over; the client says it again."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    client.hello()
    offer = {"retryId": "i", "policyKey": "k", "retry": 1, "delayMs": 700}
    opened = client.open(attempt=1, recovery="policy", retry_offer=offer)
    client.say(opened)
    assert client.got(frames.Queued) == []
    worker.register("serving")
    worker.ready("p", policy=NORMAL)
    assert only(client.got(frames.Retry)).delay_ms == 700
    rig.check()


def test_an_open_before_the_worker_is_ready_is_confirmed_later() -> None:
    """The policy is known then."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    opened = client.an_open()
    worker.register("serving", calls=(held(opened, client),))
    client.hello()
    client.say(opened)
    assert client.got(frames.Accepted) == []
    worker.ready("p", policy=NORMAL)
    assert only(client.got(frames.Accepted)).policy == NORMAL


def test_opens_that_nobody_holds_begin_when_all_is_known() -> None:
    """Unless the client has seen something of them."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    client.hello()
    fresh = client.open()
    seen = client.open(seen=True)
    worker.register("serving")
    worker.ready("p")
    assert only(worker.got(frames.Start)).call == fresh.call
    assert only(client.got(frames.Lost)).call == seen.call
    assert rig.hub.queued_bytes == 0
    rig.check()


def test_claims_that_nobody_supports_are_lost() -> None:
    """Those of clients that left meanwhile are nothing."""
    rig = Rig(alive=(alive(),), max_calls=2)
    worker, client, gone = an_old_worker(rig), a_client(rig), a_client(rig)
    client.hello()
    gone.hello()
    opened = client.an_open()
    client.say(restated(opened))
    gone.say(restated(gone.an_open()))
    client.say(restated(client.an_open()))  # over the bound: said again later
    gone.die()
    client.say(frames.Credit(opened.call, 0, 1, 1, 1))
    client.say(frames.Attach(opened.call, b"", KEY))
    assert not rig.effects
    worker.register("serving")
    worker.ready("p")
    assert [lost.call for lost in client.got(frames.Lost)] == [opened.call]


def test_a_cancel_while_settling_withdraws_the_claim() -> None:
    """The client repeats it until it is answered."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    client.hello()
    opened = client.an_open()
    client.say(restated(opened))
    client.say(frames.Cancel(opened.call, 0))
    assert not rig.effects
    worker.register("serving", calls=(held(opened, client),))
    worker.ready("p")
    client.say(frames.Cancel(opened.call, 0))
    assert worker.got(frames.Cancel)


def test_a_tail_is_taken_over() -> None:
    """The call has ended there already; a repeated ENDED passes, DONE closes it."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    first, second, third = (client.an_open() for _ in range(3))
    client.hello()
    client.say(third)
    worker.register(
        "serving", calls=tuple(held(f, client, is_ended=True) for f in (first, second, third))
    )
    worker.ready("p")
    assert rig.hub.gates.at(first.provider).running == 0
    rig.check()
    client.say(first)
    assert client.got(frames.Ended) == []
    worker.end(first)
    assert client.got(frames.Ended)
    client.say(done(first))
    assert only(worker.got(frames.Done)).calls == done(first).calls
    rig.live(31.0, worker)
    assert len(rig.hub.calls) == 0
    rig.check()


def test_calls_of_clients_that_do_not_come_back_are_cancelled() -> None:
    """After the orphan timeout; a client that comes in time keeps them."""
    rig = Rig(alive=(alive(),))
    worker, client, back = an_old_worker(rig), a_client(rig), a_client(rig)
    lost, kept = client.an_open(), back.an_open()
    worker.register("serving", calls=(held(lost, client), held(kept, back)))
    worker.ready("p")
    rig.live(20.0, worker)
    back.hello()
    back.say(restated(kept))
    rig.live(11.0, worker)
    assert [frame.call for frame in worker.got(frames.Cancel)] == [lost.call]
    assert rig.hub.calls.get(kept.call) is not None


def a_claim(client: RigClient) -> frames.HeldClient:
    """Return what a worker says of a client's process."""
    return frames.HeldClient(client.id, client.pid or 0)


def test_a_client_that_died_with_the_older_broker_is_dead_at_once() -> None:
    """Its worker knows the process, and the kernel that it is gone: calls and leases end."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    opened = client.an_open()
    worker.register(
        "serving",
        calls=(held(opened, client),),
        leases=(LEASE,),
        lease_holders=(frames.HeldLease(LEASE, client.id),),
        clients=(a_claim(client),),
    )
    assert rig.of(WatchClient) == [WatchClient(client.pid or 0)]
    rig.tell(ClientExited(client.pid or 0))  # what watching a dead process leads to
    assert only(worker.got(frames.Cancel)).call == opened.call
    assert only(worker.got(frames.Query)).op == "releaseCall"
    assert len(rig.hub.clients) == 0
    rig.check()


def test_a_client_that_stands_still_is_waited_for_as_long_as_its_process_lives() -> None:
    """One whose process nobody knows is not; one that never wakes up is not for ever."""
    rig = Rig(alive=(alive(),))
    worker, still, unknown, never = (an_old_worker(rig), *(a_client(rig) for _ in range(3)))
    kept, lost, late = still.an_open(), unknown.an_open(), never.an_open()
    worker.register(
        "serving",
        calls=(held(kept, still), held(lost, unknown), held(late, never)),
        clients=(a_claim(still), a_claim(never)),
    )
    worker.ready("p")
    rig.live(29.0, worker)
    assert len(rig.hub.calls) == 3
    rig.live(2.0, worker)
    assert only(worker.got(frames.Cancel)).call == lost.call
    rig.live(100.0, worker)
    still.hello()
    still.say(restated(kept))
    assert only(still.got(frames.Accepted)).call == kept.call
    rig.live(500.0, worker)
    assert [client.id for client in rig.hub.clients] == [still.id]


def test_leases_are_taken_over() -> None:
    """A prepared call of the older broker can be dispatched, for a while."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    worker.register("serving", leases=(LEASE,))
    worker.ready("p")
    client.hello()
    client.open(lease=LEASE)
    assert only(worker.got(frames.Start)).lease == LEASE
    rig.check()


def test_leases_go_with_their_client_also_after_a_restart() -> None:
    """With one that came back and then dies, at once; with one that never comes, after a while."""
    rig = Rig(alive=(alive(),))
    worker, client, never = an_old_worker(rig), a_client(rig), a_client(rig)
    other = LeaseId(b"O" * 16)
    holders = (frames.HeldLease(LEASE, client.id), frames.HeldLease(other, never.id))
    worker.register("serving", leases=(LEASE, other), lease_holders=holders)
    worker.ready("p")
    client.hello()
    client.die()
    assert only(worker.got(frames.Query)).op == "releaseCall"
    assert set(rig.hub.leases) == {other}
    rig.live(31.0, worker)
    assert rig.hub.leases == {}
    assert len(rig.hub.clients) == 0


def test_a_worker_does_not_fill_the_table_of_clients_with_holders_of_leases() -> None:
    """Whose a lease is, is lost beyond the bound; the lease is not."""
    rig = Rig(alive=(alive(),), max_clients=2)
    worker = an_old_worker(rig)
    names = [LeaseId(bytes([number]) * 16) for number in range(5)]
    holders = tuple(frames.HeldLease(each, ClientId(bytes(each))) for each in names)
    worker.register("serving", leases=tuple(names), lease_holders=holders)
    assert len(rig.hub.clients) == 2
    assert len(rig.hub.leases) == 5


def test_a_question_about_a_lease_waits_for_the_worker_that_may_hold_it() -> None:
    """While settling nobody can say that there is no such prepared call."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    client.hello()
    renew = client.query("renewCall", {"lease": LEASE})
    assert client.got(frames.Reply) == []
    worker.register("serving", leases=(LEASE,))
    worker.ready("p", policy=NORMAL)
    assert only(worker.got(frames.Query)).query == renew.query


def test_a_lease_that_the_worker_dropped_is_dropped() -> None:
    """Its own word counts."""
    rig = Rig(alive=(alive(),))
    worker = an_old_worker(rig)
    worker.register("serving", leases=(LEASE,))
    worker.ready("p")
    worker.reconnect(leases=(LEASE,))
    assert LEASE in rig.hub.leases
    worker.reconnect()
    assert rig.hub.leases == {}
    rig.check()


@pytest.mark.parametrize("order", ["old first", "new first"])
def test_the_highest_serving_generation_wins_a_slot(order: str) -> None:
    """The other one drains."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    workers = [an_old_worker(rig, OLDER), an_old_worker(rig, OLD)]
    for worker in workers if order == "old first" else reversed(workers):
        worker.register("serving")
        worker.ready("p")
    rig.a_client().open()
    assert workers[1].got(frames.Start)
    assert rig.hub.workers.get(OLDER) is not None
    state = rig.hub.workers.get(OLDER)
    assert state is not None
    assert state.state.value == "stopping"


def test_a_draining_worker_goes_on_draining() -> None:
    """It keeps its calls, gets no new ones and leaves when they are over."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    serving, draining = an_old_worker(rig), an_old_worker(rig, OLDER)
    client = a_client(rig)
    opened = client.an_open()
    draining.register("draining", calls=(held(opened, client),))
    assert only(draining.got(frames.Role)).role == "draining"
    serving.register("serving")
    serving.ready("p")
    draining.ready("p")
    client.hello()
    client.say(restated(opened))
    draining.end(opened)
    client.say(done(opened))
    assert draining.got(frames.Bye)
    client.open()
    assert serving.got(frames.Start)


def test_a_draining_worker_without_calls_leaves_at_once() -> None:
    """As soon as it has said so."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    draining = an_old_worker(rig, OLDER)
    assert rig.signals() == []
    draining.register("draining")
    assert draining.got(frames.Bye)


def test_a_standby_serves_only_where_nobody_else_does() -> None:
    """Decided when all is known."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    serving, standby = an_old_worker(rig, OLDER), an_old_worker(rig)
    standby.register("standby")
    standby.ready("p")
    assert only(standby.got(frames.Role)).role == "standby"
    serving.register("serving")
    serving.ready("p")
    assert standby.got(frames.Bye)
    rig.a_client().open()
    assert serving.got(frames.Start)

    rig = Rig(alive=(alive(), alive(OLDER)))
    serving, standby = an_old_worker(rig, OLDER), an_old_worker(rig)
    standby.register("standby")
    standby.ready("p")
    serving.exit()
    assert only(standby.got(frames.Role)).role == "serving"
    assert rig.spawned() == []


def test_a_standby_that_comes_too_late_leaves() -> None:
    """The swap it was meant for is forgotten."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    serving, standby = an_old_worker(rig, OLDER), an_old_worker(rig)
    serving.register("serving")
    serving.ready("p")
    rig.live(5.0, serving)
    assert (OLD, "KILL") in rig.signals()
    standby.register("standby")
    assert only(standby.got(frames.Refused)).code == "SUPERSEDED"


def test_a_starting_worker_goes_on_starting() -> None:
    """It serves when it is ready; nothing else is started in its slot."""
    rig = Rig(alive=(alive(),))
    worker = an_old_worker(rig)
    worker.register("starting")
    assert not rig.hub.is_settling
    assert rig.spawned() == []
    worker.ready("p")
    assert only(worker.got(frames.Role)).role == "serving"


def test_workers_of_pools_that_are_gone_drain() -> None:
    """They finish what they hold."""
    rig = Rig(alive=(alive(pool="gone"), alive(OLDER, slot=5)))
    for generation, pool in ((OLD, "gone"), (OLDER, "p")):
        worker = an_old_worker(rig, generation, pool)
        worker.register("serving")
        worker.ready(pool)
        assert only(worker.got(frames.Role)).role == "draining"
        assert worker.got(frames.Bye)


def test_a_starting_worker_of_a_pool_that_is_gone_drains_too() -> None:
    """There is no slot for it to start in."""
    rig = Rig(alive=(alive(pool="gone"),))
    worker = an_old_worker(rig, pool="gone")
    worker.register("starting")
    worker.ready("gone")
    assert only(worker.got(frames.Role)).role == "draining"


def test_manual_workers_come_back_by_themselves() -> None:
    """With their pool, whether the hint file names them or not."""
    named = Rig(alive=(alive(pool="m", is_manual=True),))
    unnamed = Rig()
    for rig in (named, unnamed):
        worker = an_old_worker(rig, pool="m")
        worker.register("serving")
        worker.ready("m")
        assert only(worker.got(frames.Role)).role == "serving"
        client = rig.a_client()
        client.open("m")
        assert worker.got(frames.Start)
        worker.exit()
        assert client.got(frames.Event)
        assert [pool.spec.name for pool in rig.hub.pools] == ["p"]


def out_of_sight(generation: Generation = OLD) -> AliveWorker:
    """Return a hint at a worker on another host."""
    return alive(generation, "m", pid=None, token=SecretBytes(b""), is_manual=True)


def a_far_worker(rig: Rig, generation: Generation = OLD) -> RigWorker:
    worker = RigWorker(rig, "m", 0, generation)
    worker.pid = None
    return worker


def test_a_worker_out_of_sight_is_waited_for() -> None:
    """A client that is back before it loses nothing."""
    rig = Rig(alive=(out_of_sight(),))
    assert only(rig.of(NoteUnseen)).generation == OLD
    rig.a_worker(spawn=only(rig.spawned()))
    worker, client = a_far_worker(rig), a_client(rig)
    client.hello()
    claimed, unseen = client.an_open("m"), client.an_open("m")
    client.say(restated(claimed))
    assert client.got(frames.Lost) == []
    client.say(unseen)
    assert only(client.got(frames.Queued)).reason == "settling"
    rig.wait(2.0)
    worker.register("serving", calls=(held(claimed, client), held(unseen, client)))
    assert rig.of(NoteUnseen) == []
    worker.ready("m")
    assert worker.got(frames.Start) == []
    assert {frame.call for frame in client.got(frames.Accepted)} == {claimed.call, unseen.call}
    assert not rig.hub.is_settling
    rig.check()
    worker.say(frames.Bye("enough"))
    assert only(rig.of(Forget)).generation == OLD


def test_a_worker_out_of_sight_that_stays_away_leaves_nothing() -> None:
    """After the settle time its pool is gone; one that comes later brings it back."""
    rig = Rig(alive=(out_of_sight(),))
    serving = rig.a_worker(spawn=only(rig.spawned()))
    client = rig.a_client()
    waiting = client.open("m")
    rig.live(6.0, serving)
    assert only(rig.of(Forget)).generation == OLD
    assert rig.signals() == []
    assert not rig.hub.is_settling
    assert [pool.spec.name for pool in rig.hub.pools] == ["p"]
    assert only(client.got(frames.Failed)).call == waiting.call
    worker = a_far_worker(rig)
    worker.register("serving")
    assert only(rig.of(NoteUnseen)).generation == OLD
    worker.ready("m")
    client.open("m")
    assert worker.got(frames.Start)


def test_a_worker_started_by_hand_that_stays_silent_is_not_killed() -> None:
    """Somebody may be looking at it with a debugger; its pool is gone until it is back."""
    rig = Rig(alive=(alive(pool="m", is_manual=True),))
    rig.wait(5.0)
    assert rig.signals() == []
    assert only(rig.of(Forget)).generation == OLD
    assert [pool.spec.name for pool in rig.hub.pools] == ["p"]


def test_a_worker_without_a_hint_wins_its_slot_from_one_that_starts() -> None:
    """But not from one that serves already."""
    rig = Rig()
    started = only(rig.spawned())
    worker = an_old_worker(rig)
    worker.register("serving")
    worker.ready("p")
    assert only(worker.got(frames.Role)).role == "serving"
    assert rig.signals() == [(started.generation, "TERM")]

    rig = Rig()
    own = rig.a_worker()
    worker = an_old_worker(rig)
    worker.register("serving")
    worker.ready("p")
    assert only(worker.got(frames.Role)).role == "draining"
    rig.a_client().open()
    assert own.got(frames.Start)


# --- links that were re-made ----------------------------------------------------------------------


def test_a_start_that_got_lost_with_the_link_is_lost() -> None:
    """The client may open it again; what the worker holds goes on."""
    rig = Rig()
    worker = rig.a_worker()
    client = rig.a_client()
    kept, missing, cancelled = client.open(), client.open(), client.open()
    client.say(frames.Cancel(cancelled.call, 0))
    worker.reconnect(calls=(held(kept, client),))
    assert [lost.call for lost in client.got(frames.Lost)] == [missing.call]
    assert [ended.call for ended in client.got(frames.Ended)] == [cancelled.call]
    client.say(missing)
    assert only(worker.got(frames.Start)).call == missing.call
    rig.check()


def test_a_repeated_register_on_the_same_link_loses_nothing() -> None:
    """A START may be under way on it."""
    rig = Rig()
    worker = rig.a_worker()
    client = rig.a_client()
    client.open()
    worker.register("serving")
    assert client.got(frames.Lost) == []
    assert len(rig.hub.calls) == 1


def test_calls_that_are_over_here_are_cancelled_there() -> None:
    """As is what another worker holds, and what was cancelled meanwhile."""
    rig = Rig(a_pool(replicas=2))
    one, two = [rig.a_worker(spawn=spawn) for spawn in rig.spawned()]
    client = rig.a_client()
    running, cancelled = client.open(), client.open()
    other = client.open()
    client.say(frames.Cancel(running.call, 0))
    unknown = client.an_open()
    entries = [held(frame, client) for frame in (running, other, unknown, cancelled)]
    one.reconnect(calls=tuple(entries))
    assert {frame.call for frame in one.got(frames.Cancel)} == {
        running.call,
        unknown.call,
        cancelled.call,
    }
    assert rig.count("call_held_twice") == 1
    assert two.got(frames.Cancel) == []


def test_calls_beyond_the_bound_are_not_adopted() -> None:
    """Their clients hear that they are lost."""
    rig = Rig(alive=(alive(),), max_calls=1)
    worker, client = an_old_worker(rig), a_client(rig)
    first, second = client.an_open(), client.an_open()
    worker.register("serving", calls=(held(first, client), held(second, client)))
    worker.ready("p")
    assert len(rig.hub.calls) == 1


def test_a_detached_call_waits_for_whoever_has_its_token() -> None:
    """However long that takes; to others it is an unknown call, also to whom it was taken from."""
    rig = Rig(alive=(alive(),))
    worker, owner, client = an_old_worker(rig), a_client(rig), a_client(rig)
    opened = owner.an_open()
    owner.hello()
    owner.say(restated(opened))
    entry = held(opened, owner, token=TICKET, is_detached=True)
    worker.register("serving", calls=(entry,))
    assert owner.got(frames.Lost)
    assert worker.got(frames.Window) == []
    worker.ready("p", policy=NORMAL)
    rig.live(60.0, worker)
    assert worker.got(frames.Cancel) == []
    client.hello()
    client.say(frames.Attach(opened.call, b"wrong", KEY))
    assert client.got(frames.Lost)
    client.say(frames.Attach(opened.call, TICKET, KEY))
    assert only(worker.got(frames.Attach)).client == client.id
    rig.check()
    worker.say(frames.Snapshot(opened.call, 0, 5))
    assert client.got(frames.Snapshot)
    client.say(restated(opened))
    assert worker.got(frames.Credit)
    worker.end(opened)
    assert client.got(frames.Ended)
    rig.check()


def test_a_detachable_call_whose_client_does_not_come_back_is_detached() -> None:
    """One that comes back is told its ticket again."""
    rig = Rig(alive=(alive(),))
    worker, gone, back = an_old_worker(rig), a_client(rig), a_client(rig)
    left, kept, unheard = gone.an_open(), back.an_open(), back.an_open(detachable=True)
    back.hello()
    back.say(unheard)
    clients = ((left, gone), (kept, back), (unheard, back))
    worker.register("serving", calls=tuple(held(f, c, token=TICKET) for f, c in clients))
    worker.ready("p", policy=NORMAL)
    accepted = {frame.call: frame.token for frame in back.got(frames.Accepted)}
    assert accepted == {kept.call: TICKET, unheard.call: TICKET}
    rig.live(31.0, worker)
    assert worker.got(frames.Cancel) == []
    assert worker.got(frames.Window)[0] == frames.Window(left.call, 0, 0, 0)
    back.say(frames.Attach(left.call, TICKET, KEY))
    assert only(worker.got(frames.Attach)).call == left.call
    rig.check()


def test_a_worker_of_an_older_version_alone_knows_the_token() -> None:
    """Its SNAPSHOT is the consent."""
    rig = Rig(alive=(alive(),))
    worker, owner, client = an_old_worker(rig), a_client(rig), a_client(rig)
    opened = owner.an_open()
    worker.register("serving", calls=(held(opened, owner),))
    worker.ready("p")
    client.hello()
    client.say(frames.Attach(opened.call, b"token", KEY))
    assert only(worker.got(frames.Attach)).client == client.id
    assert rig.hub.calls.get(opened.call) is not None
    worker.say(frames.Snapshot(opened.call, 0, 5))
    assert client.got(frames.Snapshot)
    client.say(frames.Credit(opened.call, 0, 1, 1, 1))
    assert worker.got(frames.Credit)
    rig.check()


def test_a_client_of_the_old_broker_that_died_with_it() -> None:
    """A second worker's entry for it finds the same absent client."""
    rig = Rig(a_pool(replicas=2), alive=(alive(), alive(OLDER, slot=1)))
    client = a_client(rig)
    for generation in (OLD, OLDER):
        worker = an_old_worker(rig, generation)
        worker.register("serving", calls=(held(client.an_open(), client),))
        worker.ready("p")
    assert rig.hub.clients.get(ClientId(client.id)) is not None
    assert len(rig.hub.clients) == 1


def test_without_a_hint_file_what_clients_hold_waits_a_while() -> None:
    """Workers may come all the same; fresh calls need not wait for that."""
    rig = Rig(young=True)
    worker, client = an_old_worker(rig), a_client(rig)
    client.hello()
    claimed, seen, unclaimed = client.an_open(), client.an_open(seen=True), client.an_open()
    client.say(restated(claimed))
    client.say(restated(unclaimed))
    client.say(seen)
    assert only(client.got(frames.Queued)).reason == "settling"
    client.say(frames.Credit(claimed.call, 0, 1, 1, 1))
    client.say(frames.Cancel(client.an_open().call, 0))
    assert not rig.effects
    client.open("nobody")
    assert client.failure()["code"] == "NO_ADAPTER"
    worker.register("serving", calls=(held(claimed, client), held(seen, client)))
    worker.ready("p")
    assert {frame.call for frame in client.got(frames.Accepted)} >= {seen.call}
    rig.live(6.0, worker)
    assert [lost.call for lost in client.got(frames.Lost)] == [unclaimed.call]
    client.say(restated(client.an_open()))
    assert client.got(frames.Lost)
    rig.check()


def test_a_waiting_open_is_rebound_where_another_worker_holds_it() -> None:
    """Also one that waits for a worker to start; another attempt of it is cancelled there."""
    rig = Rig(young=True)
    client = rig.a_client()
    first, second = client.open(), client.open(attempt=1)
    assert only(client.got(frames.Queued)).reason == "starting"
    worker = an_old_worker(rig)
    entries = (held(first, client), held(second, client, attempt=0))
    worker.register("serving", calls=entries)
    assert [frame.call for frame in worker.got(frames.Cancel)] == [second.call]
    worker.ready("p")
    assert [frame.call for frame in worker.got(frames.Start)] == [second.call]
    rig.check()


def test_an_unconfirmed_open_tells_again_whether_it_wants_recovery() -> None:
    """Workers do not know that."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    opened = client.an_open(recovery="policy")
    worker.register("serving", calls=(held(opened, client),))
    worker.ready("p", policy=NORMAL)
    client.hello()
    client.say(opened)
    worker.end_with(opened, "SERVER")
    assert client.got(frames.Retry)


def test_the_policy_is_that_of_the_calls_route() -> None:
    """A worker may serve several; a client that left meanwhile is told nothing."""
    rig = Rig(a_pool(providers=("p", "q")), alive=(alive(),))
    worker, client, gone = an_old_worker(rig), a_client(rig), a_client(rig)
    opened, detached = client.an_open("q"), gone.an_open("q")
    client.hello()
    gone.hello()
    worker.register("serving", calls=(held(opened, client), held(detached, gone)))
    gone.say(frames.Bye())
    worker.commit((*adapters("p"), *adapters("q", number=2, policy=NORMAL)))
    assert only(client.got(frames.Accepted)).policy == NORMAL
    assert gone.got(frames.Accepted) == []


def test_what_waits_while_settling_is_bounded() -> None:
    """In bytes, as every queue; queries wait too, since nobody's route is known."""
    rig = Rig(alive=(alive(),), queue_bytes=6)
    worker, client = an_old_worker(rig), a_client(rig)
    client.hello()
    client.open()
    client.open()
    assert client.failure()["code"] == "OVERLOADED"
    query = client.query("listModels", provider="x")
    assert client.got(frames.Reply) == []
    worker.register("serving")
    worker.ready("p", "x")
    assert worker.got(frames.Query) == [query]
    rig.check()
