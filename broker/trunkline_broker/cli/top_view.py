"""Computes what `trunkline top` shows: rates from successive status documents. Pure.

Rates are over the last ten seconds, since workers report once a second and tokens are known only
when a call ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, cast

from trunkline_protocol.counts import is_count, is_figure

from trunkline_broker.cli.troubles import troubles

WINDOW_S: Final = 10.0
BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000)
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One slot."""

    name: str
    state: str
    calls: int
    chunks_per_s: float
    memory_mib: float
    cpu_percent: float
    restarts: int
    age_s: float


@dataclass(frozen=True, slots=True)
class RouteRow:
    """One provider; times are medians of the window, `None` without any."""

    provider: str
    state: str
    running: int
    queued: int
    chunks_per_s: float
    tokens_per_s: float
    ttft_ms: float | None
    gap_ms: float | None


@dataclass(frozen=True, slots=True)
class View:
    """One screen."""

    version: str
    pid: int
    uptime_s: float
    state: str
    calls: Mapping[str, int]
    clients: int
    chunks_per_s: float
    tokens_per_s: float
    retries: int
    failed: int
    memory_mib: float
    cpu_percent: float
    workers: Sequence[WorkerRow]
    routes: Sequence[RouteRow]
    queues: Sequence[tuple[str, int, int, int]]
    """Name, depth, most ever, bound; those of routes are in `routes`, empty ones of workers out."""
    troubles: Sequence[str] = ()


class Window:
    """The status documents of the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[str, Any]]] = deque()

    def add(self, status: Mapping[str, Any], now_s: float) -> View:
        """Take a document; return the screen as of now."""
        if self._samples and self._samples[-1][1].get("epoch") != status.get("epoch"):
            self._samples.clear()  # another broker: its counters began anew
        self._samples.append((now_s, status))
        while len(self._samples) > 2 and now_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        return self._view()

    def _view(self) -> View:
        (then_s, then), (now_s, now) = self._samples[0], self._samples[-1]
        elapsed_s = now_s - then_s
        workers = _workers(then, now, elapsed_s)
        routes = _routes(then, now, elapsed_s)
        flags = [name for name in ("draining", "settling") if now.get(name)]
        usage, before = now.get("usage", {}), then.get("usage", {})
        cpu_s = usage.get("cpuS", 0.0) - before.get("cpuS", 0.0)
        return View(
            version=now["version"],
            pid=now["pid"],
            uptime_s=now["uptimeS"],
            state=" ".join(flags),
            calls={name: now["calls"][name] for name in ("running", "queued", "backoff", "tails")},
            clients=len(now["clients"]),
            chunks_per_s=sum(row.chunks_per_s for row in workers),
            tokens_per_s=sum(row.tokens_per_s for row in routes),
            retries=now["counters"].get("retries", 0),
            failed=now["counters"].get("calls_failed", 0),
            memory_mib=usage.get("rssBytes", 0) / _MIB,
            cpu_percent=100 * cpu_s / elapsed_s if elapsed_s else 0.0,
            workers=workers,
            routes=routes,
            queues=[
                (row["name"], row["depth"], row["highWater"], row["bound"])
                for row in now["queues"]
                if _is_shown(row)
            ],
            troubles=[trouble.text for trouble in troubles(now)],
        )


def _is_shown(row: Mapping[str, Any]) -> bool:
    """Tell whether a queue has a line: routes have their own, and workers have too many."""
    if row["name"].startswith("worker "):
        return row["depth"] > 0
    return not row["name"].startswith(("route ", "client "))


def _workers(then: Any, now: Any, elapsed_s: float) -> list[WorkerRow]:
    before = {_key(slot): slot for pool in then["pools"] for slot in pool["slots"]}
    rows: list[WorkerRow] = []
    for pool in now["pools"]:
        for slot in pool["slots"]:
            load, old = slot["load"], before.get(_key(slot), slot)["load"]
            chunks = _total(load, "chunks") - _total(old, "chunks")
            cpu_s = _figure(load, "cpuS") - _figure(old if "cpuS" in old else load, "cpuS")
            rows.append(
                WorkerRow(
                    name=f"{pool['name']}/{slot['slot']}",
                    state=slot["role"] or slot["state"],
                    calls=slot["inFlight"],
                    chunks_per_s=_rate(chunks, elapsed_s),
                    memory_mib=_figure(load, "rss") / _MIB,
                    cpu_percent=100 * _rate(cpu_s, elapsed_s),
                    restarts=slot["restarts"],
                    age_s=(slot["startedMsAgo"] or 0) / 1000,
                )
            )
    return rows


def _routes(then: Any, now: Any, elapsed_s: float) -> list[RouteRow]:
    rows: list[RouteRow] = []
    for route in now["routes"]:
        name = route["provider"]
        new, old = _loads(now, then, name)
        rows.append(
            RouteRow(
                provider=name,
                state=route["state"],
                running=route.get("inFlight", 0),
                queued=route.get("queued", 0),
                chunks_per_s=_rate(_sum(new, "chunks") - _sum(old, "chunks"), elapsed_s),
                tokens_per_s=_rate(_sum(new, "tokens") - _sum(old, "tokens"), elapsed_s),
                ttft_ms=median(_bins(new, "ttft"), _bins(old, "ttft")),
                gap_ms=median(_bins(new, "gaps"), _bins(old, "gaps")),
            )
        )
    return rows


def _loads(now: Any, then: Any, provider: str) -> tuple[list[Any], list[Any]]:
    """Return what the processes of both documents measured of a route; new ones began at 0."""
    before = {_key(slot): slot["load"] for pool in then["pools"] for slot in pool["slots"]}
    new: list[Any] = []
    old: list[Any] = []
    for pool in now["pools"]:
        for slot in pool["slots"]:
            routes = _map(slot["load"], "routes")
            if provider in routes:
                new.append(_map(routes, provider))
                old.append(_map(_map(before.get(_key(slot), {}), "routes"), provider))
    return new, old


def median(new: Sequence[int], old: Sequence[int]) -> float | None:
    """Return the upper bound of the bucket that holds the median of what was added, in ms."""
    added = [a - b for a, b in zip(new, old, strict=True)]
    total, seen = sum(added), 0
    if total <= 0:
        return None
    for bound, count in zip((*BUCKETS_MS, 60_000), added, strict=True):
        seen += count
        if seen * 2 >= total:
            return float(bound)
    raise AssertionError("the median is in some bucket")


def _bins(loads: Sequence[Any], name: str) -> list[int]:
    sums = [0] * (len(BUCKETS_MS) + 1)
    for load in loads:
        value = load.get(name)
        bins = cast("list[object]", value) if isinstance(value, list | tuple) else []
        counts = [count for count in bins if is_count(count)]
        if len(counts) == len(bins) <= len(sums):
            sums = [a + b for a, b in zip_longest(sums, counts, fillvalue=0)]
    return sums


def _sum(loads: Sequence[Any], name: str) -> float:
    return sum(_figure(load, name) for load in loads)


def _total(load: Mapping[str, Any], name: str) -> float:
    routes = _map(load, "routes")
    return _sum([_map(routes, route) for route in routes], name)


def _figure(load: Mapping[str, Any], name: str) -> float:
    """Return a figure of a worker; 0 for anything else: a worker may report whatever it likes."""
    value = load.get(name)
    return value if is_figure(value) else 0


def _map(load: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a map of a worker; an empty one if something else stands there."""
    value = load.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _key(slot: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(slot["generation"] or (0, 0))


def _rate(amount: float, elapsed_s: float) -> float:
    return max(0.0, amount) / elapsed_s if elapsed_s > 0 else 0.0
