"""How much each stream of a client may have in flight (SPEC 4.4), and when that changes.

A window follows from the number of open streams at the time it is set. It is set again once that
number has doubled or halved since; streams are kept by the number they were set at, so that a
change looks at no stream that it does not change.
It does not know calls beyond their ids, nor who is told.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from trunkline_protocol import limits
from trunkline_protocol.ids import CallId

_MIN_WINDOW_BYTES: Final = 64 * 1024  # SPEC 4.4


class Window(NamedTuple):
    """Most that may be sent beyond what was consumed."""

    chunks: int
    bytes: int


def window_for(streams: int) -> Window:
    """Return the window of each of so many open streams (at least 1) of one client."""
    chunks = limits.CLIENT_BUDGET_CHUNKS // streams
    size = limits.CLIENT_BUDGET_BYTES // streams
    return Window(
        max(1, min(limits.WINDOW_CHUNKS, chunks)),
        max(_MIN_WINDOW_BYTES, min(limits.WINDOW_BYTES, size)),
    )


class StreamBudget:
    """The open streams of one client."""

    __slots__ = ("_basis", "_by_basis")

    def __init__(self) -> None:
        self._basis: dict[CallId, int] = {}  # number of streams when the window was set
        self._by_basis: dict[int, dict[CallId, None]] = {}

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._basis)

    def window(self, call: CallId) -> Window:
        """Return the window of an open stream."""
        return window_for(self._basis[call])

    def open(self, call: CallId) -> list[CallId]:
        """Add a stream; return the streams whose window is now another one."""
        count = len(self._basis) + 1
        self._put(call, count)
        # Every smaller number was looked at when the count passed its double.
        return [] if count % 2 else self._reset(count // 2, count)

    def close(self, call: CallId) -> list[CallId]:
        """Remove a stream; return the streams whose window is now another one."""
        self._take(call)
        count = len(self._basis)
        if not count:
            return []
        return self._reset(2 * count, count) + self._reset(2 * count + 1, count)

    def _reset(self, basis: int, count: int) -> list[CallId]:
        calls = self._by_basis.pop(basis, None)
        if calls is None:
            return []
        for call in calls:
            self._put(call, count)
        return list(calls) if window_for(basis) != window_for(count) else []

    def _put(self, call: CallId, basis: int) -> None:
        self._basis[call] = basis
        self._by_basis.setdefault(basis, {})[call] = None

    def _take(self, call: CallId) -> None:
        basis = self._basis.pop(call)
        calls = self._by_basis[basis]
        del calls[call]
        if not calls:
            del self._by_basis[basis]
