"""Every deadline has somebody who answers for it."""

from __future__ import annotations

from trunkline_broker.core.hub import Timer
from trunkline_protocol.ids import RouteName

from tests.support.broker_rig import Rig


def test_no_timer_is_left_out() -> None:
    """A new one without an answer fails here, not in the field."""
    assert set(Rig().broker._timers._on_due) == set(Timer)


def test_the_end_of_a_pause_lets_the_route_go_on() -> None:
    """Its gate says nothing any more and is looked at again."""
    rig = Rig()
    route = RouteName("p")
    gate = rig.hub.gates.at(route)
    gate.paused_until_s = 5.0
    rig.broker._timers.on_due((Timer.PAUSE, route), 5.0)
    assert gate.paused_until_s == 0.0
    assert route in rig.hub.freed
