"""How the broker ends."""

from __future__ import annotations

from trunkline_broker.core.events import ConfigReplaced, StopRequested
from trunkline_protocol import frames

from tests.support.broker_rig import NORMAL, Rig, RigClient, RigWorker, a_pool, done, only


def a_rig(**pool: object) -> tuple[Rig, RigClient, RigWorker]:
    rig = Rig(a_pool(**pool))
    worker = rig.a_worker(policy=NORMAL)
    return rig, rig.a_client(), worker


def test_an_idle_broker_stops_its_workers_and_exits_when_they_have() -> None:
    """Clients are told."""
    rig, client, worker = a_rig()
    rig.tell(StopRequested(drain_s=10.0))
    assert client.got(frames.Stopping) == [frames.Stopping("the broker is stopping")]
    assert worker.got(frames.Bye)
    assert rig.signals() == [(worker.generation, "TERM")]
    assert not rig.has_exited()
    worker.exit("status 0")
    assert rig.has_exited()
    assert rig.spawned() == []
    rig.tick()
    assert not rig.has_exited()  # said once


def test_a_broker_without_workers_exits_at_once() -> None:
    """There is nothing to wait for."""
    rig = Rig(a_pool(replicas=0))
    rig.tell(StopRequested())
    assert rig.has_exited()


def test_running_calls_may_end_and_waiting_ones_are_refused() -> None:
    """A call in backoff ends as its last attempt did; retries are over."""
    rig, client, worker = a_rig(concurrency=2)
    retried = client.open(recovery="policy")
    worker.end_with(retried, "SERVER")
    first, second = client.open(recovery="policy"), client.open()
    waiting = client.open()
    rig.tell(StopRequested(drain_s=10.0))
    failures = {frame.call: frame.failure["code"] for frame in client.got(frames.Failed)}
    assert failures == {waiting.call: "STOPPING", retried.call: "SERVER"}
    worker.end_with(first, "SERVER")
    assert client.got(frames.Ended)
    worker.end(second)
    assert rig.signals() == []
    client.say(done(first, second))
    assert rig.signals() == [(worker.generation, "TERM")]
    rig.check()


def test_at_the_deadline_running_calls_end() -> None:
    """And workers that do not leave are killed."""
    rig, client, worker = a_rig(stop_s=2.0)
    client.open()
    tail = client.open()
    detached = rig.a_client()
    detached.open()
    detached.die()
    worker.end(tail)
    rig.tell(StopRequested(drain_s=3.0))
    rig.live(3.0, worker)
    codes = sorted(frame.failure["code"] for frame in client.got(frames.Failed))
    assert codes == ["STREAM_CLOSED", "TRANSPORT"]
    assert rig.signals() == [(worker.generation, "TERM")]
    rig.wait(2.0)
    assert rig.signals() == [(worker.generation, "KILL")]
    rig.wait(5.0)
    assert rig.has_exited()


def test_a_second_request_waits_no_longer() -> None:
    """As an impatient operator expects."""
    rig, client, worker = a_rig()
    client.open()
    rig.tell(StopRequested(drain_s=100.0))
    assert client.got(frames.Failed) == []
    rig.tell(StopRequested(drain_s=100.0))
    assert client.failure()["code"] == "TRANSPORT"
    assert rig.signals() == [(worker.generation, "TERM")]
    rig.tell(StopRequested(drain_s=100.0))
    assert rig.signals() == []


def test_a_restart_touches_no_worker() -> None:
    """The next broker takes over what runs."""
    rig, client, worker = a_rig()
    client.open()
    rig.tell(StopRequested(restart=True))
    assert only(client.got(frames.Stopping)).restart
    assert rig.has_exited()
    assert rig.signals() == []
    assert worker.got(frames.Bye) == []
    rig.tell(StopRequested(restart=True))
    assert not rig.has_exited()


def test_a_worker_that_dies_during_the_drain_is_not_replaced() -> None:
    """Nothing new is started."""
    rig, client, worker = a_rig()
    client.open()
    rig.tell(StopRequested(drain_s=100.0))
    worker.exit()
    assert client.failure()["code"] == "TRANSPORT"
    assert rig.has_exited()


def test_a_stopping_broker_starts_no_worker() -> None:
    """Neither for a slot that waits to be restarted, nor after settling, reload or swap."""
    rig = Rig(a_pool("p", replicas=2), a_pool("q"))
    first, second, other = [rig.a_worker(spawn=spawn) for spawn in rig.spawned()]
    client = rig.a_client()
    opened = client.open()
    client.query("swap", {"pool": "p"})
    new = rig.spawn(only(rig.spawned()))
    other.exit()
    rig.tell(StopRequested(drain_s=10.0))
    new.register()
    new.ready("p")
    assert client.answer()["code"] == "SWAP_FAILED"
    assert "stopping" in client.answer()["message"]
    rig.live(1.0, first, second, new)
    rig.tell(ConfigReplaced((*rig.spec.pools, a_pool("z"))))
    assert rig.spawned() == []
    first.end(opened)
    client.say(done(opened))
    for worker in (first, second, new):
        worker.exit("status 0")
    assert rig.has_exited()
