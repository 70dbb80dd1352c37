"""What the flows share."""

from __future__ import annotations

from trunkline_broker.core.effects import Log
from trunkline_protocol.frames import Role, Who, Window
from trunkline_protocol.ids import CallId, ClientId, Epoch, LeaseId

from tests.support.broker_rig import Rig


def test_generations_are_never_reused() -> None:
    """They count up within the epoch."""
    hub = Rig().hub
    first, second = hub.next_generation(), hub.next_generation()
    assert first < second
    assert first.epoch == second.epoch == Epoch(1000)


def test_jitter_is_a_fraction() -> None:
    """From 0, below 1, whatever bytes are drawn."""
    hub = Rig().hub
    hub.draw = lambda size: b"\xff" * size
    assert 0.99 < hub.jitter() < 1.0
    hub.draw = bytes
    assert hub.jitter() == 0.0


def test_nothing_is_sent_to_those_without_a_connection() -> None:
    """They ask again, or tell what they hold, when they are back."""
    rig = Rig()
    hub = rig.hub
    hub.out = []
    hub.to_client(None, Who(Epoch(1)))
    hub.to_client(hub.clients.ensure(ClientId(b"c" * 16)), Who(Epoch(1)))
    hub.to_worker(next(iter(hub.workers)), Role("serving"))
    assert hub.out == []


def test_an_unknown_lease_is_dropped_without_an_error() -> None:
    """It may have run out a moment ago."""
    hub = Rig().hub
    hub.drop_lease(LeaseId(b"L" * 16))
    assert hub.drained == []


def test_a_log_line_is_an_effect() -> None:
    """The core has no logger."""
    hub = Rig().hub
    hub.out = []
    hub.log("info", "something", {"a": 1})
    assert hub.out == [Log("info", "something", {"a": 1})]
    assert not hub.has_more()


def test_a_stream_whose_worker_is_gone_still_tells_its_client() -> None:
    """The window of a call is the client's business too."""
    rig = Rig()
    worker = rig.a_worker()
    client = rig.a_client()
    opened = client.open()
    call = rig.hub.calls.get(CallId(opened.call))
    known = rig.hub.clients.at(client.peer)
    assert call is not None
    assert known is not None
    call.worker = None
    rig.hub.out = []
    rig.hub.send_window(known, call)
    assert len(rig.hub.out) == 1
    assert worker


def test_streams_that_have_ended_get_no_new_window() -> None:
    """Nothing more will be sent on them."""
    rig = Rig()
    worker = rig.a_worker()
    client = rig.a_client()
    opened = [client.open() for _ in range(3)]
    worker.end(opened[2])
    for _ in range(3):
        client.open()
    assert client.got(Window) == []
