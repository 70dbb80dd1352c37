"""The limits on waiting for one provider response, as arithmetic; pure.

Only time spent waiting for the provider counts. While nobody asks for the next bytes no clock runs,
so a slow reader can't time out a healthy stream. This file reads no clock itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """How long a provider may take, in seconds; all above 0, `None`: without a limit.

    Attributes:
        connect_s: until the connection stands (TCP and TLS).
        first_byte_s: from the request to the first byte of the answer's body.
        idle_s: between any two reads.
        progress_s: between two pieces of content; keep-alives are none.
        total_s: waited for the whole response.
        grace_s: for usage and `[DONE]` after a finish reason; passing it is no failure.
        pool_s: for a free connection of this worker.
    """

    connect_s: float = 10.0
    first_byte_s: float = 300.0
    idle_s: float = 300.0
    progress_s: float = 900.0  # DeepSeek keeps queued requests alive with comments for 10 minutes
    total_s: float | None = None
    grace_s: float = 2.0
    pool_s: float = 60.0


class StreamClocks:
    """The running clocks of one response.

    Attributes:
        limit: name of the limit that the deadline of the current wait comes from.
        limit_s: that limit in seconds.
    """

    __slots__ = (
        "_armed_at",
        "_has_bytes",
        "_limits",
        "_progress_s",
        "_total_s",
        "limit",
        "limit_s",
    )

    def __init__(self, limits: StreamLimits) -> None:
        self.limit = ""
        self.limit_s = 0.0
        self._limits = limits
        self._has_bytes = False
        self._armed_at = 0.0
        self._progress_s = 0.0  # waited since the last content
        self._total_s = 0.0

    def arm(self, now_s: float) -> float:
        """Begin a wait; return the monotonic second at which it has to be broken off."""
        limits = self._limits
        self._armed_at = now_s
        if self._has_bytes:
            left, self.limit, self.limit_s = limits.idle_s, "idle", limits.idle_s
        else:
            left = limits.first_byte_s - self._total_s
            self.limit, self.limit_s = "first-byte", limits.first_byte_s
        progress_left = limits.progress_s - self._progress_s
        if progress_left < left:
            left, self.limit, self.limit_s = progress_left, "progress", limits.progress_s
        if limits.total_s is not None and limits.total_s - self._total_s < left:
            left = limits.total_s - self._total_s
            self.limit, self.limit_s = "total", limits.total_s
        return now_s + left

    def disarm(self, now_s: float, *, has_bytes: bool) -> None:
        """End a wait, however it ended."""
        waited = now_s - self._armed_at
        self._progress_s += waited
        self._total_s += waited
        if has_bytes:
            self._has_bytes = True

    @property
    def quiet_s(self) -> float:
        """Seconds waited since the last content."""
        return self._progress_s

    def progressed(self) -> None:
        """Note that content came."""
        self._progress_s = 0.0
