"""Provider bytes → typed chunks in the application, through one worker and the broker.

The same stream is read by the bare loop of `agent.direct_way` (httpx over aiohttp and typed
decoding, nothing else) in the same run, so the figures are a ratio and not a machine's.
"""

from __future__ import annotations

import statistics
from typing import Final

from bench.result import Result, Row, spread
from bench.rig import Rig
from bench.running import run_agent

CPU_BUDGET_US: Final = 12.0
WHOLE_BUDGET_US: Final = 15.0
RATE_BUDGET: Final = 0.4
LINEAR_BUDGET: Final = 12.0
TIMES: Final = 10


def provider_path(rig: Rig, rounds: int, chunks: int) -> Result:
    """Measure a burst of one stream, and a ten times longer one.

    Args:
        rig: with the mock provider.
        rounds: of each, interleaved.
        chunks: of the long stream; the short one has a tenth of them.
    """
    bare: list[float] = []
    ours: list[float] = []
    cpu: dict[str, list[float]] = {"worker": [], "broker": []}
    whole: list[float] = []
    growth: list[float] = []
    for _ in range(rounds):
        bare.append(run_agent(rig, "direct", rig.url, "mock", chunks)["chunks_per_s"])
        short = _whole_us(rig, chunks // TIMES)
        long = _whole_us(rig, chunks)
        cpu["worker"].append(long["worker"])
        cpu["broker"].append(long["broker"])
        ours.append(long["chunks_per_s"])
        whole.append(long["whole"])
        growth.append(TIMES * long["whole"] / short["whole"])
    both = [sum(pair) for pair in zip(cpu["worker"], cpu["broker"], strict=True)]
    shares = {name: statistics.median(values) for name, values in cpu.items()}
    rate, peer = statistics.median(ours), statistics.median(bare)
    rows = [
        Row(
            "provider SSE to client, worker + broker CPU per chunk",
            f"{statistics.median(both):.1f} us",
            f"worker {shares['worker']:.1f} us, broker {shares['broker']:.1f} us",
            None,
            f"<= {CPU_BUDGET_US:g} us",
            statistics.median(both) <= CPU_BUDGET_US,
            spread(both, "{:.1f}"),
        ),
        Row(
            "the same with the agent: provider bytes to typed chunk",
            f"{statistics.median(whole):.1f} us",
            "",
            None,
            f"<= {WHOLE_BUDGET_US:g} us",
            statistics.median(whole) <= WHOLE_BUDGET_US,
            spread(whole, "{:.1f}"),
        ),
        Row(
            "provider SSE to client, throughput",
            f"{rate:,.0f} chunks/s",
            f"bare loop {peer:,.0f}",
            rate / peer,
            f">= {RATE_BUDGET:g}",
            rate / peer >= RATE_BUDGET,
            spread(ours, "{:,.0f}"),
        ),
        Row(
            f"CPU of {chunks:,} chunks against {chunks // TIMES:,}, all three processes",
            f"{statistics.median(growth):.1f} x",
            "",
            None,
            f"<= {LINEAR_BUDGET:g} x",
            statistics.median(growth) <= LINEAR_BUDGET,
            spread(growth, "{:.1f}"),
        ),
    ]
    return Result(rows)


def _whole_us(rig: Rig, chunks: int) -> dict[str, float]:
    """Read one stream; return microseconds of CPU per chunk by process, and the throughput."""
    before = rig.cpu_s()
    done = run_agent(rig, "trunkline", "mock", "mock", chunks)
    after = rig.cpu_s()
    worker, broker = (
        (after[name] - before[name]) / done["chunks"] * 1e6 for name in ("mock", "broker")
    )
    return {
        "worker": worker,
        "broker": broker,
        "whole": worker + broker + done["cpu_us"],
        "chunks_per_s": done["chunks_per_s"],
    }
