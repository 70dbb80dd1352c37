"""How calls end: reports, deaths, retries, retention."""

from __future__ import annotations

import pytest
from trunkline_protocol import frames

from tests.support.broker_rig import NORMAL, Rig, RigClient, RigWorker, a_pool, done, only


def a_rig(**pool: object) -> tuple[Rig, RigClient, RigWorker]:
    rig = Rig(a_pool(**pool))
    worker = rig.a_worker(policy=NORMAL)
    return rig, rig.a_client(), worker


def test_an_end_is_passed_on_and_forgotten_with_done() -> None:
    """The worker hears DONE and the broker keeps nothing."""
    rig, client, worker = a_rig()
    opened = client.open()
    worker.end(opened, usage={"inputTokens": 1, "outputTokens": 2})
    ended = only(client.got(frames.Ended))
    assert ended.usage == {"inputTokens": 1, "outputTokens": 2}
    worker.end(opened)
    assert client.got(frames.Ended)
    client.say(done(opened))
    assert only(worker.got(frames.Done)).calls == done(opened).calls
    assert len(rig.hub.calls) == 0
    worker.end(opened)
    assert rig.count("ended_unknown") == 1
    rig.check()


def test_a_report_of_another_worker_or_attempt_is_counted() -> None:
    """It ends nothing."""
    rig = Rig(a_pool(replicas=2))
    one, two = (rig.a_worker(spawn=spawn) for spawn in rig.spawned())
    client = rig.a_client()
    opened = client.open()
    two.end(opened)
    one.say(frames.Ended(opened.call, 7, 1, {"kind": "stop"}))
    assert rig.count("ended_unknown") == 2
    assert client.got(frames.Ended) == []


def test_done_may_overtake_the_end() -> None:
    """The lane's finish can arrive before the control frame: the end then closes the call."""
    rig, client, worker = a_rig()
    opened = client.open()
    client.say(done(opened))
    assert worker.got(frames.Done) == []
    worker.end(opened)
    assert only(worker.got(frames.Done)).calls == done(opened).calls
    assert client.got(frames.Ended) == []
    assert len(rig.hub.calls) == 0
    rig.check()


def test_a_workers_death_ends_its_calls_at_once() -> None:
    """Running: TRANSPORT. Ended with a tail on the way: STREAM_CLOSED. Cancelled: aborted."""
    rig, client, worker = a_rig()
    running, tail, cancelled, taken = (client.open() for _ in range(4))
    worker.end(tail)
    client.say(frames.Cancel(cancelled.call, 0))
    client.say(done(taken))
    worker.exit("signal 9")
    failures = {frame.call: frame.failure for frame in client.got(frames.Failed)}
    assert failures[running.call]["code"] == "TRANSPORT"
    assert failures[running.call]["message"] == "adapter worker exited: signal 9"
    assert failures[tail.call]["code"] == "STREAM_CLOSED"
    assert len(failures) == 2
    assert only(client.got(frames.Ended)).finish["kind"] == "aborted"
    assert len(rig.hub.calls) == 0
    client.say(running)
    assert client.got(frames.Failed)
    rig.check()


def test_a_workers_death_is_retried_if_the_policy_says_so() -> None:
    """The next attempt goes to whoever serves then."""
    rig, client, worker = a_rig()
    opened = client.open(recovery="policy")
    worker.exit()
    retry = only(client.got(frames.Retry))
    assert retry.failure["code"] == "TRANSPORT"
    rig.wait(0.2)
    new = rig.a_worker(spawn=only(rig.spawned()))
    rig.live(0.8, new)
    client.say(client.an_open(call=opened.call, attempt=1, recovery="policy"))
    assert only(new.got(frames.Start)).attempt == 1


def test_a_failure_that_the_policy_does_not_retry_is_the_end() -> None:
    """As is any failure of a call that did not ask for recovery."""
    _, client, worker = a_rig()
    opened = client.open(recovery="policy")
    worker.end_with(opened, "AUTH")
    assert client.got(frames.Ended)
    opened = client.open()
    worker.end_with(opened, "SERVER")
    assert client.got(frames.Ended)


def test_an_offered_attempt_that_nobody_opens_ends_as_the_last_one() -> None:
    """After the retention time."""
    rig, client, worker = a_rig()
    opened = client.open(recovery="policy")
    worker.end_with(opened, "SERVER")
    rig.live(31.5, worker)
    assert client.failure()["code"] == "SERVER"
    assert len(rig.hub.calls) == 0


def test_cancel_in_backoff_starts_nothing() -> None:
    """Neither before nor after the retry was offered."""
    rig, client, worker = a_rig()
    for seconds in (0.0, 1.5):
        opened = client.open(recovery="policy")
        worker.end_with(opened, "SERVER")
        rig.live(seconds, worker)
        client.say(frames.Cancel(opened.call, 0))
        assert only(client.got(frames.Ended)).finish["kind"] == "aborted"
        rig.live(40.0, worker)
        assert client.got(frames.RetryStarted) == []
        assert len(rig.hub.calls) == 0
    rig.check()


def test_a_cancelled_attempt_is_not_retried() -> None:
    """Its worker's report closes it, whatever the report says."""
    rig, client, worker = a_rig()
    opened = client.open(recovery="policy")
    client.say(frames.Cancel(opened.call, 0))
    worker.end_with(opened, "SERVER")
    assert client.got(frames.Ended)
    assert len(rig.hub.calls) == 0


def test_an_ended_call_is_kept_for_the_retention_time_after_the_last_word() -> None:
    """A slow client that still asks keeps it; then the worker may forget it too."""
    rig, client, worker = a_rig()
    opened = client.open()
    worker.end(opened)
    rig.live(20.0, worker)
    client.say(frames.Resume(opened.call, 0, 1))
    assert worker.got(frames.Resume)
    rig.live(20.0, worker)
    assert len(rig.hub.calls) == 1
    rig.live(11.0, worker)
    assert len(rig.hub.calls) == 0
    assert worker.got(frames.Done)
    client.say(frames.Resume(opened.call, 0, 1))
    assert client.got(frames.Lost)


def test_a_dead_client_leaves_nothing() -> None:
    """Running attempts are cancelled, the rest is forgotten, detachable ones go on."""
    rig, client, worker = a_rig(concurrency=3)
    running = client.open()
    ended = client.open()
    detachable = client.open(detachable=True)
    worker.end(ended)
    retried = client.open(recovery="policy")
    worker.end_with(retried, "SERVER")
    filler = client.open()
    queued = client.open()
    assert client.got(frames.Queued)
    client.die()
    assert {f.call for f in worker.got(frames.Cancel)} == {running.call, filler.call}
    assert only(worker.got(frames.Done)).calls == done(ended).calls
    assert rig.hub.calls.get(queued.call) is None
    worker.end(running, finish={"kind": "aborted"})
    worker.end(filler, finish={"kind": "aborted"})
    assert [call.id for call in rig.hub.calls] == [detachable.call]
    worker.end(detachable)
    rig.check()
    rig.live(31.0, worker)
    assert len(rig.hub.calls) == 0
    rig.check()


def test_what_a_dead_client_left_is_ended_by_a_dead_worker_too() -> None:
    """Nobody is told, and nothing stays."""
    rig, client, worker = a_rig()
    client.open()
    client.die()
    worker.exit()
    assert len(rig.hub.calls) == 0


@pytest.mark.parametrize("method", ["on_retention_over", "on_backoff_over"])
def test_a_deadline_without_its_call_is_a_defect(method: str) -> None:
    """Whoever forgets a call clears its deadlines."""
    rig, client, _ = a_rig()
    with pytest.raises(AssertionError):
        getattr(rig.broker._endings, method)(client.an_open().call, 0.0)
    with pytest.raises(AssertionError):
        rig.broker._endings.on_offer_over(client.an_open().call)
