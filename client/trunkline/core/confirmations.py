"""`DONE` for several calls at once, and again for each that the broker still names.

At most every `DONE_BATCH_S` (rule 10 of SPEC.md section 5). A `DONE` may get lost with its
connection; the broker then names the call again, and the answer follows from what is known here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from trunkline_protocol import limits
from trunkline_protocol.frames import CallRef, Cancel, Done
from trunkline_protocol.ids import CallId

from trunkline.core.effects import NOTHING, Effects, Send
from trunkline.core.queues import QueueStatistics

_NEVER_S: Final = float("inf")


class Confirmations:
    """Attempts that were received whole and whose workers may forget them.

    Attributes:
        due_s: when `flush` must be called next; infinity for never.
    """

    __slots__ = ("_handed_over", "_high_water", "_refs", "_said", "_sent_s", "due_s")

    def __init__(self) -> None:
        self._refs: list[CallRef] = []
        self._said: OrderedDict[CallRef, float] = OrderedDict()  # and when; the oldest first
        self._handed_over: OrderedDict[CallRef, None] = OrderedDict()  # the oldest first
        self._high_water = 0
        self._sent_s = -_NEVER_S
        self.due_s = _NEVER_S

    def add(self, refs: tuple[CallRef, ...], now_s: float) -> None:
        """Take some more; a full list is due at once."""
        self._refs.extend(refs)
        for ref in refs:
            self._said[ref] = now_s
            self._said.move_to_end(ref)
        while len(self._said) > limits.MAX_LIST_ENTRIES:
            self._said.popitem(last=False)
        self._high_water = max(self._high_water, len(self._refs))
        if len(self._refs) >= limits.MAX_LIST_ENTRIES:
            self.due_s = now_s
        elif self.due_s == _NEVER_S:
            self.due_s = max(now_s, self._sent_s + limits.DONE_BATCH_S)

    def hand_over(self, call: CallId, attempt: int) -> None:
        """Take note that another client may read this attempt: this one does not end it."""
        self._handed_over[CallRef(call, attempt)] = None
        if len(self._handed_over) > limits.MAX_LIST_ENTRIES:
            self._handed_over.popitem(last=False)

    def on_named(self, call: CallId, attempt: int, now_s: float, *, is_ended: bool) -> Effects:
        """Answer a broker that names a call which this client does not hold.

        Args:
            call: with `attempt`, what it named.
            attempt: counts from 0.
            now_s: monotonic seconds.
            is_ended: the broker knows that it has ended.

        Returns:
            Nothing if a `DONE` is under way, or is due again: `flush` sends it. `CANCEL` for a
            running attempt that was never received whole here. Nothing for one that was handed
            over: a broker that has not heard of it names it here.
        """
        ref = CallRef(call, attempt)
        if ref in self._handed_over:
            return NOTHING
        said_s = self._said.get(ref)
        if said_s is not None and now_s - said_s < limits.REPEAT_AFTER_S:
            return NOTHING
        if said_s is None and not is_ended:
            return [Send(Cancel(call, attempt))]
        self.add((ref,), now_s)
        return NOTHING

    def on_unsent(self, refs: tuple[CallRef, ...], now_s: float) -> None:
        """Take back what could not be sent; it is due again after `REPEAT_AFTER_S`."""
        self._refs = [*refs, *self._refs][-limits.MAX_LIST_ENTRIES :]
        self.due_s = now_s + limits.REPEAT_AFTER_S

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
