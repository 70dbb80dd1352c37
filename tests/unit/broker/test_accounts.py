"""What is told of attempts that are over: each one once, with its figures."""

from __future__ import annotations

import pytest
from trunkline_broker.core.effects import AttemptEnded, NoteLoad
from trunkline_broker.core.specs import AliveWorker
from trunkline_protocol import frames
from trunkline_protocol.secret import SecretBytes

from tests.support.broker_rig import NORMAL, Rig, RigClient, RigWorker, a_pool, done, held, only

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def a_rig(**spec: object) -> tuple[Rig, RigClient, RigWorker]:
    rig = Rig(a_pool(concurrency=2), **spec)
    worker = rig.a_worker(policy=NORMAL)
    return rig, rig.a_client(), worker


def told(rig: Rig) -> AttemptEnded:
    return only(rig.of(AttemptEnded))


def test_an_end_tells_who_what_how_long_and_how_much() -> None:
    rig, client, worker = a_rig()
    opened = client.open(traceparent=PARENT)
    rig.now_s += 2.5
    worker.end(opened, usage={"inputTokens": 1, "outputTokens": 2}, figures={"requestId": "r"})
    ended = told(rig)
    assert (ended.call, ended.attempt, ended.outcome) == (opened.call, 0, "ended")
    assert (ended.client, ended.provider, ended.model) == ("rig", "p", "m")
    assert (ended.pool, ended.slot, ended.pid) == ("p", 0, worker.pid)
    assert (ended.kind, ended.code) == ("stop", "")
    assert ended.usage == {"inputTokens": 1, "outputTokens": 2}
    assert ended.figures == {"requestId": "r"}
    assert (ended.waited_s, ended.lasted_s, ended.age_s) == (0.0, 2.5, 2.5)
    assert ended.traceparent == PARENT
    assert not ended.is_late
    worker.end(opened)
    assert rig.of(AttemptEnded) == []


def test_waiting_counts_apart() -> None:
    rig, client, worker = a_rig()
    first, second, third = (client.open() for _ in range(3))
    rig.now_s += 1.0
    worker.end(first)
    rig.now_s += 2.0
    worker.end(third)
    ended = told(rig)
    assert (ended.waited_s, ended.lasted_s, ended.age_s) == (1.0, 2.0, 3.0)
    worker.end(second)
    assert told(rig).waited_s == 0.0


def test_a_retried_attempt_is_told_beside_the_one_that_follows() -> None:
    rig, client, worker = a_rig()
    opened = client.open(recovery="policy")
    worker.end_with(opened, "SERVER")
    first = told(rig)
    assert (first.attempt, first.outcome, first.code) == (0, "retried", "SERVER")
    rig.live(1.0, worker)
    again = client.an_open(call=opened.call, attempt=1, recovery="policy")
    client.say(again)
    rig.now_s += 0.5
    worker.end(again)
    second = told(rig)
    assert (second.attempt, second.outcome, second.lasted_s) == (1, "ended", 0.5)
    assert second.age_s == pytest.approx(1.5)


def test_a_workers_death_is_told_of_each_of_its_calls() -> None:
    """Ended ones were told before; retried, cancelled and received ones say so."""
    rig, client, worker = a_rig()
    running = client.open(recovery="policy")
    taken = client.open()
    client.say(done(taken))
    worker.exit("signal 9")
    by_call = {ended.call: ended for ended in rig.of(AttemptEnded)}
    assert by_call[running.call].outcome == "retried"
    assert by_call[running.call].pool == "p"
    assert by_call[taken.call].outcome == "ended"
    rig, client, worker = a_rig()
    lost, cancelled = client.open(), client.open()
    client.say(frames.Cancel(cancelled.call, 0))
    assert rig.of(AttemptEnded) == []
    worker.exit("signal 9")
    by_call = {ended.call: ended for ended in rig.of(AttemptEnded)}
    assert (by_call[lost.call].outcome, by_call[lost.call].code) == ("failed", "TRANSPORT")
    assert by_call[cancelled.call].outcome == "cancelled"
    rig, client, worker = a_rig()
    worker.end(client.open())
    worker.exit("signal 9")
    assert rig.of(AttemptEnded) == []  # a lost tail: its end was told


def test_what_never_ran_is_told_without_a_worker() -> None:
    rig, client, _ = a_rig(max_calls_per_client=4)
    client.open("nosuch")
    ended = told(rig)
    assert (ended.outcome, ended.code, ended.pool, ended.lasted_s) == (
        "failed",
        "NO_ADAPTER",
        "",
        None,
    )
    waiting = [client.open() for _ in range(4)][-1]
    client.open()
    assert (told(rig).code, told(rig).waited_s) == ("OVERLOADED", 0.0)
    rig.now_s += 1.5
    client.say(frames.Cancel(waiting.call, 0))
    ended = told(rig)
    assert (ended.outcome, ended.kind, ended.waited_s) == ("cancelled", "aborted", 1.5)


def test_cancelled_and_forsaken_calls_are_told_when_they_end() -> None:
    rig, client, worker = a_rig()
    cancelled = client.open()
    client.say(frames.Cancel(cancelled.call, 0))
    worker.say(frames.Ended(cancelled.call, 0, 9, {"kind": "aborted"}, {"outputTokens": 3}))
    assert (told(rig).outcome, told(rig).usage) == ("cancelled", {"outputTokens": 3})
    forsaken, ended, waiting = (client.open() for _ in range(3))
    worker.end(ended)
    client.open()
    client.die()
    assert told(rig).call != waiting.call  # it had got the place of the ended one
    worker.end(forsaken)
    assert (told(rig).client, told(rig).outcome) == ("rig", "cancelled")


def test_a_backoff_that_is_cancelled_ends_the_offered_attempt() -> None:
    rig, client, worker = a_rig()
    opened = client.open(recovery="policy")
    worker.end_with(opened, "SERVER")
    client.say(frames.Cancel(opened.call, 1))
    ended = told(rig)
    assert (ended.attempt, ended.outcome, ended.waited_s) == (1, "cancelled", None)


def test_an_end_that_an_older_broker_may_know_is_marked() -> None:
    """A tail that its worker brings along and reports again."""
    rig, client, worker = a_rig()
    opened = client.open()
    assert worker.pid is not None
    alive = AliveWorker(worker.pool, 0, worker.generation, worker.pid, SecretBytes(worker.token))
    rig.restart((alive,))
    worker.register("serving", calls=(held(opened, client, is_ended=True),))
    worker.ready("p", policy=NORMAL)
    worker.end(opened, figures={"model": "m2"})
    ended = told(rig)
    assert (ended.is_late, ended.model, ended.age_s) == (True, "m2", None)
    worker.end(opened)
    assert rig.of(AttemptEnded) == []


def test_attempts_are_children_of_the_broker_only_where_it_records() -> None:
    _, client, worker = a_rig()
    client.open(traceparent=PARENT)
    assert only(worker.got(frames.Start)).traceparent == PARENT
    client.open()
    assert only(worker.got(frames.Start)).traceparent == ""
    _rig, client, worker = a_rig(is_traced=True)
    opened = client.open(traceparent=PARENT)
    mine = opened.call[8:].hex()
    assert only(worker.got(frames.Start)).traceparent == f"{PARENT[:36]}{mine}-01"
    opened = client.open()
    mine = opened.call[8:].hex()
    assert only(worker.got(frames.Start)).traceparent == f"00-{opened.call.hex()}-{mine}-01"


def test_what_a_worker_measured_is_passed_on() -> None:
    rig, _, worker = a_rig()
    worker.say(frames.Heartbeat(load={"rss": 5}))
    assert only(rig.of(NoteLoad)) == NoteLoad(worker.pool, 0, worker.generation, {"rss": 5})
    worker.say(frames.Heartbeat())
    assert rig.of(NoteLoad) == []
