"""Who is asked about an event; what a hostile or early peer gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trunkline_broker.core.effects import EchoProbe
from trunkline_broker.core.events import (
    FrameRejected,
    PeerDisconnected,
    ProcessSpawned,
    Side,
    StrayLaneFrames,
)
from trunkline_protocol import frames
from trunkline_protocol.ids import Epoch, Generation, PoolName

from tests.support.broker_rig import Rig, RigClient, RigWorker, only


def test_who_are_you() -> None:
    """Nothing is taken before HELLO or REGISTER."""
    rig = Rig()
    client = RigClient(rig, 1)
    client.open()
    assert client.got(frames.Who) == [frames.Who(Epoch(1000))]
    worker = RigWorker(rig, "p", 0, Generation(Epoch(1), 1))
    worker.beat()
    assert worker.got(frames.Who) == [frames.Who(Epoch(1000))]
    assert rig.count("frames_before_hello") == 1
    assert rig.count("frames_before_register") == 1


def test_bytes_that_are_no_frame_are_refused_and_counted() -> None:
    """On the socket they came from."""
    rig = Rig()
    rig.tell(FrameRejected(Side.CLIENT, b"x", "BAD_FRAME", "no"))
    assert rig.to(b"x", frames.Refused) == [frames.Refused("BAD_FRAME", "no")]
    rig.tell(FrameRejected(Side.WORKER, b"y", "UNKNOWN_KIND", "no"))
    assert rig.to(b"y", frames.Refused) == [frames.Refused("UNKNOWN_KIND", "no")]
    rig.tell(FrameRejected(Side.WORKER, b"z", "BAD_FRAME", "no", {"request": 7}))
    assert rig.to(b"z", frames.Refused) == [frames.Refused("BAD_FRAME", "no", request=7)]
    assert rig.hub.refused == {"BAD_FRAME": 2, "UNKNOWN_KIND": 1}


def test_stray_frames_on_the_lane_are_counted() -> None:
    """Nobody is answered."""
    rig = Rig()
    rig.tell(StrayLaneFrames(3))
    assert rig.count("stray_lane_frames") == 3


def test_a_probe_is_echoed_down_the_lane() -> None:
    """Of the client that asks."""
    rig = Rig()
    client = rig.a_client()
    client.say(frames.Probe(7))
    assert only(rig.of(EchoProbe)) == EchoProbe(client.id, 7)


def test_disconnections_of_unknown_peers_mean_nothing() -> None:
    """On either side."""
    rig = Rig()
    for side in Side:
        rig.tell(PeerDisconnected(side, b"nobody"))
        assert not rig.effects


def test_a_restart_by_deadline() -> None:
    """Ticks before anything is due do nothing; the next deadline is the shell's alarm."""
    rig = Rig()
    assert rig.broker.next_deadline_s() == rig.now_s + 60.0
    assert rig.tick(1.0) == []
    rig.tell(ProcessSpawned(PoolName("p"), 0, Generation(Epoch(1000), 1), 5))
    assert rig.effects


@given(st.data())
def test_frames_of_strangers_never_raise(data: st.DataObject) -> None:
    """A client that names calls, leases and queries that do not exist or are not its own."""
    rig = Rig()
    worker = rig.a_worker()
    owner, stranger = rig.a_client(), rig.a_client()
    opened = owner.open()
    call = data.draw(st.sampled_from([opened, owner.an_open()]))
    attempt = data.draw(st.integers(0, 3))
    ref = (call.call, attempt)
    client_frames: list[frames.ClientFrame] = [
        frames.Credit(*ref, 5, 5, 5),
        frames.Resume(*ref, 5),
        frames.Cancel(*ref),
        frames.Done((frames.CallRef(*ref),)),
        frames.Restate((frames.Restated(*ref, call.stream_key, call.provider, 1, 1, 1),)),
        frames.Attach(call.call, b"", call.stream_key),
        call,
    ]
    worker_frames: list[frames.WorkerFrame] = [
        frames.Ended(*ref, 1, {}),
        frames.Snapshot(*ref, 5),
        frames.Heartbeat((frames.Progress(*ref, 4),)),
        frames.Registrations(data.draw(st.integers(0, 3)), ({},)),
    ]
    for frame in data.draw(st.lists(st.sampled_from(client_frames), max_size=8)):
        data.draw(st.sampled_from([owner, stranger])).say(frame)
        rig.check()
    for frame in data.draw(st.lists(st.sampled_from(worker_frames), max_size=8)):
        worker.say(frame)
        rig.check()


def test_a_greeting_that_was_not_taken_first_is_a_defect() -> None:
    """Whoever dispatches looks for it before it looks for the peer."""
    rig = Rig()
    worker, client = rig.a_worker(), rig.a_client()
    known_client, known_worker = rig.hub.clients.at(client.peer), rig.hub.workers.at(worker.peer)
    assert known_client is not None
    assert known_worker is not None
    hello = frames.Hello((1, 0), client.id, 1)
    register = frames.Register((1, 0), worker.pool, 0, worker.generation, 1, "starting")
    with pytest.raises(AssertionError):
        rig.broker._on_known_client(known_client, hello, 0.0)
    with pytest.raises(AssertionError):
        rig.broker._on_known_worker(known_worker, register, 0.0)
