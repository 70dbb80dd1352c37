"""Counters and histograms per route, reported in heartbeats; the broker sees no chunk itself."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000)
"""Upper bounds of the histogram buckets; one more bucket holds what is above the last."""

MAX_ROUTES: Final = 256  # routes are few; a bound all the same, as they come from requests


class _RouteLoad:
    """Totals of one route since the process began."""

    __slots__ = ("calls", "chunks", "failed", "gaps", "gaps_s", "tokens", "ttft", "ttft_s")

    def __init__(self) -> None:
        self.calls = self.chunks = self.tokens = self.failed = 0
        self.ttft_s = self.gaps_s = 0.0
        self.ttft = [0] * (len(BUCKETS_MS) + 1)
        self.gaps = [0] * (len(BUCKETS_MS) + 1)

    def to_dict(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "failed": self.failed,
            "chunks": self.chunks,
            "tokens": self.tokens,
            "ttft": self.ttft,
            "ttftS": round(self.ttft_s, 6),
            "gaps": self.gaps,
            "gapsS": round(self.gaps_s, 6),
        }


class CallMeter:
    """Times one attempt; a gap is the time between two hand-overs of chunks, not between chunks."""

    __slots__ = ("_last_s", "_route", "_started_s")

    def __init__(self, route: _RouteLoad, now_s: float) -> None:
        self._route = route
        self._started_s = now_s
        self._last_s: float | None = None
        route.calls += 1

    def on_chunks(self, count: int, now_s: float) -> None:
        """Count chunks that the adapter handed over together."""
        route = self._route
        route.chunks += count
        if self._last_s is None:
            waited_s = now_s - self._started_s
            route.ttft[_bucket(waited_s)] += 1
            route.ttft_s += waited_s
        else:
            waited_s = now_s - self._last_s
            route.gaps[_bucket(waited_s)] += 1
            route.gaps_s += waited_s
        self._last_s = now_s

    def on_finish(self, tokens: int, *, is_failure: bool) -> None:
        """Count the end of the attempt and the tokens it put out."""
        self._route.chunks += 1
        self._route.tokens += tokens
        self._route.failed += is_failure


class LoadMeter:
    """All routes of this worker."""

    def __init__(self) -> None:
        self._routes: dict[str, _RouteLoad] = {}

    def open(self, provider: str, now_s: float) -> CallMeter:
        """Begin to measure an attempt; routes beyond `MAX_ROUTES` are measured together."""
        if provider not in self._routes and len(self._routes) >= MAX_ROUTES:
            provider = ""
        return CallMeter(self._routes.setdefault(provider, _RouteLoad()), now_s)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals of every route."""
        return {provider: route.to_dict() for provider, route in self._routes.items()}


def _bucket(seconds: float) -> int:
    return bisect_left(BUCKETS_MS, seconds * 1000)
