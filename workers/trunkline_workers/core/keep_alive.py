"""Decides whether an idle connection may carry another call; pure.

A request on a connection that the server is closing fails, and must not be sent again blindly: the
provider may have taken it. So a connection is used only while its server is known to keep it. A
server states how long that is (`Keep-Alive: timeout=n`), or its closings and its patience show it.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

KEPT_S: Final = 30.0  # the longest; below the 60 s and more after which provider front ends close
UNKNOWN_S: Final = 4.0  # without a word of the server; below the 5 s of uvicorn and Node
MARGIN_S: Final = 1.0  # a request takes that long at most until the server sees it
SETTLE_S: Final = 0.05  # within it a server closes that says nothing and keeps no connection
FORGET_S: Final = 300.0  # after that an early closing says nothing about the server any more
_TIMEOUT: Final = re.compile(r"(?:^|[,;\s])timeout\s*=\s*\"?(\d{1,9})", re.IGNORECASE)


class Use(Enum):
    """What to do with an idle connection."""

    USE = "use"
    WAIT = "wait"  # its server has not shown that it keeps connections
    CLOSE = "close"


class KeepAlive:
    """What is known of how long one server keeps idle connections."""

    __slots__ = ("_closed_at_s", "_closed_s", "_proven_s", "_stated_s")

    def __init__(self) -> None:
        self._stated_s: float | None = None
        self._proven_s = 0.0  # the longest idle time after which a connection still stood
        self._closed_s: float | None = None  # the shortest idle time after which one was closed
        self._closed_at_s = 0.0

    def state(self, header: str | None) -> None:
        """Take the `Keep-Alive` header of an answer; `None`: it has none."""
        found = _TIMEOUT.search(header) if header is not None else None
        self._stated_s = float(found[1]) if found is not None else None

    def survived(self, idle_s: float) -> None:
        """Note that a connection was still open after an idle time."""
        self._proven_s = max(self._proven_s, idle_s)

    def closed(self, idle_s: float, now_s: float) -> None:
        """Note that the server closed a connection after an idle time."""
        known = self._closed_after_s(now_s)
        self._closed_s = idle_s if known is None else min(known, idle_s)
        self._closed_at_s = now_s
        self._proven_s = min(self._proven_s, idle_s)

    def limit_s(self, now_s: float) -> float:
        """Return for how many idle seconds a connection may be used; 0: for none."""
        stated, closed = self._stated_s, self._closed_after_s(now_s)
        limit_s = max(UNKNOWN_S, self._proven_s) if stated is None else _early(stated)
        if closed is not None:
            limit_s = min(limit_s, _early(closed))
        return min(limit_s, KEPT_S)

    def use(self, idle_s: float, now_s: float) -> Use:
        """Decide about a connection that has been idle for that long and looks open."""
        if idle_s > self.limit_s(now_s):
            return Use.CLOSE
        is_known = self._stated_s is not None or self._proven_s >= SETTLE_S
        return Use.USE if is_known or idle_s >= SETTLE_S else Use.WAIT

    def settles_in_s(self, idle_s: float) -> float:
        """Return how long to wait with a connection of which `use` says so."""
        return max(SETTLE_S - idle_s, 0.0)

    def _closed_after_s(self, now_s: float) -> float | None:
        is_known = self._closed_s is not None and now_s - self._closed_at_s < FORGET_S
        return self._closed_s if is_known else None


def _early(limit_s: float) -> float:
    """Return a time that is safely before a server's limit, or 0 if there is none."""
    return limit_s - MARGIN_S if limit_s > 2 * MARGIN_S else limit_s / 2 if limit_s >= 1 else 0.0
