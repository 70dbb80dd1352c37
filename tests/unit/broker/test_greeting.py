"""How clients come and go."""

from __future__ import annotations

import pytest
from trunkline_broker.core.effects import UnwatchClient, WatchClient
from trunkline_broker.core.events import ClientExited, PeerDisconnected, Side, StopRequested
from trunkline_protocol import frames

from tests.support.broker_rig import NORMAL, Rig, RigClient, only, restated


def test_hello_is_welcomed() -> None:
    """With the address of the lane; the process is watched once."""
    rig = Rig()
    client = rig.a_client()
    welcome = only(client.got(frames.Welcome))
    assert (welcome.lane, welcome.epoch, welcome.protocol) == ("ipc://lane", 1000, (1, 0))
    assert (welcome.max_open_calls, welcome.orphan_timeout_ms) == (4096, 30_000)
    assert rig.of(WatchClient) == [WatchClient(client.pid or 0)]
    client.hello()
    assert client.got(frames.Welcome)
    assert rig.of(WatchClient) == []


def test_another_major_version_is_refused() -> None:
    """The text names both; a newer minor one is fine."""
    rig = Rig()
    client = RigClient(rig, 1)
    client.hello((2, 7))
    refused = only(client.got(frames.Refused))
    assert refused.code == "VERSION"
    assert "1.0" in refused.message
    assert "2.7" in refused.message
    client.hello((1, 7))
    assert client.got(frames.Welcome)


def test_clients_are_bounded() -> None:
    """Those that are known may come back."""
    rig = Rig(max_clients=1)
    client = rig.a_client()
    other = rig.a_client()
    refused = only(other.got(frames.Refused))
    assert refused.code == "OVERLOADED"
    assert "1 clients are here, the most that [broker] max_clients allows" in refused.message
    client.reconnect()
    assert client.got(frames.Welcome)


def test_a_full_broker_can_still_be_asked_what_is_wrong() -> None:
    """A few commands get in beyond the bound, and no more than a few."""
    rig = Rig(max_clients=1)
    rig.a_client()
    for number in range(100, 106):
        command = RigClient(rig, number)
        command.say(frames.Hello((1, 0), command.id, 1, "trunkline status"))
        assert bool(command.got(frames.Welcome)) == (number < 104)


def test_a_client_that_changes_its_process_is_watched_anew() -> None:
    """The old process is watched no more."""
    rig = Rig()
    client = rig.a_client()
    old, client.pid = client.pid, 4711
    client.hello()
    assert rig.of(WatchClient) == [WatchClient(4711)]
    assert rig.of(UnwatchClient) == [UnwatchClient(old or 0)]
    client.pid = None
    client.hello()
    assert rig.of(UnwatchClient) == [UnwatchClient(4711)]


def test_a_new_connection_hears_what_got_lost_with_the_old_one() -> None:
    """Ends and retries; what runs is asked for by the client itself."""
    rig = Rig()
    worker = rig.a_worker(policy=NORMAL)
    client = rig.a_client()
    retried, ended, running = (
        client.open(recovery="policy"),
        client.open(),
        client.open(),
    )
    worker.end_with(retried, "SERVER")
    worker.end(ended)
    client.reconnect()
    assert only(client.got(frames.Retry)).call == retried.call
    assert only(client.got(frames.Ended)).call == ended.call
    assert running.call in {call.id for call in rig.hub.calls}


def test_a_client_is_dead_when_closed_and_gone() -> None:
    """In any order; a closed connection alone or an unknown peer means nothing."""
    rig = Rig()
    worker = rig.a_worker()
    first, second = rig.a_client(), rig.a_client()
    for client in (first, second):
        client.open()
    first.disconnect()
    assert worker.got(frames.Cancel) == []
    first.disconnect()
    rig.tell(ClientExited(first.pid or 0))
    assert worker.got(frames.Cancel)
    assert rig.of(UnwatchClient) == [UnwatchClient(first.pid or 0)]
    rig.tell(ClientExited(second.pid or 0))
    assert worker.got(frames.Cancel) == []
    second.disconnect()
    assert worker.got(frames.Cancel)
    assert len(rig.hub.clients) == 0


def test_a_process_that_is_gone_does_not_live_on_in_its_child() -> None:
    """A connection that a forked child keeps open does not keep calls."""
    rig = Rig()
    worker = rig.a_worker()
    client = rig.a_client()
    client.open()
    rig.tell(ClientExited(client.pid or 0))
    rig.wait(0.3)
    assert worker.got(frames.Cancel)


@pytest.mark.parametrize(("pid", "seconds"), [(0, 30.0), (None, 10.0)])
def test_a_client_that_stays_away_is_dead(pid: int | None, seconds: float) -> None:
    """Local ones may take longer, their processes live; one that comes back is not."""
    rig = Rig()
    worker = rig.a_worker()
    client = rig.a_client(pid=pid)
    client.open()
    client.disconnect()
    rig.live(seconds - 0.5, worker)
    client.hello()
    client.disconnect()
    rig.live(seconds - 0.5, worker)
    assert len(rig.hub.clients) == 1
    rig.live(1.0, worker)
    assert len(rig.hub.clients) == 0
    assert worker.got(frames.Cancel)


@pytest.mark.parametrize("pid", [0, None])
def test_a_client_that_reads_nothing_is_not_dead_while_its_process_lives(pid: int | None) -> None:
    """It stands still. Nothing more is sent to it; on another host only its link can tell."""
    rig = Rig()
    worker, client = rig.a_worker(), rig.a_client(pid=pid)
    opened = client.open()
    rig.tell(PeerDisconnected(Side.CLIENT, client.peer, is_stuck=True))
    rig.live(100.0, worker)
    if pid is None:
        assert len(rig.hub.clients) == 0
        return
    client.say(restated(opened))
    assert client.got(frames.Who)
    client.hello()
    rig.live(700.0, worker)
    assert rig.hub.calls.get(opened.call) is not None
    rig.tell(PeerDisconnected(Side.CLIENT, client.peer, is_stuck=True))
    rig.tell(ClientExited(client.pid or 0))
    assert only(worker.got(frames.Cancel)).call == opened.call


def test_bye_is_an_end_at_once() -> None:
    """As death."""
    rig = Rig()
    worker = rig.a_worker()
    client = rig.a_client()
    client.open()
    client.say(frames.Bye())
    assert worker.got(frames.Cancel)
    client.say(frames.Probe(1))
    assert client.got(frames.Who)


def test_a_draining_broker_says_so_at_once() -> None:
    """A new client need not find out by a refused call."""
    rig = Rig()
    rig.a_worker()
    rig.a_client().open()
    rig.tell(StopRequested(drain_s=5.0))
    client = rig.a_client()
    assert client.got(frames.Stopping)


def test_a_deadline_without_its_client_is_a_defect() -> None:
    """Removing a client clears it."""
    rig = Rig()
    with pytest.raises(AssertionError):
        rig.broker._greeting.on_client_due(RigClient(rig, 1).id)


@pytest.mark.parametrize("pid", [0, None])
def test_a_connection_that_names_another_client_ends_the_first_one(pid: int | None) -> None:
    """At once, with its calls: else a single connection could fill the table for everybody."""
    rig = Rig()
    worker = rig.a_worker()
    first = rig.a_client(pid=pid)
    first.open()
    second = RigClient(rig, rig.number(), pid=pid)
    second.peer = first.peer
    second.hello()
    assert worker.got(frames.Cancel)
    assert [client.id for client in rig.hub.clients] == [second.id]
    second.open()
    assert second.got(frames.Accepted)


def test_a_connected_client_is_not_judged() -> None:
    """It may stay as it is for ever."""
    rig = Rig()
    client = rig.a_client()
    known = rig.hub.clients.at(client.peer)
    assert known is not None
    rig.broker._greeting._judge(known, rig.now_s)
    rig.wait(100.0)
    assert rig.hub.clients.at(client.peer) is known
