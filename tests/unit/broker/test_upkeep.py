"""Everything that the broker waits for is compared with what workers and clients name."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_broker.core.calls import Call
from trunkline_broker.core.hub import Timer
from trunkline_protocol import frames
from trunkline_protocol.limits import DETACHED_S

from tests.support.broker_rig import NORMAL, Rig, RigClient, RigWorker, a_pool, done, held, only
from tests.unit.broker.an_old_broker import a_client, alive, an_old_worker

Scene = tuple[Rig, RigClient, RigWorker, frames.Open]


def a_running_call(*, strict: bool = False, **fields: Any) -> Scene:
    rig = Rig(a_pool(concurrency=1), is_liveness_strict=strict)
    worker = rig.a_worker(policy=NORMAL)
    client = rig.a_client()
    opened = client.open(**fields)
    rig.now_s += 0.5  # beats from now on were sent behind its START
    return rig, client, worker, opened


def holding(opened: frames.Open, *, is_ended: bool = False) -> tuple[frames.Holding, ...]:
    return (frames.Holding(opened.call, opened.attempt, is_ended),)


def the_call(rig: Rig) -> Call:
    return only(list(rig.hub.calls))


# --- calls that a worker does not name ----------------------------------------------------------


def test_a_call_that_its_worker_never_names_ends() -> None:
    """Its START was refused there, or its ENDED here: its place would be taken for ever.

    The first heartbeat may have crossed the START, and the second one need not be believed alone.
    """
    rig, client, worker, _ = a_running_call()
    waiting = client.open()
    for _ in range(2):
        worker.beat(held=())
        assert client.got(frames.Failed) == []
    worker.beat(held=())
    assert client.failure()["code"] == "TRANSPORT"
    assert only(worker.got(frames.Start)).call == waiting.call
    assert rig.count("liveness") == 1
    rig.check()


def test_beats_from_before_its_start_say_nothing_of_a_call() -> None:
    """They lay in the queue of a broker that stood still, which now reads all of them at once."""
    rig = Rig(a_pool(), is_liveness_strict=True)
    worker = rig.a_worker(policy=NORMAL)
    rig.a_client().open()
    for _ in range(10):
        worker.beat(held=())
    assert len(rig.hub.calls) == 1


def test_a_call_that_is_named_or_not_told_of_goes_on() -> None:
    """A worker of an older version names none; one silent beat in between changes nothing."""
    rig, _, worker, opened = a_running_call(strict=True)
    for _ in range(5):
        worker.beat()
    for _ in range(5):
        worker.beat(held=())
        worker.beat(held=holding(opened))
    assert len(rig.hub.calls) == 1


def test_an_unnamed_call_ends_the_broker_of_a_test() -> None:
    """It is a defect of one of our programs, so tests must not pass over it."""
    _, _, worker, _ = a_running_call(strict=True)
    worker.beat(held=())
    worker.beat(held=())
    with pytest.raises(AssertionError, match="does not name"):
        worker.beat(held=())


def test_an_unnamed_call_is_retried_where_its_policy_says_so() -> None:
    """As if its worker had died."""
    _, client, worker, _ = a_running_call(recovery="policy")
    for _ in range(3):
        worker.beat(held=())
    assert only(client.got(frames.Retry)).attempt == 1


@pytest.mark.parametrize("state", ["cancelled", "done", "read"])
def test_a_call_whose_report_was_refused_ends_with_its_tail(state: str) -> None:
    """Its ENDED was too large. The place is free at once; whoever still reads gets the tail."""
    rig, client, worker, opened = a_running_call()
    if state == "cancelled":
        client.say(frames.Cancel(opened.call, 0))
    elif state == "done":
        client.say(done(opened))
    for _ in range(3):
        worker.beat(held=holding(opened, is_ended=True))
    assert rig.hub.gates.at(opened.provider).running == 0
    if state == "cancelled":
        assert only(client.got(frames.Ended)).finish["kind"] == "aborted"
    elif state == "done":
        assert worker.got(frames.Done) == [done(opened)]
    else:
        client.say(frames.Resume(opened.call, 0, 1))
        assert worker.got(frames.Resume)
        rig.live(5.0, worker)  # there is no report to remind the client of
        assert client.got(frames.Ended) == []
        client.say(done(opened))
    assert len(rig.hub.calls) == 0
    rig.check()


def test_a_tail_that_its_worker_does_not_hold_is_lost() -> None:
    """It was evicted there; its client does not wait until the retention is over."""
    rig, client, worker, opened = a_running_call(strict=True)
    worker.end(opened)
    worker.beat(held=())
    worker.beat(held=holding(opened, is_ended=True))
    for _ in range(2):
        assert client.got(frames.Failed) == []
        worker.beat(held=())
    assert client.failure()["code"] == "STREAM_CLOSED"
    assert rig.count("liveness") == 0


def test_a_report_that_is_late_by_a_beat_changes_nothing() -> None:
    """The heartbeat names the tail before the report is here: the next one is right again."""
    rig, client, worker, opened = a_running_call(strict=True)
    worker.beat(held=holding(opened, is_ended=True))
    worker.end(opened)
    worker.beat(held=holding(opened))
    worker.beat(held=holding(opened, is_ended=True))
    client.say(done(opened))
    assert len(rig.hub.calls) == 0


def test_what_a_worker_holds_for_nobody_is_released() -> None:
    """A tail by DONE, an attempt by CANCEL; not one whose client has not said DONE yet."""
    rig, client, worker, opened = a_running_call(recovery="policy")
    unknown = client.an_open()
    worker.beat(held=holding(unknown))
    assert only(worker.got(frames.Cancel)).call == unknown.call
    worker.beat(held=holding(unknown, is_ended=True))
    assert worker.got(frames.Done) == [done(unknown)]
    worker.end_with(opened, "SERVER")  # attempt 0 is a tail, attempt 1 is offered
    worker.beat(held=holding(opened, is_ended=True))
    assert worker.got(frames.Done) == []
    client.say(done(opened))
    worker.beat(held=holding(opened, is_ended=True))
    assert worker.got(frames.Done) == [done(opened)]
    assert rig.count("attempts_released") == 3


def test_a_call_named_twice_is_one_call() -> None:
    """A worker repeats itself; nothing is released."""
    _, _, worker, opened = a_running_call(strict=True)
    worker.beat(held=holding(opened) * 2)
    assert worker.got(frames.Cancel) == []


# --- calls that a client does not name ----------------------------------------------------------


def test_a_client_is_reminded_of_an_end_until_it_says_done() -> None:
    """Its DONE got lost: at growing pauses, and only while it has a connection."""
    rig, client, worker, opened = a_running_call(strict=True)
    rig.now_s -= 0.5
    worker.end(opened)
    rig.live(8.5, worker)
    assert len(client.got(frames.Ended)) == 4
    for _ in range(4):
        client.say(frames.Probe(1))
        rig.live(0.1, worker)
    client.disconnect()
    rig.live(3.0, worker)
    assert client.got(frames.Ended) == []
    client.reconnect()
    assert client.got(frames.Ended)
    client.say(done(opened))
    assert len(rig.hub.calls) == 0


def test_reminders_of_an_end_become_rare() -> None:
    """A client that speaks and reads slowly is asked at 1, 2, 4, 8 … s."""
    rig, client, worker, opened = a_running_call(strict=True)
    worker.end(opened)
    count = 0
    for _ in range(15):
        client.say(frames.Probe(1))
        rig.live(1.0, worker)
        count += len(client.got(frames.Ended))
    assert 2 <= count <= 4


def test_a_client_that_does_not_hold_a_running_call_loses_it() -> None:
    """It gave the call up while no broker answered: named again, and cancelled in the end."""
    rig, client, worker, opened = a_running_call(strict=True)
    windows = 0
    for _ in range(400):
        client.say(frames.Probe(1))
        rig.live(1.0, worker)
        windows += len(client.got(frames.Window))
        if worker.got(frames.Cancel):
            break
    assert worker.got(frames.Cancel)
    assert windows == 4
    assert rig.count("calls_unclaimed") == 1
    worker.end(opened, finish={"kind": "aborted"})
    assert len(rig.hub.calls) == 0


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_client_that_names_its_calls_or_stands_still_keeps_them(is_silent: bool) -> None:
    """A quiet stream is restated every 30 s; a stopped process says nothing at all."""
    rig, client, worker, opened = a_running_call(strict=True)
    for second in range(900):
        if not is_silent and second % 30 == 0:
            client.say(frames.Resume(opened.call, 0, 0))
        rig.live(1.0, worker)
    assert len(rig.hub.calls) == 1
    assert rig.count("calls_unclaimed") == 0


def test_a_client_that_finished_and_waits_for_its_worker_is_not_asked() -> None:
    """It has said DONE; the worker's report is what is missing."""
    rig, client, worker, opened = a_running_call(strict=True)
    client.say(done(opened))
    for _ in range(100):
        client.say(frames.Probe(1))
        rig.live(1.0, worker)
        assert client.got(frames.Window) == []


def test_an_adopted_failure_that_no_client_names_is_decided() -> None:
    """Whether it is retried only its client knows, and that one has forgotten it."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    opened = client.an_open(recovery="policy")
    client.hello()
    worker.register("serving", calls=(held(opened, client, is_ended=True),))
    worker.ready("p", policy=NORMAL)
    worker.end_with(opened, "SERVER")
    for _ in range(29):
        client.say(frames.Probe(1))
        rig.live(1.0, worker)
        if client.got(frames.Ended):
            break
    assert client.got(frames.Ended)
    assert the_call(rig).is_undecided is False


# --- calls that nobody reads --------------------------------------------------------------------


def test_a_cancel_is_repeated_until_the_worker_reports_the_end() -> None:
    """Once a second."""
    rig, client, worker, opened = a_running_call(strict=True)
    client.say(frames.Cancel(opened.call, 0))
    rig.live(4.5, worker)
    assert 3 <= len(worker.got(frames.Cancel)) <= 4
    worker.end(opened, finish={"kind": "aborted"})
    rig.live(2.0, worker)
    assert worker.got(frames.Cancel) == []


def test_a_detached_call_has_a_deadline() -> None:
    """Nobody attaches, and the provider never ends: its place is freed in the end."""
    rig, client, worker, opened = a_running_call(strict=True, detachable=True)
    client.die()
    assert only(worker.got(frames.Window)).window_chunks == 0
    the_call(rig)
    assert rig.hub.deadlines.at_s((Timer.DETACHED, opened.call)) == rig.now_s + DETACHED_S
    rig.now_s += DETACHED_S
    rig.hub.deadlines.clear((Timer.LEASE, worker.generation))
    rig.tick()
    assert only(worker.got(frames.Cancel)).call == opened.call
    assert rig.count("detached_over") == 1
    worker.end(opened, finish={"kind": "aborted"})
    assert len(rig.hub.calls) == 0
    assert rig.hub.deadlines.at_s((Timer.DETACHED, opened.call)) is None


# --- what cannot be, and is repaired ------------------------------------------------------------


def a_detached_call_without_a_deadline(rig: Rig, client: RigClient, opened: frames.Open) -> None:
    client.die()
    rig.hub.deadlines.clear((Timer.DETACHED, opened.call))


def an_end_without_a_deadline(rig: Rig, client: RigClient, opened: frames.Open) -> None:
    rig.hub.deadlines.clear((Timer.QUEUE, opened.call))
    rig.hub.deadlines.clear((Timer.RETENTION, opened.call))
    rig.hub.deadlines.clear((Timer.BACKOFF, opened.call))
    del client


def a_queued_call_with_a_free_place(rig: Rig, client: RigClient, opened: frames.Open) -> None:
    gate = rig.hub.gates.at(opened.provider)
    client.open()
    gate.running -= 1  # as if a place had been given back and nobody woken


def a_client_without_a_deadline(rig: Rig, client: RigClient, opened: frames.Open) -> None:
    client.disconnect()
    rig.hub.deadlines.clear((Timer.CLIENT, client.id))
    del opened


@pytest.mark.parametrize(
    ("defect", "state"),
    [
        (a_detached_call_without_a_deadline, "running"),
        (an_end_without_a_deadline, "queued"),
        (an_end_without_a_deadline, "ended"),
        (an_end_without_a_deadline, "backoff"),
        (a_queued_call_with_a_free_place, "running"),
        (a_client_without_a_deadline, "running"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_what_waits_for_nothing_is_reported_and_repaired(
    defect: Any, state: str, *, strict: bool
) -> None:
    """Within a second; a broker that runs in a test ends instead."""
    rig, client, worker, opened = a_running_call(
        strict=strict, detachable=state == "running", recovery="policy"
    )
    if state == "queued":
        opened = client.open()
    elif state == "ended":
        worker.end(opened)
    elif state == "backoff":
        worker.end_with(opened, "SERVER")
    defect(rig, client, opened)
    if strict:
        with pytest.raises(AssertionError):
            rig.live(1.1, worker)
        return
    rig.live(1.1, worker)
    assert rig.count("liveness") == 1
    rig.live(1.1, worker)
    assert rig.count("liveness") == 1


def test_an_idle_broker_sleeps() -> None:
    """There is nothing to look at, so no second wakes it."""
    rig, client, worker, opened = a_running_call(strict=True)
    worker.end(opened)
    client.say(done(opened))
    rig.live(2.0, worker)
    assert rig.hub.deadlines.at_s((Timer.LOOK, None)) is None
