"""Rates of `trunkline top` from status documents."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from trunkline_broker.cli.top_view import BUCKETS_MS, WINDOW_S, Window, median
from trunkline_workers.core.load import BUCKETS_MS as WORKERS_BUCKETS_MS

BINS = len(BUCKETS_MS) + 1


def a_status(chunks: int = 0, tokens: int = 0, cpu_s: float = 1.0, **fields: Any) -> Any:
    ttft, gaps = [0] * BINS, [0] * BINS
    ttft[6], gaps[4] = chunks, chunks
    load = {
        "rss": 40 * 1024 * 1024,
        "cpuS": cpu_s,
        "routes": {"p": {"chunks": chunks, "tokens": tokens, "ttft": ttft, "gaps": gaps}},
    }
    slot = {
        "slot": 0, "state": "serving", "role": "serving", "inFlight": 2, "restarts": 1,
        "generation": [1, 1], "startedMsAgo": 5000, "load": load,
    }  # fmt: skip
    return {
        "version": "0.1.0", "pid": 7, "uptimeS": 9.0, "epoch": 1, "draining": False,
        "settling": True, "clients": [{}],
        "calls": {"running": 2, "queued": 1, "backoff": 0, "tails": 3},
        "counters": {"retries": 4},
        "usage": {"cpuS": cpu_s, "rssBytes": 1024 * 1024},
        "pools": [{"name": "w", "slots": [slot]}],
        "routes": [
            {"provider": "p", "pool": "w", "state": "serving", "inFlight": 2, "queued": 1},
            {"provider": "gone", "pool": "x", "state": "down"},
        ],
        "queues": [
            {"name": "route p", "depth": 1, "highWater": 1, "bound": 9},
            {"name": "queries", "depth": 1, "highWater": 2, "bound": 3},
        ],
        **fields,
    }  # fmt: skip


def test_the_buckets_are_those_of_the_workers() -> None:
    assert BUCKETS_MS == WORKERS_BUCKETS_MS


def test_rates_are_differences_over_time() -> None:
    window = Window()
    first = window.add(a_status(100, 10), 0.0)
    assert (first.chunks_per_s, first.tokens_per_s, first.cpu_percent) == (0, 0, 0)
    view = window.add(a_status(300, 50, cpu_s=1.5), 2.0)
    assert (view.chunks_per_s, view.tokens_per_s) == (100, 20)
    (worker,) = view.workers
    assert (worker.name, worker.state, worker.calls, worker.restarts) == ("w/0", "serving", 2, 1)
    assert (worker.chunks_per_s, worker.cpu_percent, worker.memory_mib) == (100, 25, 40)
    route, gone = view.routes
    assert (route.running, route.queued, route.ttft_ms, route.gap_ms) == (2, 1, 100, 20)
    assert (gone.state, gone.running, gone.ttft_ms) == ("down", 0, None)
    assert (view.state, view.retries, view.failed, view.clients) == ("settling", 4, 0, 1)
    assert view.queues == [("queries", 1, 2, 3)]


def test_what_is_wrong_is_on_the_screen() -> None:
    assert Window().add(a_status(), 0.0).troubles == []
    lost = a_status(measures={"ledger": {"lost": 3}})
    assert Window().add(lost, 0.0).troubles == ["the usage ledger has lost 3 attempts"]


def test_queues_of_workers_are_shown_while_something_waits() -> None:
    """Each worker has several, and nearly all are empty."""
    names = ("queries", "worker w/0 pid 7 calls", "worker w/0 pid 7 leases", "client ab credit")
    rows = [
        {"name": name, "depth": depth, "highWater": 9, "bound": 9}
        for name, depth in zip(names, (0, 1, 0, 5), strict=True)
    ]
    shown = Window().add(a_status(queues=rows), 0.0).queues
    assert [row[0] for row in shown] == ["queries", "worker w/0 pid 7 calls"]


def test_only_the_last_seconds_count() -> None:
    window = Window()
    for second in range(30):
        view = window.add(a_status(second * second), float(second))
    assert view.chunks_per_s == pytest.approx((29**2 - 19**2) / WINDOW_S)


def test_a_new_process_and_a_new_broker_begin_at_nothing() -> None:
    window = Window()
    window.add(a_status(500), 0.0)
    other = copy.deepcopy(a_status(40))
    other["pools"][0]["slots"][0]["generation"] = [1, 2]
    view = window.add(other, 2.0)
    assert view.routes[0].chunks_per_s == 20
    assert view.workers[0].chunks_per_s == 0  # of a process that was not there before
    assert window.add(a_status(900, epoch=2), 3.0).chunks_per_s == 0


def test_a_slot_without_a_process_is_shown() -> None:
    status = a_status()
    slot = status["pools"][0]["slots"][0]
    slot.update(role=None, state="backoff", generation=None, startedMsAgo=None, load={})
    (row,) = Window().add(status, 0.0).workers
    assert (row.state, row.memory_mib, row.age_s) == ("backoff", 0, 0)


def test_the_median_is_a_bound() -> None:
    nothing = [0] * BINS
    assert median(nothing, nothing) is None
    assert median([1, 0, 2] + [0] * (BINS - 3), nothing) == BUCKETS_MS[2]
    assert median([0] * (BINS - 1) + [1], nothing) == 60_000
    assert median([2, 1] + [0] * (BINS - 2), [1, 1] + [0] * (BINS - 2)) == BUCKETS_MS[0]
