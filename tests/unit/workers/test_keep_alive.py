"""The time for which an idle connection may carry another call."""

from __future__ import annotations

import pytest
from trunkline_workers.core.keep_alive import (
    FORGET_S,
    KEPT_S,
    SETTLE_S,
    UNKNOWN_S,
    KeepAlive,
    Use,
)


def test_a_new_server_has_time_to_close_first() -> None:
    """A connection is used when its server has shown that it keeps one."""
    habits = KeepAlive()
    assert habits.use(0.0, 100.0) is Use.WAIT
    assert habits.settles_in_s(0.01) == pytest.approx(SETTLE_S - 0.01)
    assert habits.settles_in_s(1.0) == 0.0
    assert habits.use(SETTLE_S, 100.0) is Use.USE
    habits.survived(SETTLE_S)
    assert habits.use(0.0, 101.0) is Use.USE


def test_without_a_word_a_connection_is_used_for_a_few_seconds() -> None:
    """What survived for longer may be used for longer, up to a limit."""
    habits = KeepAlive()
    habits.survived(1.0)
    assert habits.use(UNKNOWN_S, 100.0) is Use.USE
    assert habits.use(UNKNOWN_S + 0.1, 100.0) is Use.CLOSE
    habits.survived(20.0)
    assert habits.use(19.0, 100.0) is Use.USE
    habits.survived(1000.0)
    assert habits.limit_s(100.0) == KEPT_S


@pytest.mark.parametrize(
    ("header", "limit_s"),
    [
        ("timeout=5", 4.0),
        ("timeout=5, max=100", 4.0),
        ("max=100, Timeout = 20", 19.0),
        ('timeout="7"', 6.0),
        ("timeout=1", 0.5),
        ("timeout=0", 0.0),
        ("timeout=999999999", KEPT_S),
        ("timeout=99999999999999999999", KEPT_S),
        ("timeout=-5", None),
        ("timeout=nan", None),
        ("xtimeout=1", None),
        ("", None),
        (None, None),
    ],
)
def test_a_server_that_states_its_limit_is_believed(
    header: str | None, limit_s: float | None
) -> None:
    """The limit is kept at a distance; a header that is none says nothing."""
    habits = KeepAlive()
    habits.state(header)
    assert habits.limit_s(100.0) == (UNKNOWN_S if limit_s is None else limit_s)
    assert (habits.use(0.0, 100.0) is Use.USE) == (limit_s is not None)


def test_a_server_that_closes_early_is_remembered_for_a_while() -> None:
    """The shortest time counts, and what was proven before it no longer does."""
    habits = KeepAlive()
    habits.survived(10.0)
    habits.closed(5.0, 100.0)
    assert habits.limit_s(101.0) == 4.0
    habits.closed(0.01, 110.0)
    habits.closed(3.0, 111.0)
    assert habits.limit_s(112.0) == 0.0
    assert habits.use(0.02, 112.0) is Use.CLOSE
    later_s = 111.0 + FORGET_S
    assert habits.limit_s(later_s) == UNKNOWN_S
    assert habits.use(0.0, later_s) is Use.WAIT
