"""What an agent pays per chunk, beside the official SDK that reads the provider itself."""

from __future__ import annotations

from bench.result import Result, shown, versus
from bench.rig import Rig
from bench.running import gateway_us, run_agent

BURST_BUDGET = 1 / 40
PACED_BUDGET = 1 / 5
PACE_MS = 20
PACED_STREAMS = 20
PACED_CHUNKS = 100


def agent_cpu(rig: Rig, rounds: int, chunks: int) -> Result:
    """Compare CPU per chunk with the `openai` SDK's, in a burst and paced."""
    result = Result()
    cases = (
        ("burst", 0, 1, chunks, BURST_BUDGET),
        (
            f"{PACED_STREAMS} streams at {PACE_MS} ms",
            PACE_MS,
            PACED_STREAMS,
            PACED_CHUNKS,
            PACED_BUDGET,
        ),
    )
    for name, pace, streams, count, budget in cases:
        ours: list[float] = []
        sdk: list[float] = []
        gateway: list[float] = []
        for _ in range(rounds):
            before = rig.cpu_s()
            done = run_agent(rig, "trunkline", "mock", "mock", count, pace=pace, streams=streams)
            gateway.append(gateway_us(before, rig.cpu_s(), done["chunks"]))
            ours.append(done["cpu_us"])
            peer = run_agent(rig, "openai", rig.url, "mock", count, pace=pace, streams=streams)
            sdk.append(peer["cpu_us"])
        limit = (f"<= 1/{round(1 / budget)}", lambda ratio, most=budget: ratio <= most)
        what = f"agent CPU per chunk, {name}"
        result.rows.append(versus(what, ours, "{:.2f} us", ("openai SDK", sdk), limit))
        result.rows.append(shown(f"worker + broker CPU per chunk, {name}", gateway, "{:.1f} us"))
    return result
