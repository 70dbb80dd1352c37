"""One heap of named points in time; whoever sleeps asks for the earliest.

A name is set again or cleared in constant time: the old heap entry stays and is skipped when it
comes up. Skipped entries never outnumber the live ones by more than `_SLACK`.
It does not know what a name stands for.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)

_SLACK: Final = 64


class Deadlines(Generic[Name]):
    """Deadlines by name, in monotonic seconds.

    Attributes:
        now_s: the time of the event that is being handled; set by the owner, never back.
    """

    __slots__ = ("_at", "_heap", "_serial", "now_s")

    def __init__(self) -> None:
        self.now_s = float("-inf")
        self._at: dict[Name, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Name]] = []
        self._serial = 0  # breaks ties, so that names are never compared

    def __len__(self) -> int:
        """Return the number of deadlines that are set."""
        return len(self._at)

    def set(self, name: Name, at_s: float) -> None:
        """Set or move the deadline of a name.

        Raises:
            AssertionError: `at_s` is before `now_s`: what it stands for was forgotten, not timed.
        """
        if not at_s >= self.now_s:  # so that NaN is refused too
            raise AssertionError(f"the deadline {name} lies {self.now_s - at_s} s in the past")
        self._serial += 1
        self._at[name] = (at_s, self._serial)
        heappush(self._heap, (at_s, self._serial, name))
        if len(self._heap) > 2 * len(self._at) + _SLACK:
            self._rebuild(0.0)

    def clear(self, name: Name) -> None:
        """Forget a name; nothing if it is not set."""
        self._at.pop(name, None)

    def at_s(self, name: Name) -> float | None:
        """Return when a name is due, or `None`."""
        found = self._at.get(name)
        return None if found is None else found[0]

    def earliest(self) -> float | None:
        """Return when the next name is due, or `None` if nothing is set."""
        heap = self._heap
        while heap:
            at_s, serial, name = heap[0]
            if self._at.get(name) == (at_s, serial):
                return at_s
            heappop(heap)
        return None

    def take_due(self, now_s: float) -> Name | None:
        """Remove and return the first name that is due at `now_s`, or `None`.

        One at a time, so that what follows from one may still clear or move another.
        """
        earliest = self.earliest()
        if earliest is None or earliest > now_s:
            return None
        name = heappop(self._heap)[2]
        del self._at[name]
        return name

    def shift(self, by_s: float) -> None:
        """Move every deadline later: the time that passed while nobody could act."""
        self._rebuild(by_s)

    def _rebuild(self, by_s: float) -> None:
        self._at = {name: (at_s + by_s, serial) for name, (at_s, serial) in self._at.items()}
        self._heap = [(at_s, serial, name) for name, (at_s, serial) in self._at.items()]
        heapify(self._heap)
