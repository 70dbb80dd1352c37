"""Memory of the broker with many streams in which nothing happens."""

from __future__ import annotations

from typing import Final

from bench.control import idle_streams
from bench.result import Chart, Points, Result, absolute
from bench.rig import Rig, rig

STREAMS: Final = 2000
RSS_BUDGET_MIB: Final = 60.0
STREAM_BUDGET_KIB: Final = 4.0


def memory(running: Rig, rounds: int, streams: int) -> Result:
    """Measure a fresh broker without streams, and with more and more of them."""
    del running  # what ran through it before is still in its memory
    rss: list[float] = []
    each: list[float] = []
    curve: Points = []
    for _ in range(rounds):
        with rig() as fresh:
            empty = fresh.broker_rss_mib()
            curve = [(0, empty)]
            for count in (streams // 4, streams // 2, streams):
                with idle_streams(fresh, count):
                    curve.append((count, fresh.broker_rss_mib()))
            rss.append(curve[-1][1])
            each.append((curve[-1][1] - empty) / streams * 1024)
    chart = Chart("memory", "Broker memory", "idle streams", "MiB resident", {"broker": curve})
    return Result(
        [
            absolute(
                f"broker memory with {streams:,} idle streams",
                rss,
                "{:.1f} MiB",
                (f"<= {RSS_BUDGET_MIB:g} MiB", lambda value: value <= RSS_BUDGET_MIB),
                f"without {curve[0][1]:.1f} MiB",
            ),
            absolute(
                "of that per stream",
                each,
                "{:.2f} KiB",
                (f"<= {STREAM_BUDGET_KIB:g} KiB", lambda value: value <= STREAM_BUDGET_KIB),
            ),
        ],
        [chart],
    )
