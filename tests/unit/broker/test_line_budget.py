"""Lines of a second."""

from __future__ import annotations

from trunkline_broker.measured.line_budget import LineBudget


def test_a_second_has_so_many_lines_and_the_next_one_says_what_it_lacked() -> None:
    budget = LineBudget(3)
    assert [budget.take(7.1 + at / 10) for at in range(6)] == [0, 0, 0, None, None, None]
    assert [budget.take(8.0), budget.take(8.1)] == [3, 0]
    assert budget.take(20.0) == 0
