"""A clock for limits on waiting that stands still while the loop stands still.

A limit measures how long a provider was silent. On a busy machine a loop runs late, and the bytes
that arrived meanwhile are unread: that time is not the provider's. A beat notices how late the loop
was, and the clock leaves those seconds out.
"""

from __future__ import annotations

import asyncio
from typing import Final

BEAT_S: Final = 0.05  # a fraction of the shortest limit that is of use; 20 timers a second per loop


class LoopClock:
    """Monotonic seconds less the seconds in which the loop ran late.

    The beat runs from the first `hold` to the last `release`; at other times nothing is left out.

    Args:
        loop: whose lateness counts.
    """

    __slots__ = ("_due_s", "_handle", "_holders", "_loop", "_lost_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._holders = 0
        self._due_s = 0.0
        self._lost_s = 0.0

    @property
    def lost_s(self) -> float:
        """Seconds left out so far, those of a beat that is due and has not run included."""
        late_s = self._loop.time() - self._due_s if self._handle is not None else 0.0
        return self._lost_s + max(late_s, 0.0)

    def now_s(self) -> float:
        """Return the seconds of this clock."""
        return self._loop.time() - self.lost_s

    def hold(self) -> None:
        """Begin to need the clock; each hold needs one `release`."""
        self._holders += 1
        if self._handle is None:
            self._schedule()

    def release(self) -> None:
        """End a need of the clock; the last one stops the beat."""
        self._holders -= 1
        if self._holders == 0 and self._handle is not None:
            self._lost_s = self.lost_s
            self._handle.cancel()
            self._handle = None

    def _schedule(self) -> None:
        self._due_s = self._loop.time() + BEAT_S
        self._handle = self._loop.call_at(self._due_s, self._beat)

    def _beat(self) -> None:
        self._lost_s = self.lost_s
        self._schedule()
