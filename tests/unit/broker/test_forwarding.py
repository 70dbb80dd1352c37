"""Frames that pass between the two parties of a call, and answers where there is no call."""

from __future__ import annotations

from trunkline_broker.core.clients import POSITIONS_AT_ONCE
from trunkline_protocol import frames
from trunkline_protocol.ids import StreamKey

from tests.support.broker_rig import NORMAL, Rig, RigClient, RigWorker, a_pool, done, only, restated

KEY = StreamKey(b"newkey--")


def a_rig(**pool: object) -> tuple[Rig, RigClient, RigWorker]:
    rig = Rig(a_pool(**pool))
    worker = rig.a_worker(policy=NORMAL)
    return rig, rig.a_client(), worker


def a_credit(opened: frames.Open, attempt: int = 0) -> frames.Credit:
    return frames.Credit(opened.call, attempt, 3, 2, 20)


def test_positions_pass_to_the_worker() -> None:
    """Only those of the owner, for the attempt that runs."""
    rig, client, worker = a_rig()
    opened = client.open()
    client.say(a_credit(opened))
    assert worker.got(frames.Credit) == [a_credit(opened)]
    resume = frames.Resume(opened.call, 0, 1)
    client.say(resume)
    assert worker.got(frames.Resume) == [resume]
    client.say(a_credit(opened, attempt=1))
    rig.a_client().say(a_credit(opened))
    assert worker.got(frames.Credit) == []
    assert (rig.count("stale_attempt"), rig.count("foreign_call")) == (1, 1)


def test_a_flood_of_positions_does_not_reach_the_worker() -> None:
    """The same again is held back for a moment, ever new ones beyond a rate; others go on."""
    rig, client, worker = a_rig()
    opened, other = client.open(), client.open()
    client.say(a_credit(opened))
    assert worker.got(frames.Credit)
    for _ in range(5):
        client.say(a_credit(opened))
        assert not worker.got(frames.Credit)
    client.say(a_credit(other))
    assert worker.got(frames.Credit)
    assert rig.count("positions_held_back") == 5
    rig.wait(0.06)
    client.say(a_credit(opened))
    assert worker.got(frames.Credit)
    passed = 0
    for number in range(int(POSITIONS_AT_ONCE) + 100):
        client.say(frames.Credit((opened if number % 2 else other).call, 0, number, number, 0))
        passed += len(worker.got(frames.Credit))
    assert passed <= POSITIONS_AT_ONCE
    honest = rig.a_client()
    second = honest.open()
    honest.say(a_credit(second))
    assert worker.got(frames.Credit)
    rig.wait(0.01)
    client.say(frames.Resume(opened.call, 0, 1))
    assert worker.got(frames.Resume)


def test_positions_of_calls_that_nobody_runs() -> None:
    """Waiting: QUEUED again. Unknown and over: LOST. Failed: the failure again."""
    rig, client, worker = a_rig(concurrency=1)
    running = client.open()
    waiting = client.open()
    client.say(a_credit(waiting))
    assert client.got(frames.Queued)
    client.say(a_credit(client.an_open()))
    assert client.got(frames.Lost)
    worker.end(running)
    client.say(done(running))
    client.say(a_credit(running))
    assert client.got(frames.Lost)
    other = rig.a_client()
    other.say(a_credit(running))
    assert other.got(frames.Lost)
    failed = client.open("nobody")
    client.say(a_credit(failed))
    assert client.got(frames.Failed)


def test_restate_passes_positions_and_repeats_the_end() -> None:
    """What got lost with a connection is said again."""
    _, client, worker = a_rig(concurrency=1)
    opened = client.open()
    waiting = client.open()
    client.say(restated(opened))
    credit = only(worker.got(frames.Credit))
    assert (credit.received, credit.consumed, credit.consumed_bytes) == (4, 2, 20)
    client.say(restated(waiting))
    assert client.got(frames.Queued)
    worker.end(opened)
    client.say(restated(opened))
    assert client.got(frames.Ended)
    client.say(restated(client.an_open()))
    assert client.got(frames.Lost)


def test_restate_of_a_failed_attempt_repeats_the_retry() -> None:
    """Before its delay is over, and after."""
    rig, client, worker = a_rig()
    opened = client.open(recovery="policy")
    worker.end_with(opened, "SERVER")
    client.say(restated(opened))
    assert only(client.got(frames.Retry)).delay_ms == 1000.0
    rig.wait(1.0)
    client.say(restated(opened))
    assert only(client.got(frames.Retry)).delay_ms == 0.0
    assert client.got(frames.RetryStarted)


def test_cancel_in_every_state() -> None:
    """Running: to the worker. Waiting, ended, unknown: answered here."""
    rig, client, worker = a_rig(concurrency=1)
    running = client.open()
    waiting = client.open()
    client.say(frames.Cancel(waiting.call, 0))
    assert only(client.got(frames.Ended)).finish["kind"] == "aborted"
    client.say(frames.Cancel(running.call, 0))
    assert only(worker.got(frames.Cancel)).call == running.call
    assert client.got(frames.Ended) == []
    worker.end(running, finish={"kind": "aborted"})
    assert only(client.got(frames.Ended)).finish["kind"] == "aborted"
    ended = client.open()
    worker.end(ended)
    client.say(frames.Cancel(ended.call, 0))
    assert only(client.got(frames.Ended)).finish["kind"] == "aborted"
    assert worker.got(frames.Done)
    client.say(frames.Cancel(ended.call, 0))
    assert client.got(frames.Ended)
    again = client.open()
    other = rig.a_client()
    other.say(frames.Cancel(again.call, 0))
    assert other.got(frames.Ended)
    assert worker.got(frames.Cancel) == []
    client.say(waiting)  # a late repetition of its OPEN starts nothing
    assert client.failure()["code"] == "TRANSPORT"
    rig.check()


def test_done_goes_to_each_worker_once() -> None:
    """Several calls in one frame; what is not the sender's or not over is counted."""
    rig = Rig(a_pool(replicas=2, concurrency=3))
    one, two = (rig.a_worker(spawn=spawn) for spawn in rig.spawned())
    client, other = rig.a_client(), rig.a_client()
    first, second, third = (client.open() for _ in range(3))
    waiting = client.open()
    for worker in (one, two):
        for opened in (first, second, third):
            worker.end(opened)
    client.say(done(first, second, third, waiting, client.an_open()))
    told = [*one.got(frames.Done), *two.got(frames.Done)]
    refs = [ref for frame in told for ref in frame.calls]
    assert {ref.call for ref in refs} == {first.call, second.call, third.call}
    assert len(told) == 2
    fourth = client.open()
    other.say(done(fourth))
    client.say(frames.Done((frames.CallRef(fourth.call, 5),)))
    assert rig.count("foreign_call") == 1
    assert rig.count("stale_attempt") == 1
    rig.check()


def test_done_early_is_counted() -> None:
    """A client can't have received what still waits."""
    rig, client, _ = a_rig(concurrency=1)
    client.open()
    client.say(done(client.open()))
    assert rig.count("done_early") == 1


def test_done_of_an_attempt_that_is_retried() -> None:
    """Its worker forgets the tail; said twice, or after its worker is gone, it is harmless."""
    rig, client, worker = a_rig()
    opened = client.open(recovery="policy")
    worker.end_with(opened, "SERVER")
    client.say(done(opened))
    assert only(worker.got(frames.Done)).calls == done(opened).calls
    client.say(done(opened))
    assert rig.count("stale_attempt") == 1
    opened = client.open(recovery="policy")
    worker.exit()
    client.say(done(opened))
    assert not rig.effects


def test_what_was_sent_is_passed_to_each_client() -> None:
    """One frame each; unknown calls are counted, detached ones have nobody to tell."""
    rig, client, worker = a_rig()
    other = rig.a_client()
    first, second, third = client.open(), client.open(), other.open()
    detached = other.open(detachable=True)
    gone = rig.a_client()
    detached = gone.open(detachable=True)
    gone.die()
    worker.beat(
        *(frames.Progress(f.call, 0, 9) for f in (first, second, third, detached)),
        frames.Progress(first.call, 3, 9),
        frames.Progress(client.an_open().call, 0, 9),
    )
    assert [entry.call for entry in only(client.got(frames.Sent)).calls] == [
        first.call,
        second.call,
    ]
    assert len(only(other.got(frames.Sent)).calls) == 1
    assert rig.count("sent_unknown") == 2


def test_a_detached_call_is_attached_with_its_token() -> None:
    """By another client, or by its owner under a new key; never without the token."""
    rig, client, worker = a_rig()
    opened = client.open(detachable=True)
    token = only(client.got(frames.Accepted)).token
    assert token is not None
    other = rig.a_client()
    other.say(frames.Attach(opened.call, b"wrong", KEY))
    assert rig.count("attach_refused") == 1
    assert other.got(frames.Lost)
    other.say(frames.Attach(opened.call, token, KEY))
    assert client.failure()["code"] == "ABORTED"
    attach = only(worker.got(frames.Attach))
    assert (attach.client, attach.window_chunks, attach.stream_key) == (other.id, 1024, KEY)
    rig.check()
    snapshot = frames.Snapshot(opened.call, 0, 7, b"blocks")
    worker.say(snapshot)
    assert other.got(frames.Snapshot) == [snapshot]
    assert only(other.got(frames.Window)).window_chunks == 1024
    other.say(a_credit(opened))
    assert worker.got(frames.Credit)
    client.say(a_credit(opened))
    assert rig.count("foreign_call") == 1
    client.die()
    assert worker.got(frames.Cancel) == []
    other.die()
    assert worker.got(frames.Window)[-1] == frames.Window(opened.call, 0, 0, 0)
    other.reconnect()
    other.say(a_credit(opened))
    assert other.got(frames.Lost)
    third = rig.a_client()
    third.say(frames.Attach(opened.call, token, KEY))
    assert worker.got(frames.Attach)
    rig.check()


def test_attach_to_what_is_not_there() -> None:
    """An unknown call and one that waits are LOST for whoever asks."""
    rig, client, worker = a_rig(concurrency=1)
    client.open()
    waiting = client.open(detachable=True)
    for opened in (waiting, client.an_open()):
        client.say(frames.Attach(opened.call, b"", KEY))
        assert client.got(frames.Lost)
    worker.say(frames.Snapshot(waiting.call, 0, 7))
    assert rig.count("foreign_call") == 1
