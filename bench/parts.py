"""The measurements; each returns rows of the report and interleaves what it compares."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.rig import Child, Rig

BARE: Final = "bare zmq.proxy"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    Attributes:
        what: what was measured.
        ours: median of ours, with its unit.
        beside: what it is compared with, its median and unit.
        ratio: ours ÷ that; `None` where the budget is absolute.
        budget: as text.
        is_met: whether the figure is within the budget.
        spread: least and greatest of ours.
    """

    what: str
    ours: str
    beside: str
    ratio: float | None
    budget: str
    is_met: bool
    spread: str


def lane(rig: Rig, rounds: int, chunks: int) -> list[Row]:
    """Compare adapter → application with the same frames through a bare proxy."""
    rows: list[Row] = []
    for per_frame in (1, 16):
        count = chunks * (1 if per_frame == 1 else 4)
        ours: list[float] = []
        bare: list[float] = []
        for _ in range(rounds):
            bare.append(_bare(rig, count, per_frame))
            ours.append(run_agent(rig, "trunkline", "burst", str(per_frame), count)["chunks_per_s"])
        ratio = statistics.median(ours) / statistics.median(bare)
        rows.append(
            Row(
                f"lane, {per_frame} chunk{'s' if per_frame > 1 else ''} per loop turn",
                f"{statistics.median(ours):,.0f} chunks/s",
                f"{BARE} {statistics.median(bare):,.0f}",
                ratio,
                ">= 0.55",
                ratio >= 0.55,
                spread(ours, "{:,.0f}"),
            )
        )
    return rows


def agent_cpu(rig: Rig, rounds: int, chunks: int) -> list[Row]:
    """Compare what an agent pays per chunk with the `openai` SDK, in a burst and paced."""
    rows: list[Row] = []
    cases = (("burst", 0, 1, chunks, 1 / 40), ("paced at 20 ms", 20, 20, 100, 1 / 5))
    for name, pace, streams, count, budget in cases:
        ours: list[float] = []
        sdk: list[float] = []
        gateway: list[float] = []
        for _ in range(rounds):
            before = rig.cpu_s()
            done = run_agent(rig, "trunkline", "mock", "mock", count, pace, streams)
            after = rig.cpu_s()
            used_s = sum(after[part] - before[part] for part in after)
            gateway.append(used_s / done["chunks"] * 1e6)
            ours.append(done["cpu_us"])
            sdk.append(run_agent(rig, "openai", rig.url, "mock", count, pace, streams)["cpu_us"])
        median, peer = statistics.median(ours), statistics.median(sdk)
        rows.append(
            Row(
                f"agent CPU per chunk, {name}",
                f"{median:.2f} us",
                f"openai SDK {peer:.1f} us",
                median / peer,
                f"<= 1/{round(1 / budget)}",
                median / peer <= budget,
                spread(ours, "{:.2f}"),
            )
        )
        cost = statistics.median(gateway)
        rows.append(
            Row(
                f"worker + broker CPU per chunk, {name}",
                f"{cost:.1f} us",
                "",
                None,
                "<= 12 us" if not pace else "-",
                cost <= 12 or bool(pace),
                spread(gateway, "{:.1f}"),
            )
        )
    return rows


def first_chunk(rig: Rig, rounds: int, calls: int) -> list[Row]:
    """Compare the time to the first chunk with the bare HTTP client's, call after call."""
    ours: list[float] = []
    direct: list[float] = []
    for _ in range(rounds):
        direct += _calls(rig, ("direct", rig.url, "mock"), calls)
        ours += _calls(rig, ("trunkline", "mock", "mock"), calls)
    added = statistics.median(ours) - statistics.median(direct)
    return [
        Row(
            "added time to first chunk, p50",
            f"{added:.2f} ms",
            f"direct {statistics.median(direct):.2f} ms, ours {statistics.median(ours):.2f} ms",
            None,
            "<= 1.2 ms",
            added <= 1.2,
            f"p99 of ours {sorted(ours)[int(len(ours) * 0.99)]:.2f}",
        )
    ]


def _calls(rig: Rig, way: tuple[str, str, str], calls: int) -> list[float]:
    with rig.agent(*way, "--chunks", "10", "--rounds", str(calls)) as agent:
        agent.line()
        agent.go()
        return agent.result()["first_ms"]


def run_agent(
    rig: Rig, way: str, target: str, model: str, count: int, pace: int = 0, streams: int = 1
) -> dict[str, float]:
    """Run an agent process that reads streams, and return what it found out.

    Raises:
        RuntimeError: chunks are missing.
    """
    arguments = ("--chunks", str(count), "--pace", str(pace), "--streams", str(streams))
    with rig.agent(way, target, model, *arguments) as agent:
        agent.line()
        agent.go()
        done = agent.result()
    if done["chunks"] != done["wanted"]:
        raise RuntimeError(f"{way}: {done['chunks']} of {done['wanted']} chunks")
    return done


def _bare(rig: Rig, count: int, per_frame: int) -> float:
    where, numbers = str(rig.directory), (str(count), str(per_frame))
    with (
        Child("bench.bare_lane", "proxy", where) as proxy,
        Child("bench.bare_lane", "receive", where, *numbers) as receiver,
        Child("bench.bare_lane", "send", where, *numbers) as sender,
    ):
        receiver.line()
        sender.go()
        rate = receiver.result()["chunks_per_s"]
        sender.end()
        proxy.end()
        return rate


def spread(values: list[float], form: str) -> str:
    """Return the least and the greatest of some figures as text."""
    return f"{form.format(min(values))} - {form.format(max(values))}"


PARTS: Final[dict[str, Callable[[Rig, int, int], list[Row]]]] = {
    "lane": lane,
    "agent": agent_cpu,
    "first": first_chunk,
}
