"""Counts how often the broker was asked about a call and has sent nothing about it since.

A question is an `OPEN`, `ATTACH` or `CANCEL`; each of them is answered, whatever the broker knows
of the call (SPEC.md section 5.15). A `RESUME` is one too, which chunks answer. The next question
counts only if the broker has sent a frame since the last one. Each counts for a bounded time. So
neither a broker that stands still nor a client that does is blamed.
"""

from __future__ import annotations

from typing import Final

from trunkline_protocol.limits import REPEAT_MAX_S

UNANSWERED_S: Final = 60.0  # a call is given up; twice what a broker and its workers may need
SUSPECT_S: Final = 10.0  # a broker that settles answers after 5 s
_QUESTIONS: Final = 4  # three without an answer, and the one that is sent now


class Asking:
    """The unanswered questions about one call.

    Attributes:
        count: questions since the last answer.
        said_s: when the last one was sent.
    """

    __slots__ = ("_is_reported", "_waited_s", "count", "said_s")

    def __init__(self) -> None:
        self.count = 0
        self.said_s = float("-inf")
        self._waited_s = 0.0
        self._is_reported = False

    def ask(self, heard_s: float, answered_s: float, now_s: float) -> None:
        """Take note of a question that goes out.

        Args:
            heard_s: when the broker last sent anything.
            answered_s: when the last chunk of the call has come, which is an answer as well.
            now_s: monotonic seconds.
        """
        if answered_s > self.said_s:
            self.answered()
        if self.count and heard_s <= self.said_s:
            return  # it may not have read the last one yet
        if self.count:
            self._waited_s += min(now_s - self.said_s, REPEAT_MAX_S)
        self.count += 1
        self.said_s = now_s

    def take_back(self) -> None:
        """Take note that the last question could not be sent."""
        self.count = max(0, self.count - 1)

    def answered(self) -> None:
        """Take note of a frame that answers."""
        self.count = 0
        self._waited_s = 0.0
        self._is_reported = False

    def take_suspicion(self) -> bool:
        """Return whether three questions were answered by nothing; once until an answer."""
        if self._is_reported or not self._has_waited(SUSPECT_S):
            return False
        self._is_reported = True
        return True

    @property
    def is_hopeless(self) -> bool:
        """Whether the call is to be given up."""
        return self._has_waited(UNANSWERED_S)

    def _has_waited(self, bound_s: float) -> bool:
        return self.count >= _QUESTIONS and self._waited_s >= bound_s
