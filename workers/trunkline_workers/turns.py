"""Shares the loop: work that is always ready leaves it to others after a few milliseconds."""

from __future__ import annotations

import asyncio
from typing import Final

# Per turn of the loop and stream. A reader does not notice it, and a yield costs 20 microseconds.
BUDGET_S: Final = 0.003


class Turns:
    """The time that one stream has used in the current turn of its loop.

    Args:
        loop: that is shared.
    """

    __slots__ = ("_began_s", "_is_current", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_current = False
        self._began_s = 0.0

    async def share(self) -> None:
        """Go on at once while the budget of the turn lasts; otherwise wait for the next turn."""
        now_s = self._loop.time()
        if not self._is_current:
            self._begin(now_s)
        elif now_s - self._began_s >= BUDGET_S:
            await asyncio.sleep(0)
            if not self._is_current:
                self._begin(self._loop.time())

    def _begin(self, now_s: float) -> None:
        self._is_current = True
        self._began_s = now_s
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._is_current = False
