"""What workers say of themselves."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_broker.core.effects import Adopt, Forget, Log
from trunkline_broker.core.events import (
    PeerDisconnected,
    Side,
    StopRequested,
    WorkerFrameReceived,
)
from trunkline_protocol import frames
from trunkline_protocol.ids import Epoch, Generation

from tests.support.broker_rig import VERSION, Rig, RigWorker, a_pool, adapters, held, only

MANUAL = Generation(Epoch(0), 0)


def a_manual(rig: Rig, pool: str, *routes: str) -> RigWorker:
    worker = RigWorker(rig, pool, 0, MANUAL)
    worker.register()
    worker.ready(*routes)
    return worker


def a_spawned(rig: Rig) -> RigWorker:
    """Return the first worker of a broker, not registered."""
    known = next(iter(rig.hub.workers))
    return RigWorker(rig, known.pool, known.slot, known.generation, known.token.get_secret_value())


def test_a_guest_is_taken_only_if_a_broker_started_it() -> None:
    """A process of another user must not join pools, not by a generation that it made up either."""
    rig = Rig(a_pool())
    for born in (MANUAL, Generation(Epoch(1), 9)):
        guest = RigWorker(rig, "p", 0, born)
        frame = frames.Register(VERSION, guest.pool, 0, born, 1, role="starting")
        rig.tell(WorkerFrameReceived(guest.peer, frame, 1, is_guest=True))
        assert only(guest.got(frames.Refused)).code == "BAD_TOKEN"
    worker = a_spawned(rig)
    frame = frames.Register(
        VERSION, worker.pool, 0, worker.generation, 1, role="starting", token=worker.token
    )
    rig.tell(WorkerFrameReceived(worker.peer, frame, 1, is_guest=True))
    assert worker.got(frames.Registered)


def test_a_spawned_worker_registers_with_its_token() -> None:
    """It is told its generation, the lane and the epoch."""
    rig = Rig()
    worker = a_spawned(rig)
    worker.register()
    registered = only(worker.got(frames.Registered))
    assert (registered.epoch, registered.lane) == (1000, "ipc://workers")
    assert (registered.generation, registered.orphan_timeout_ms) == (worker.generation, 30_000)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"token": b"wrong"}, "BAD_TOKEN"),
        ({"protocol": (2, 0)}, "VERSION"),
        ({"generation": Generation(Epoch(1000), 77)}, "SUPERSEDED"),
        ({"generation": Generation(Epoch(2000), 1)}, "SUPERSEDED"),
        ({"generation": MANUAL, "pool": ""}, "UNKNOWN_POOL"),
    ],
)
def test_refused_registrations(change: dict[str, Any], code: str) -> None:
    """The connection stays unknown."""
    rig = Rig()
    worker = a_spawned(rig)
    worker.register(**change)
    assert only(worker.got(frames.Refused)).code == code
    worker.beat()
    assert worker.got(frames.Who)
    assert rig.hub.refused == {code: 1}


def test_manual_workers_may_be_forbidden_and_are_bounded() -> None:
    """A pool of the configuration is not affected."""
    rig = Rig(accept_manual=False)
    worker = RigWorker(rig, "m", 0, MANUAL)
    worker.register()
    assert only(worker.got(frames.Refused)).code == "UNKNOWN_POOL"
    rig = Rig(max_workers=1)
    worker = RigWorker(rig, "m", 0, MANUAL)
    worker.register()
    assert only(worker.got(frames.Refused)).code == "OVERLOADED"


def test_a_manual_worker_gets_a_generation_and_is_watched() -> None:
    """It keeps the generation when its link is made anew."""
    rig = Rig()
    worker = RigWorker(rig, "m", 0, MANUAL)
    worker.register()
    adopt = only(rig.of(Adopt))
    assert adopt.is_manual
    assert (adopt.pool, adopt.slot, adopt.generation, adopt.pid) == (
        "m",
        0,
        worker.generation,
        worker.pid,
    )
    assert worker.generation.epoch == 1000
    worker.ready("m")
    worker.reconnect()
    assert only(worker.got(frames.Registered)).generation == worker.generation
    assert rig.of(Adopt) == []


@pytest.mark.parametrize("pid", [70_001, None])
def test_a_worker_that_was_given_up_registers_anew(pid: int | None) -> None:
    """From a debugger, or from behind a link that was down; what it still runs is stopped."""
    rig = Rig()
    worker, own = RigWorker(rig, "m", 0, MANUAL), rig.a_worker("p")
    worker.pid = pid
    worker.register()
    worker.ready("m")
    client = rig.a_client()
    opened = client.open("m")
    before = worker.generation
    seen = rig.live(12.0, own)
    assert [effect.generation for effect in seen if isinstance(effect, Forget)] == [before]
    assert client.failure()["code"] == "TRANSPORT"
    assert rig.signals() == []
    assert [pool.spec.name for pool in rig.hub.pools] == ["p"]
    worker.beat()
    assert worker.got(frames.Who)
    worker.register("serving", calls=(held(opened, client),))
    assert only(worker.got(frames.Registered)).generation > before
    assert only(worker.got(frames.Cancel)).call == opened.call
    assert len(rig.of(Adopt)) == (pid is not None)
    worker.ready("m")
    assert only(worker.got(frames.Role)).role == "serving"
    client.open("m")
    assert worker.got(frames.Start)
    rig.check()


def test_a_killed_worker_of_ours_does_not_register_anew() -> None:
    """It has a token, and another one serves in its place."""
    rig = Rig()
    worker = rig.a_worker()
    rig.wait(3.5)
    worker.exit()
    worker.register("serving")
    assert only(worker.got(frames.Refused)).code == "SUPERSEDED"


def test_a_stopping_broker_takes_no_new_worker() -> None:
    """One that it knows may still come back to be told to leave."""
    rig = Rig()
    rig.a_worker()
    rig.a_client().open()
    rig.tell(StopRequested(drain_s=5.0))
    worker = RigWorker(rig, "m", 0, MANUAL)
    worker.register()
    assert only(worker.got(frames.Refused)).code == "STOPPING"


def test_registrations_are_answered_and_announced_once_per_commit() -> None:
    """A repeated one changes nothing; an older one is dropped."""
    rig = Rig()
    client = rig.a_client()
    worker = rig.a_worker("p")
    assert only(worker.got(frames.Committed)).request == 1
    assert only(worker.got(frames.Role)).role == "serving"
    assert len(client.got(frames.Event)) == 1
    worker.ready("p", "x")
    assert only(worker.got(frames.Committed)).request == 2
    assert len(client.got(frames.Event)) == 1
    worker.request = 1
    worker.ready("p", "x")
    assert worker.got(frames.Committed)
    assert client.got(frames.Event) == []
    worker.request = 0
    worker.ready("p")
    assert worker.got(frames.Committed) == []
    assert rig.count("stale_registrations") == 1
    client.query("models")
    assert client.answer() == ["p", "x"]


def test_refused_registrations_change_nothing() -> None:
    """Between two pools, whole or not at all."""
    rig = Rig()
    rig.a_worker("p")
    client = rig.a_client()
    other = a_manual(rig, "m", "m")
    other.ready("n", "p")
    refused = only(other.got(frames.Refused))
    assert (refused.code, refused.request) == ("DUPLICATE_ADAPTER", 2)
    assert client.got(frames.Event) == []
    client.query("models")
    assert client.answer() == ["p", "m"]
    other.ready("n")
    client.query("models")
    assert client.answer() == ["p", "n"]


def test_a_worker_may_correct_refused_first_registrations() -> None:
    """It becomes ready with the ones that are accepted."""
    rig = Rig()
    rig.a_worker("p")
    worker = RigWorker(rig, "m", 0, MANUAL)
    worker.register()
    worker.ready("p")
    assert worker.got(frames.Refused)
    worker.ready("m")
    assert only(worker.got(frames.Role)).role == "serving"


def test_the_directory_and_discovery_are_registered_with_the_routes() -> None:
    """And go with the worker."""
    rig = Rig()
    worker = a_manual(rig, "m")
    client = rig.a_client()
    entry = {"provider": "x", "displayName": "X", "settingsNs": "ns", "settingsPath": []}
    worker.commit(adapters("m"), directory=({"entries": [entry]},), discovery=("ns",))
    client.query("listConfigurableProviders")
    assert client.answer() == [entry]
    client.query("listModelDiscoveryNamespaces")
    assert client.answer() == ["ns"]
    worker.exit()
    client.query("listConfigurableProviders")
    assert client.answer() == []


def test_registrations_of_a_worker_that_was_told_to_leave() -> None:
    """They come too late."""
    rig = Rig(a_pool(start_timeout_s=1.0))
    worker = a_spawned(rig)
    worker.register()
    rig.wait(1.0)
    worker.ready("p")
    assert rig.count("stale_registrations") == 1


def test_heartbeats_are_answered_and_their_load_kept() -> None:
    """The worker learns that the broker lives."""
    rig = Rig()
    worker = rig.a_worker()
    worker.beat(load={"chunks": 5})
    assert worker.got(frames.Heartbeat) == [frames.Heartbeat()]
    worker.beat()
    assert next(iter(rig.hub.workers)).load == {"chunks": 5}


def test_a_loop_that_stood_still_is_logged_once() -> None:
    """With its routes; figures that are none say nothing."""
    rig = Rig()
    worker = rig.a_worker()
    worker.beat(load={"loopBlocks": 0, "loopLateMs": 90})
    assert rig.of(Log) == []
    worker.beat(load={"loopBlocks": 2, "loopLateMs": 1300})
    log = only(rig.of(Log))
    assert (log.level, log.event) == ("warning", "worker_blocked")
    assert (log.fields["late_s"], log.fields["routes"]) == (1.3, "p")
    for load in ({"loopBlocks": 2, "loopLateMs": 1300}, {"loopBlocks": "9"}, {"loopLateMs": 9}):
        worker.beat(load=load)
        assert rig.of(Log) == []
    assert rig.count("loops_blocked") == 2


def test_a_worker_without_a_process_here_leaves_with_its_bye() -> None:
    """Nothing has to be reaped."""
    rig = Rig()
    worker = RigWorker(rig, "far", 0, MANUAL)
    worker.pid = None
    worker.register()
    assert rig.of(Adopt) == []
    worker.ready("far")
    worker.say(frames.Bye())
    assert rig.hub.workers.get(worker.generation) is None


def test_calls_that_waited_for_a_connection_start_when_it_is_back() -> None:
    """The worker was ready before, so no new registrations are needed."""
    rig = Rig()
    worker = rig.a_worker()
    client = rig.a_client()
    rig.tell(PeerDisconnected(Side.WORKER, worker.peer))
    opened = client.open()
    assert only(client.got(frames.Queued)).reason == "workers"
    worker.reconnect()
    assert only(worker.got(frames.Start)).call == opened.call


def test_an_equal_replacement_moves_to_the_end() -> None:
    """It is a commit as every other one; its number tells that it is a new registration."""
    rig = Rig()
    rig.a_worker("p")
    worker = a_manual(rig, "m", "m")
    other = a_manual(rig, "n", "n")
    client = rig.a_client()
    worker.commit(adapters("m", number=2))
    assert len(client.got(frames.Event)) == 1
    client.query("models")
    assert client.answer() == ["p", "n", "m"]
    entry = {"provider": "x", "displayName": "X", "settingsNs": "ns", "settingsPath": []}
    for _ in range(2):
        other.commit(adapters("n"), directory=({"entries": [entry]},))
        client.query("models")
        assert client.answer() == ["p", "n", "m"]


def test_a_manual_worker_that_registers_twice_is_one_worker() -> None:
    """It says it again where the answer is slow; a second slot would wait for nobody."""
    rig = Rig()
    worker = RigWorker(rig, "m", 0, MANUAL)
    worker.register()
    first = worker.generation
    worker.register(generation=MANUAL)
    assert [item.generation for item in worker.got(frames.Registered)][-1] == first
    assert [item.generation for item in rig.hub.workers if item.pool == "m"] == [first]
    assert rig.of(Adopt) == []
