"""Named deadlines: set again, cleared, shifted, and bounded in memory."""

from __future__ import annotations

from trunkline_broker.core.deadlines import Deadlines


def test_the_earliest_is_taken_first_and_only_when_due() -> None:
    """Names come up in the order of their times, one at a time."""
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("b", 2.0)
    deadlines.set("a", 1.0)
    assert deadlines.earliest() == 1.0
    assert deadlines.take_due(0.5) is None
    assert deadlines.take_due(3.0) == "a"
    assert deadlines.take_due(3.0) == "b"
    assert deadlines.take_due(3.0) is None
    assert deadlines.earliest() is None


def test_a_name_is_moved_and_cleared() -> None:
    """Only the last time of a name counts; clearing an unknown one is no error."""
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("a", 5.0)
    assert deadlines.at_s("a") == 5.0
    assert deadlines.take_due(2.0) is None
    deadlines.clear("a")
    deadlines.clear("a")
    assert deadlines.at_s("a") is None
    assert deadlines.earliest() is None
    assert len(deadlines) == 0


def test_names_that_are_equal_in_time_need_no_order() -> None:
    """Names are never compared with each other."""
    deadlines: Deadlines[object] = Deadlines()
    names = [object(), object()]
    for name in names:
        deadlines.set(name, 1.0)
    assert [deadlines.take_due(1.0), deadlines.take_due(1.0)] == names


def test_all_are_shifted() -> None:
    """Time in which nobody could act is given back to every name."""
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("b", 2.0)
    deadlines.shift(10.0)
    assert deadlines.take_due(10.9) is None
    assert deadlines.take_due(12.0) == "a"
    assert deadlines.at_s("b") == 12.0


def test_entries_of_old_times_do_not_pile_up() -> None:
    """A name that is set a thousand times costs no thousand entries."""
    deadlines: Deadlines[str] = Deadlines()
    for number in range(1000):
        deadlines.set("a", 1000.0 + number)
    assert len(deadlines._heap) < 100
    assert deadlines.take_due(5000.0) == "a"
    assert deadlines.take_due(5000.0) is None
