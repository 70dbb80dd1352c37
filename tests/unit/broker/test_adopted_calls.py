"""A new broker and the calls that the old one's workers and clients hold."""

from __future__ import annotations

import pytest
from trunkline_protocol import frames
from trunkline_protocol.ids import StreamKey

from tests.support.broker_rig import NORMAL, Rig, a_pool, adapters, done, held, only, restated
from tests.unit.broker.an_old_broker import KEY, OLD, a_client, alive, an_old_worker


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
