"""Windows follow the number of open streams, and change when it doubles or halves."""

from __future__ import annotations

from trunkline_broker.core.windows import StreamBudget, Window, window_for
from trunkline_protocol.ids import CallId


def a_call(number: int) -> CallId:
    return CallId(number.to_bytes(16, "big"))


def test_a_window_is_a_share_within_bounds() -> None:
    """SPEC 4.4: chunks 1 to 1,024, bytes 64 KiB to 1 MiB."""
    assert window_for(1) == Window(1024, 1024 * 1024)
    assert window_for(8) == Window(512, 1024 * 1024)
    assert window_for(32) == Window(128, 512 * 1024)
    assert window_for(100_000) == Window(1, 64 * 1024)


def test_streams_are_set_again_when_their_number_doubles() -> None:
    """The streams that were set at half the number, and no others."""
    budget = StreamBudget()
    changed = [budget.open(a_call(number)) for number in range(16)]
    assert changed[:5] == [[]] * 5  # up to 4 streams each has the greatest window anyway
    assert changed[5] == [a_call(2)]  # set at 3, now there are 6
    assert a_call(0) in changed[7]  # set at 4 last, now there are 8
    assert changed[9] == [a_call(4)]  # set at 5, now there are 10
    assert len(budget) == 16


def test_streams_are_set_again_when_their_number_halves() -> None:
    """Each by the number it was set at."""
    budget = StreamBudget()
    for number in range(16):
        budget.open(a_call(number))
    assert budget.window(a_call(15)).chunks == 256
    changed = [call for number in range(8, 16) for call in budget.close(a_call(number))]
    assert set(changed) <= {a_call(number) for number in range(8)}
    for number in range(8):
        budget.close(a_call(number))
    assert len(budget) == 0
    assert not budget._by_basis


def test_every_window_is_within_a_factor_of_two() -> None:
    """No stream keeps a window of a time with less than half or more than twice the streams."""
    budget = StreamBudget()
    live: list[int] = []
    for number in range(300):
        budget.open(a_call(number))
        live.append(number)
        assert all(len(live) < 2 * basis for basis in budget._basis.values())
    while live:
        budget.close(a_call(live.pop(0)))
        assert all(basis < 2 * len(live) for basis in budget._basis.values())
