"""Calls are looked at when they are due, and once."""

from __future__ import annotations

from trunkline.core.schedule import NEVER_S, Schedule

from tests.unit.client.a_stream import CALL, a_stream


def test_a_call_is_due_at_its_nearest_deadline_and_put_in_again() -> None:
    stream = a_stream()
    calls = {CALL: stream}
    schedule = Schedule(calls)
    assert schedule.next_s() == NEVER_S
    schedule.put(stream, 0.0)
    schedule.put(stream, 0.0)
    assert (schedule.next_s(), len(schedule)) == (0.5, 1)
    assert list(schedule.due(0.4)) == []
    assert list(schedule.due(0.5)) == [stream]
    assert schedule.next_s() == NEVER_S
    schedule.put(stream, 9.0)  # overdue, and nothing can be done
    assert schedule.next_s() == 9.25
    calls.clear()
    assert list(schedule.due(10.0)) == []
