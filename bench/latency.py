"""Time that Trunkline adds: to each chunk of paced streams, and to the first one of a call."""

from __future__ import annotations

import statistics
from typing import Final

from bench.bare_lane import inner_of, outer_of
from bench.result import Chart, Result, Row, cumulative, quantile, shown
from bench.rig import Child, Rig
from bench.running import first_ms, run_agent

STREAMS: Final = 20
PACE_MS: Final = 20
OVER_BARE_MS: Final = ((0.5, 0.3), (0.99, 1.5))
FIRST_BUDGET_MS: Final = 1.2


def latency(rig: Rig, rounds: int, chunks: int) -> Result:
    """Compare the lateness of chunks at the application, read directly and through Trunkline.

    The limit is the bare lane: so many frames every 20 ms through a proxy, nothing else.
    """
    late: dict[str, list[float]] = {"direct": [], "trunkline": [], "bare": []}
    for _ in range(rounds):
        for way, target in (("direct", rig.url), ("trunkline", "mock")):
            done = run_agent(
                rig, way, target, "mock", chunks, pace=PACE_MS, streams=STREAMS, late=True
            )
            late[way] += done["late_ms"]
        late["bare"] += _bare(rig, chunks)
    rows: list[Row] = []
    for share, over_ms in OVER_BARE_MS:
        ours, direct, bare = (quantile(late[way], share) for way in ("trunkline", "direct", "bare"))
        rows.append(
            Row(
                f"added per chunk, {STREAMS} streams at {PACE_MS} ms, p{share * 100:g}",
                f"{ours - direct:.2f} ms",
                f"bare lane {bare:.2f} ms, direct {direct:.2f} ms",
                None,
                f"<= bare lane + {over_ms} ms",
                ours - direct <= bare + over_ms,
                f"p99.9 of ours {quantile(late['trunkline'], 0.999):.2f} ms",
            )
        )
    names = {"direct": "provider read directly", "trunkline": "Trunkline", "bare": "bare lane"}
    curves = {names[way]: cumulative(values) for way, values in late.items()}
    title = f"Lateness of a chunk, {STREAMS} streams at {PACE_MS} ms"
    x, y = "milliseconds from the provider to the application", "percent of chunks"
    return Result(rows, [Chart("latency", title, x, y, curves, is_log_x=True)])


def _bare(rig: Rig, chunks: int) -> list[float]:
    where = str(rig.directory)
    numbers = (str(chunks * STREAMS), str(STREAMS), str(PACE_MS))
    with (
        Child("bench.bare_lane", "proxy", where) as proxy,
        Child("bench.bare_lane", "receive", outer_of(where), *numbers) as receiver,
        Child("bench.bare_lane", "send", inner_of(where), *numbers) as sender,
    ):
        receiver.line()
        sender.go()
        late: list[float] = receiver.result()["late_ms"]
        sender.end()
        proxy.end()
        return late


def first_chunk(rig: Rig, rounds: int, calls: int) -> Result:
    """Compare the time to the first chunk with the bare HTTP client's, call after call."""
    ours: list[float] = []
    direct: list[float] = []
    added: list[float] = []
    for _ in range(rounds):
        bare, here = (
            first_ms(rig, ("direct", rig.url, "mock"), calls),
            first_ms(rig, ("trunkline", "mock", "mock"), calls),
        )
        added.append(statistics.median(here) - statistics.median(bare))
        direct += bare
        ours += here
    median = statistics.median(added)
    row = Row(
        "added time to first chunk, p50",
        f"{median:.2f} ms",
        f"direct {statistics.median(direct):.2f} ms, ours {statistics.median(ours):.2f} ms",
        None,
        f"<= {FIRST_BUDGET_MS} ms",
        median <= FIRST_BUDGET_MS,
        f"{min(added):.2f} - {max(added):.2f} ms",
    )
    p99 = shown("time to first chunk, p99", [quantile(ours, 0.99)], "{:.2f} ms")
    curves = {"provider read directly": cumulative(direct), "Trunkline": cumulative(ours)}
    title, x = "Time to the first chunk", "milliseconds from the request"
    chart = Chart("first_chunk", title, x, "percent of calls", curves)
    return Result([row, p99], [chart])
