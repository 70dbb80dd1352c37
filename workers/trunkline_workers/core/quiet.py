"""Decides how much a provider may send without content before its answer counts as none; pure.

Keep-alives, empty pieces and hidden thinking carry no content, and come as fast as a model works. A
flood of them costs this process more than its sender, so a burst has a bound, and time that was
waited for the provider allows more.
"""

from __future__ import annotations

from typing import Final

QUIET_BYTES: Final = 16 * 1024 * 1024  # as large as one event may be
QUIET_EVENTS: Final = 20_000  # an SDK needs some 100 microseconds for each
QUIET_EVENTS_PER_S: Final = 500  # more per second of waiting; no model writes as fast


class Quiet:
    """What came since the last content."""

    __slots__ = ("_bytes", "_events")

    def __init__(self) -> None:
        self._bytes = 0
        self._events = 0

    def end(self) -> None:
        """Note that content came."""
        self._bytes = self._events = 0

    def add(self, size: int, events: int, waited_s: float) -> str | None:
        """Count what came; return what is wrong with it, or `None` if it is bearable.

        Args:
            size: in bytes.
            events: whole ones.
            waited_s: seconds waited for the provider since the last content.
        """
        self._bytes += size
        self._events += events
        if self._bytes > QUIET_BYTES:
            return f"the provider sent {QUIET_BYTES >> 20} MiB without content"
        if self._events > QUIET_EVENTS + QUIET_EVENTS_PER_S * waited_s:
            return f"the provider sent {self._events} events without content"
        return None
