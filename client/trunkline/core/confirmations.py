"""`DONE` for several calls at once, at most every `DONE_BATCH_S` (rule 10 of SPEC.md section 5)."""

from __future__ import annotations

from typing import Final

from trunkline_protocol import limits
from trunkline_protocol.frames import CallRef, Done

from trunkline.core.effects import NOTHING, Effects, Send
from trunkline.core.queues import QueueStatistics

_NEVER_S: Final = float("inf")


class Confirmations:
    """Attempts that were received whole and whose workers may forget them.

    Attributes:
        due_s: when `flush` must be called next; infinity for never.
    """

    __slots__ = ("_high_water", "_refs", "_sent_s", "due_s")

    def __init__(self) -> None:
        self._refs: list[CallRef] = []
        self._high_water = 0
        self._sent_s = -_NEVER_S
        self.due_s = _NEVER_S

    def add(self, refs: tuple[CallRef, ...], now_s: float) -> None:
        """Take some more; a full list is due at once."""
        self._refs.extend(refs)
        self._high_water = max(self._high_water, len(self._refs))
        if len(self._refs) >= limits.MAX_LIST_ENTRIES:
            self.due_s = now_s
        elif self.due_s == _NEVER_S:
            self.due_s = max(now_s, self._sent_s + limits.DONE_BATCH_S)

    def flush(self, now_s: float, *, can_send: bool) -> Effects:
        """Send what there is; while no broker answers it waits (at most one list)."""
        self.due_s = _NEVER_S
        if not self._refs or not can_send:
            del self._refs[: -limits.MAX_LIST_ENTRIES]
            return NOTHING
        refs, self._refs = tuple(self._refs[-limits.MAX_LIST_ENTRIES :]), []
        self._sent_s = now_s
        return [Send(Done(refs))]

    def statistics(self) -> QueueStatistics:
        """Return how many wait, waited and may wait; older ones run out at their workers."""
        high, bound = self._high_water, limits.MAX_LIST_ENTRIES
        return QueueStatistics("confirmations", len(self._refs), min(high, bound), bound)
