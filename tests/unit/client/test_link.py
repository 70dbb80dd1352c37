"""Greeting, proof of the lane, and how long nobody has answered."""

from __future__ import annotations

import pytest
from trunkline.core.effects import NOTHING, OpenLane, Rejected
from trunkline.core.link import Link, LinkPhase
from trunkline_protocol.frames import Hello, Probe, Welcome
from trunkline_protocol.ids import ClientId, Epoch
from trunkline_protocol.limits import PROBE_TIMEOUT_S

from tests.unit.client.a_stream import kinds, sent

LANE = "ipc:///lane"


def welcome(epoch: int = 1, lane: str = LANE, major: int = 1) -> Welcome:
    return Welcome((major, 0), Epoch(epoch), lane)


def a_link(phase: LinkPhase = LinkPhase.DOWN) -> Link:
    link = Link(ClientId(b"c" * 16), 7, "me", 0.0)
    if phase is not LinkPhase.DOWN:
        link.on_connected(0.0)
    if phase in {LinkPhase.PROVING, LinkPhase.UP}:
        link.on_welcome(welcome(), 11, 0.0)
    if phase is LinkPhase.UP:
        assert link.on_echo(11, 0.0)
    if phase is LinkPhase.REJECTED:
        link.on_rejected("VERSION", "no")
    assert link.phase is phase
    return link


def test_a_connection_is_greeted_and_its_lane_proven() -> None:
    """HELLO, WELCOME, a lane socket, PROBE, echo."""
    link = a_link()
    hello = sent(link.on_connected(1.0))
    assert [type(frame) for frame in hello] == [Hello]
    assert (hello[0].pid, hello[0].name) == (7, "me")
    assert kinds(link.on_welcome(welcome(), 11, 1.0)) == [OpenLane, Probe]
    assert (link.is_greeted, link.is_up, link.is_probing) == (True, False, True)
    assert not link.on_echo(99, 1.0)
    assert link.on_echo(11, 1.0)
    assert (link.is_up, link.is_probing, link.lane, link.epoch) == (True, False, LANE, 1)
    assert not link.on_echo(11, 1.0)
    assert link.next_deadline_s() == float("inf")


def test_hello_is_repeated_until_it_is_answered() -> None:
    """0.5 s, doubling."""
    link = a_link(LinkPhase.GREETING)
    assert link.on_tick(1, 0.4) is NOTHING
    assert kinds(link.on_tick(1, 0.5)) == [Hello]
    assert link.next_deadline_s() == 1.5
    assert kinds(link.on_tick(1, 1.5)) == [Hello]
    assert link.next_deadline_s() == 3.5


def test_who_is_answered_with_one_hello() -> None:
    """Many WHO, one for each frame that came too early, lead to one greeting."""
    link = a_link(LinkPhase.UP)
    assert kinds(link.on_who(1.0)) == [Hello]
    assert link.on_who(1.1) is NOTHING
    assert kinds(link.on_who(1.5)) == [Hello]


@pytest.mark.parametrize("phase", [LinkPhase.DOWN, LinkPhase.PROVING, LinkPhase.UP])
def test_a_welcome_nobody_asked_for_changes_nothing(phase: LinkPhase) -> None:
    """It is the answer to a repeated HELLO; of another epoch it shows that one was missed."""
    link = a_link(phase)
    known = link.epoch
    if known is not None:
        assert link.on_welcome(welcome(epoch=known), 12, 1.0) is NOTHING
    assert link.phase is phase
    effects = link.on_welcome(welcome(epoch=9), 12, 1.0)
    assert link.epoch == known
    if phase in {LinkPhase.PROVING, LinkPhase.UP}:
        assert kinds(effects) == [Hello]
        assert link.phase is LinkPhase.GREETING
        assert kinds(link.on_welcome(welcome(epoch=9), 13, 1.0))[-1] is Probe
        assert link.epoch == 9
    else:
        assert effects is NOTHING
        assert link.phase is phase


def test_the_same_lane_keeps_its_socket_and_another_gets_a_new_one() -> None:
    """ZeroMQ connects again by itself; only an address that changed needs a socket."""
    link = a_link(LinkPhase.UP)
    link.on_connected(1.0)
    assert kinds(link.on_welcome(welcome(epoch=2), 12, 1.0)) == [Probe]
    link.on_connected(2.0)
    assert kinds(link.on_welcome(welcome(3, "ipc:///other"), 13, 2.0)) == [OpenLane, Probe]


def test_a_probe_is_repeated_and_then_the_lane_replaced() -> None:
    """A lane that still connects hears a later one; 500 ms without an echo means a new one."""
    link = a_link(LinkPhase.PROVING)
    nonces: list[int] = []
    while (now_s := link.next_deadline_s()) < PROBE_TIMEOUT_S:
        nonces.extend(frame.nonce for frame in sent(link.on_tick(77, now_s)))
    assert set(nonces) == {11}
    assert 5 <= len(nonces) <= 10
    effects = link.on_tick(77, PROBE_TIMEOUT_S)
    assert kinds(effects) == [OpenLane, Probe]
    assert sent(effects)[0].nonce == 77
    assert not link.on_echo(11, 0.6)
    assert link.on_tick(78, 0.501) is NOTHING
    assert link.on_echo(77, 0.6)


def test_a_lane_that_never_answers_is_replaced_ever_more_rarely() -> None:
    """0.5 s, then 1 s, then 2 s."""
    link = a_link(LinkPhase.PROVING)
    replaced: list[float] = []
    while len(replaced) < 3:
        now_s = link.next_deadline_s()
        if OpenLane in kinds(link.on_tick(77, now_s)):
            replaced.append(now_s)
    assert replaced == pytest.approx([0.5, 1.5, 3.5])


def test_doubt_probes_at_most_every_second() -> None:
    """And not while a probe is out, nor on a link that is down."""
    assert a_link(LinkPhase.PROVING).doubt(5, 9.0) is NOTHING
    link = a_link(LinkPhase.UP)
    assert link.doubt(5, 0.9) is NOTHING
    assert kinds(link.doubt(5, 1.0)) == [Probe]
    assert link.is_up
    assert link.doubt(6, 9.0) is NOTHING
    assert link.on_echo(5, 9.0)
    assert link.doubt(6, 9.5) is NOTHING


def test_another_major_version_is_final() -> None:
    """The text names both; nothing is said any more."""
    link = a_link(LinkPhase.GREETING)
    effects = link.on_welcome(welcome(major=2), 11, 1.0)
    assert effects == [
        Rejected("VERSION", "the broker speaks protocol 2.0, this client 1.0"),
    ]
    assert link.has_given_up
    assert link.on_connected(2.0) is NOTHING
    assert link.on_disconnected(2.0) is NOTHING
    assert link.on_who(2.0) is NOTHING
    assert link.on_tick(1, 99.0) is NOTHING
    assert link.phase is LinkPhase.REJECTED


def test_time_without_a_broker_counts_from_the_last_proof() -> None:
    """Greeting again and again is still being without one; time in which we slept is not."""
    link = a_link(LinkPhase.UP)
    assert link.down_for_s(50.0) == 0.0
    link.on_disconnected(50.0)
    assert link.next_deadline_s() == float("inf")
    link.on_connected(55.0)
    link.on_welcome(welcome(2), 12, 56.0)
    link.on_disconnected(57.0)
    assert link.down_for_s(60.0) == 10.0
    link.extend(4.0)
    assert link.down_for_s(60.0) == 6.0


def test_an_echo_while_greeting_proves_nothing() -> None:
    """Its probe belongs to a connection that is gone."""
    link = a_link(LinkPhase.PROVING)
    link.on_disconnected(1.0)
    assert not link.on_echo(11, 1.0)
    assert not link.is_up
