"""How many lines of a kind may be written in a second; the rest is counted and said.

A client that opens calls which fail at once would fill a disk with what is said of them: 7 MB in a
second were seen.
"""

from __future__ import annotations

import math
from typing import Final

LINES_PER_S: Final = 200


class LineBudget:
    """A budget that is whole again with each second."""

    def __init__(self, lines_per_s: int = LINES_PER_S) -> None:
        self._lines_per_s = lines_per_s
        self._second = 0
        self._left = lines_per_s
        self._held = 0

    def take(self, now_s: float) -> int | None:
        """Return how many lines were held back before this one; `None`: it is held back too.

        Args:
            now_s: monotonic seconds.
        """
        second = math.floor(now_s)
        if second != self._second:
            self._second, self._left = second, self._lines_per_s
        if not self._left:
            self._held += 1
            return None
        self._left -= 1
        held, self._held = self._held, 0
        return held
