"""The heap of the calls of a client by when each is looked at again; the newest entry counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from trunkline_protocol.ids import CallId
from trunkline_protocol.limits import RESUME_AFTER_S

from trunkline.core.stream_state import StreamState

_SLACK: Final = 1024  # entries of calls that are over or were looked at earlier
NEVER_S: Final = float("inf")


class Schedule:
    """The next deadlines of all calls; a later deadline is found out at the earlier one."""

    __slots__ = ("_calls", "_heap")

    def __init__(self, calls: Mapping[CallId, StreamState]) -> None:
        """Look after calls; those that are taken out of the mapping count no more."""
        self._calls = calls
        self._heap: list[tuple[float, CallId]] = []

    def __len__(self) -> int:
        """Return the number of entries, those that do not count any more included."""
        return len(self._heap)

    def next_s(self) -> float:
        """Return when the next call is due; infinity for never."""
        heap = self._heap
        while heap and not self._counts(*heap[0]):
            heappop(heap)
        return heap[0][0] if heap else NEVER_S

    def due(self, now_s: float) -> Iterator[StreamState]:
        """Yield the calls that are due; each is to be put in again."""
        while self._heap and self._heap[0][0] <= now_s:
            at_s, call = heappop(self._heap)
            if self._counts(at_s, call):
                stream = self._calls[call]
                stream.scheduled_s = NEVER_S
                yield stream

    def put(self, stream: StreamState, now_s: float) -> None:
        """Look at a call again at its next deadline.

        What is due but can't be done, such as restating without a broker, is looked at later.
        """
        at_s = stream.next_deadline_s()
        if at_s <= now_s:
            at_s = now_s + RESUME_AFTER_S
        if at_s < stream.scheduled_s:
            stream.scheduled_s = at_s
            heappush(self._heap, (at_s, stream.call))
            if len(self._heap) > 2 * len(self._calls) + _SLACK:
                self._heap = [one for one in self._heap if self._counts(*one)]
                heapify(self._heap)

    def _counts(self, at_s: float, call: CallId) -> bool:
        """Return whether an entry still counts: not closed since, nor put in anew."""
        stream = self._calls.get(call)
        return stream is not None and stream.scheduled_s == at_s
