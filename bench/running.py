"""Running one agent and reading its figures; what the parts share."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Final

from bench.result import Points
from bench.rig import Rig

MOST_ROUNDS: Final = 3  # of a curve


def run_agent(
    rig: Rig,
    way: str,
    target: str,
    model: str,
    count: int,
    *,
    pace: int = 0,
    streams: int = 1,
    late: bool = False,
) -> dict[str, Any]:
    """Read streams with one agent and return its figures.

    Raises:
        RuntimeError: not every chunk came.
    """
    arguments = ["--chunks", str(count), "--pace", str(pace), "--streams", str(streams)]
    with rig.agent(way, target, model, *arguments, *(["--late"] if late else [])) as agent:
        agent.line()
        agent.go()
        done: dict[str, Any] = agent.result()
    if done["chunks"] != done["wanted"]:
        raise RuntimeError(f"{way}: {done['chunks']} of {done['wanted']} chunks")
    return done


def first_ms(rig: Rig, way: tuple[str, str, str], calls: int) -> list[float]:
    """Make short calls, one after the other; return the milliseconds to each first chunk."""
    with rig.agent(*way, "--chunks", "10", "--rounds", str(calls)) as agent:
        agent.line()
        agent.go()
        found: list[float] = agent.result()["first_ms"]
        return found


def gateway_us(before: dict[str, float], after: dict[str, float], units: int) -> float:
    """Return what broker and workers spent between two readings, microseconds per unit."""
    return sum(after[name] - before[name] for name in after) / units * 1e6


def medians(numbers: Sequence[int], rounds: int, measure: Callable[[int], float]) -> Points:
    """Measure a curve up and down in turns, so that a drift of the machine hits both its ends."""
    found: dict[int, list[float]] = {number: [] for number in numbers}
    for turn in range(rounds):
        for number in numbers if turn % 2 == 0 else reversed(numbers):
            found[number].append(measure(number))
    return [(number, statistics.median(values)) for number, values in found.items()]
