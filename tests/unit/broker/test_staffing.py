"""From spawn to exit: restarts, leases, draining, stopping."""

from __future__ import annotations

import pytest
from trunkline_broker.core.effects import Log
from trunkline_broker.core.events import ProcessSpawned, SpawnFailed
from trunkline_broker.core.specs import RestartSpec
from trunkline_protocol import frames
from trunkline_protocol.ids import Epoch, Generation, PoolName

from tests.support.broker_rig import NORMAL, Rig, RigWorker, a_pool, adapters, only, status_of

UNKNOWN = Generation(Epoch(1000), 99)


def test_every_slot_is_filled_at_the_start() -> None:
    """With a fresh token and generation each."""
    rig = Rig(a_pool("p", replicas=2), a_pool("q"))
    spawns = rig.spawned()
    assert [(spawn.pool, spawn.slot) for spawn in spawns] == [("p", 0), ("p", 1), ("q", 0)]
    assert len({spawn.token for spawn in spawns}) == 3
    assert len({spawn.generation for spawn in spawns}) == 3
    assert not any(spawn.standby for spawn in spawns)
    assert len(spawns[0].token) == 32


def test_a_dead_worker_is_restarted_with_growing_delay() -> None:
    """Calls for its route wait; its keys stay listed."""
    rig = Rig(a_pool(restart=RestartSpec(3, 60.0, 1.0, 10.0)))
    worker = rig.a_worker()
    client = rig.a_client()
    worker.exit("signal 9")
    client.open()
    assert only(client.got(frames.Queued)).reason == "starting"
    client.query("models")
    assert client.answer() == ["p"]
    assert rig.wait(0.9) == []
    rig.wait(0.1)
    second = rig.a_worker(spawn=only(rig.spawned()))
    assert second.got(frames.Start)
    assert client.got(frames.Event)
    second.exit()
    rig.wait(1.9)
    assert rig.spawned() == []
    rig.wait(0.1)
    assert rig.spawned()
    assert status_of(rig)["pools"][0]["slots"][0]["restarts"] == 2


def test_the_log_says_where_a_hanging_worker_hung() -> None:
    """The innermost call of the stack that it left; of any other one its last line."""
    stack = ("Thread 0x1 (most recent call first):", '  File "a.py", line 3 in slow')
    outer = ('  File "pull.py", line 9 in run', '  File "x", line 1 in main')
    for tail, said in (
        ((*stack, *outer), 'File "a.py", line 3 in slow'),
        (stack, 'File "a.py", line 3 in slow'),
        ((*stack, "[trunkline] bye"), "[trunkline] bye"),
        (outer, 'File "pull.py", line 9 in run'),
        ((), ""),
    ):
        rig = Rig()
        worker = rig.a_worker()
        rig.wait(3.5)
        assert rig.signals() == [(worker.generation, "KILL")]
        worker.exit("signal 9", *tail)
        (log,) = [log for log in rig.of(Log) if log.event == "worker_exited"]
        assert log.fields["said"] == said
        assert log.fields["why"] == "no frame for 3 s"


def test_too_many_exits_take_the_route_down() -> None:
    """With the reason and the last lines, for those who wait, for new calls, in the status."""
    rig = Rig(a_pool(restart=RestartSpec(1, 60.0, 0.1, 1.0)))
    worker = rig.a_worker()
    client = rig.a_client()
    worker.exit()
    rig.wait(0.1)
    second = rig.spawn(only(rig.spawned()))
    client.open()
    second.register()
    second.exit("status 1", "Traceback:", '  File "/home/a/b.py", line 3', "ImportError: nope")
    failure = client.failure()
    assert failure["code"] == "NO_ADAPTER"
    assert "/home/a" not in failure["message"]  # a stack is for the log alone
    (down,) = [log for log in rig.of(Log) if log.event == "slot_down"]
    assert len(down.fields["output"]) == 3
    assert "more than 1 times in 60 s" in failure["message"]
    assert "status 1" in failure["message"]
    assert "ImportError: nope" in failure["message"]
    assert client.got(frames.Event)
    client.open()
    assert client.failure()["code"] == "NO_ADAPTER"
    client.query("models")
    assert client.answer() == []
    assert status_of(rig)["routes"][0]["state"] == "down"
    rig.wait(59.0)
    assert rig.spawned() == []


def test_a_slot_that_was_given_up_is_tried_again() -> None:
    """After a minute, then two, four …; its route stays down until the worker serves."""
    rule = RestartSpec(intensity=0, period_s=60.0)
    rig = Rig(a_pool(restart=rule))
    worker = rig.a_worker()
    client = rig.a_client()
    worker.exit()
    for pause_s in (60.0, 120.0, 240.0):
        slot = status_of(rig)["pools"][0]["slots"][0]
        assert (slot["state"], slot["retryInMs"]) == ("down", pause_s * 1000)
        rig.wait(pause_s - 0.1)
        assert rig.spawned() == []
        rig.wait(0.1)
        again = rig.spawn(only(rig.spawned()))
        client.open()
        assert client.failure()["code"] == "NO_ADAPTER"
        if pause_s < 240.0:
            again.exit("status 1")
    again.register()
    again.ready("p")
    slot = status_of(rig)["pools"][0]["slots"][0]
    assert (slot["state"], slot["retryInMs"], slot["reason"]) == ("serving", None, None)
    client.open()
    assert again.got(frames.Start)
    rig.live(3601.0, again)
    again.exit()
    assert status_of(rig)["pools"][0]["slots"][0]["retryInMs"] == 60_000
    rig.check()


def test_a_pool_that_was_drained_is_not_tried_again() -> None:
    """Its operator asked for that."""
    rig = Rig(a_pool())
    worker = rig.a_worker()
    admin = rig.a_client()
    admin.query("drain", {"pool": "p"})
    worker.exit()
    assert status_of(rig)["pools"][0]["slots"][0]["retryInMs"] is None
    rig.wait(7200.0)
    assert rig.spawned() == []


def test_a_worker_that_never_was_ready_takes_down_nothing_but_its_name() -> None:
    """There are no routes to lose, and nobody is told of a change."""
    rig = Rig(a_pool(restart=RestartSpec(0, 60.0, 0.1, 1.0)))
    client = rig.a_client()
    spawn = next(iter(rig.hub.workers))
    rig.tell(SpawnFailed(spawn.pool, 0, spawn.generation, "no such interpreter"))
    assert client.got(frames.Event) == []
    client.open()
    assert "no such interpreter" in client.failure()["message"]


def test_late_reports_of_replaced_workers_are_counted() -> None:
    """A late exit does not restart the worker that took the place."""
    rig = Rig()
    rig.tell(ProcessSpawned(PoolName("p"), 0, UNKNOWN, 5))
    worker = RigWorker(rig, "p", 0, UNKNOWN)
    worker.exit()
    assert rig.count("exit_of_unknown_worker") == 1
    assert rig.spawned() == []


def test_a_worker_that_is_not_ready_in_time_is_stopped_and_replaced() -> None:
    """TERM, then KILL after `stop_s`; it counts as an exit."""
    rig = Rig(a_pool(start_timeout_s=10.0, stop_s=2.0))
    worker = rig.spawn(only(rig.spawned()))
    worker.register()
    rig.wait(10.0)
    assert rig.signals() == [(worker.generation, "TERM")]
    assert worker.got(frames.Bye)
    rig.wait(2.0)
    assert rig.signals() == [(worker.generation, "KILL")]
    worker.exit("signal 9")
    rig.wait(0.2)
    assert rig.spawned()
    assert "not ready within 10 s; signal 9" in status_of(rig)["pools"][0]["slots"][0]["lastExit"]


def test_a_silent_worker_is_killed_and_its_calls_end() -> None:
    """Any frame renews the lease; the lease starts with READY."""
    rig = Rig()
    worker = rig.a_worker()
    client = rig.a_client()
    opened = client.open()
    rig.wait(2.5)
    worker.end(opened)
    rig.wait(2.5)
    assert rig.signals() == []
    client.open()
    rig.wait(0.6)
    assert rig.signals() == [(worker.generation, "KILL")]
    failures = {frame.failure["code"] for frame in client.got(frames.Failed)}
    assert failures == {"TRANSPORT", "STREAM_CLOSED"}
    worker.reconnect()
    assert only(worker.got(frames.Refused)).code == "SUPERSEDED"
    worker.exit()
    rig.wait(0.2)
    assert rig.spawned()


def test_a_killed_worker_that_does_not_die_is_given_up() -> None:
    """Its slot must not stay empty for it."""
    rig = Rig()
    rig.a_worker()
    rig.wait(3.0)
    rig.wait(5.0)
    rig.wait(0.2)
    assert len(rig.hub.workers) == 1


def test_a_broker_that_was_stopped_kills_nobody() -> None:
    """A late tick first gives the lost time back."""
    rig = Rig()
    worker = rig.a_worker()
    client = rig.a_client()
    client.open()
    rig.now_s += 10.0
    rig.tick(0.0, lateness_s=9.0)
    assert rig.signals() == []
    worker.beat()
    rig.wait(2.9)
    assert rig.signals() == []
    rig.wait(0.2)
    assert rig.signals()
    assert rig.count("late_ticks") == 1


def test_a_late_deadline_of_a_lease_does_not_end_it_at_that_tick() -> None:
    """What the worker sent meanwhile may arrive just after it."""
    rig = Rig()
    worker = rig.a_worker()
    due_s = rig.broker.next_deadline_s()
    assert due_s is not None
    rig.now_s = due_s
    rig.tick(4.0, lateness_s=4.0)
    assert rig.signals() == []
    rig.wait(1.0)
    assert rig.signals() == []
    worker.beat()
    rig.wait(2.9)
    assert rig.signals() == []


def test_a_late_tick_extends_every_deadline() -> None:
    """A queued call does not time out while the broker was stopped."""
    rig = Rig(a_pool(queue_timeout_s=5.0, concurrency=1))
    worker = rig.a_worker()
    client = rig.a_client()
    client.open()
    client.open()
    rig.now_s += 20.0
    rig.tick(0.0, lateness_s=18.0)
    assert client.got(frames.Failed) == []
    worker.beat()


def test_remote_workers_have_a_longer_lease() -> None:
    """Their links may drop; without a process to signal they are forgotten when it ends."""
    rig = Rig(a_pool("x"))
    remote = RigWorker(rig, "far", 0, Generation(Epoch(0), 0))
    remote.pid = None
    remote.register()
    remote.ready("far")
    rig.wait(9.0)
    remote.beat()
    client = rig.a_client()
    client.open("far")
    rig.wait(10.0)
    assert client.failure()["code"] == "TRANSPORT"
    assert rig.signals() == []
    assert client.got(frames.Event)
    client.open("far")
    assert client.failure()["code"] == "NO_ADAPTER"
    assert [pool.spec.name for pool in rig.hub.pools] == ["x"]


def test_a_manual_worker_is_told_but_not_signalled() -> None:
    """Nobody kills what somebody else has started."""
    rig = Rig(a_pool("x"))
    manual = RigWorker(rig, "m", 0, Generation(Epoch(0), 0))
    manual.register()
    manual.ready("m")
    client = rig.a_client()
    client.query("drain", {"pool": "m"})
    assert manual.got(frames.Bye)
    assert rig.signals() == []
    rig.wait(5.0)
    assert [w.generation for w in rig.hub.workers if w.generation == manual.generation] == []
    assert [pool.spec.name for pool in rig.hub.pools] == ["x", "m"]


def test_a_manual_worker_that_leaves_takes_its_pool_along() -> None:
    """A registration dies with its worker; another one in the same pool keeps it."""
    rig = Rig(a_pool("x"))
    first, second = (RigWorker(rig, "m", 0, Generation(Epoch(0), 0)) for _ in range(2))
    for worker in (first, second):
        worker.register()
        worker.ready("m")
    client = rig.a_client()
    first.exit()
    assert client.got(frames.Event) == []
    client.open("m")
    assert second.got(frames.Start)
    second.exit()
    assert client.got(frames.Event)
    assert [pool.spec.name for pool in rig.hub.pools] == ["x"]


def test_a_manual_worker_in_a_configured_pool_is_one_more_replica() -> None:
    """The configured slot is not touched by its coming or going."""
    rig = Rig()
    own = rig.a_worker()
    manual = RigWorker(rig, "p", 0, Generation(Epoch(0), 0))
    manual.register()
    assert rig.hub.workers.get(manual.generation) is not None
    manual.ready("p")
    client = rig.a_client()
    client.open()
    client.open()
    assert manual.got(frames.Start) or own.got(frames.Start)
    manual.exit()
    assert rig.spawned() == []
    client.open()
    assert own.got(frames.Start)


def test_a_worker_that_says_bye_is_replaced() -> None:
    """What it still held ends."""
    rig = Rig()
    worker = rig.a_worker()
    client = rig.a_client()
    client.open()
    worker.say(frames.Bye("done here"))
    assert "it left: done here" in client.failure()["message"]
    worker.say(frames.Bye("again"))
    worker.exit("status 0")
    rig.wait(0.2)
    assert rig.spawned()


def test_draining_twice_keeps_the_first_deadline() -> None:
    """And a draining worker's registrations change nothing."""
    rig = Rig(a_pool(drain_s=10.0))
    worker = rig.a_worker()
    client = rig.a_client()
    client.open()
    client.query("drain", {"pool": "p"})
    assert only(worker.got(frames.Role)).role == "draining"
    rig.live(5.0, worker)
    worker.commit(adapters("p", "x"))
    assert only(worker.got(frames.Role)).role == "draining"
    client.query("models")
    assert client.answer() == []
    rig.live(5.0, worker)
    assert (worker.generation, "TERM") in rig.signals()
    worker.exit("signal 15")
    rig.wait(100.0)
    assert rig.spawned() == []


def test_a_pool_can_be_drained_while_it_starts_or_waits_to_start() -> None:
    """Nothing comes of either."""
    rig = Rig(a_pool("p"), a_pool("q"))
    first, second = [rig.spawn(spawn) for spawn in rig.spawned()]
    second.exit()
    client = rig.a_client()
    client.query("drain", {"pool": "q"})
    client.query("drain", {"pool": "p"})
    assert rig.signals() == [(first.generation, "TERM")]
    first.exit()
    rig.wait(100.0)
    assert rig.spawned() == []


def test_a_swap_in_a_pool_that_is_down_serves_again() -> None:
    """The only way back but a reload."""
    rig = Rig(a_pool(restart=RestartSpec(0, 60.0, 0.1, 1.0)))
    rig.a_worker(policy=NORMAL).exit()
    client = rig.a_client()
    client.query("swap", {"pool": "p"})
    new = rig.a_worker(spawn=only(rig.spawned()))
    client.open()
    assert new.got(frames.Start)


@pytest.mark.parametrize("method", ["on_kill_due", "on_start_due", "on_drain_due"])
def test_a_deadline_without_its_worker_is_a_defect(method: str) -> None:
    """Removing a worker clears its deadlines."""
    with pytest.raises(AssertionError):
        getattr(Rig().broker._staffing, method)(UNKNOWN, 0.0)
    with pytest.raises(AssertionError):
        Rig().broker._staffing.on_restart_due((PoolName("nobody"), 0), 0.0)
