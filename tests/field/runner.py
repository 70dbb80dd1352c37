"""Replays a file of field cases: `python -m tests.field FILE`.

Every answer is served as raw bytes by a local server and read twice: by the real adapter in this
process, and by a client through a real broker and a worker process. Scenarios that belong to an
adapter are staged. A line per case; status 1 on a miss.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from tests.field.broker_scenarios import BROKER_SCENARIOS
from tests.field.cases import Entry, NotRun, Replay, Scenario, load
from tests.field.expectation import misses
from tests.field.scenarios import SCENARIOS
from tests.field.ways import KEY, AdapterWay, BrokerWay, Way, broker_way

CASE_LIMIT_S: Final = 60.0
AT_A_TIME: Final = 6  # most of a slow case is waiting for a limit
Results = dict[str, list[str] | None]
"""What was found per way; `None`: not staged there."""

WAYS: Final = ("adapter", "broker")


async def run_replay(replay: Replay, way: Way) -> list[str]:
    """Serve one answer, call, and return what differs."""
    async with asyncio.timeout(CASE_LIMIT_S):
        outcome, exchanges = await way.call(replay)
    found = misses(outcome, replay.expected)
    if outcome.failure is not None and KEY[:5] in outcome.failure.message:
        found.append("the failure shows the key")
    if len(exchanges) != 1:
        return [f"{len(exchanges)} requests were made", *found]
    headers = exchanges[0].headers
    if headers.get("accept-encoding") != "identity":
        found.append(f"accept-encoding {headers.get('accept-encoding')!r}")
    if not headers.get("user-agent", "").startswith("trunkline/"):
        found.append(f"user-agent {headers.get('user-agent')!r}")
    return found


async def run_scenario(scenario: Scenario, way: Way) -> list[str] | None:
    """Stage a scenario; `None`: there is no stage for it on this way."""
    if isinstance(way, BrokerWay):
        staged = BROKER_SCENARIOS.get(scenario.name)
        return None if staged is None else await staged(way)
    stage = SCENARIOS.get(scenario.name)
    return None if stage is None else await stage()


async def _run_one(case: Replay | Scenario, way: Way) -> list[str] | None:
    try:
        if isinstance(case, Replay):
            return await run_replay(case, way)
        return await run_scenario(case, way)
    # Whatever a case raises is a miss of that case, and the others still run.
    except Exception as exc:  # noqa: BLE001
        return [f"raised {exc!r}"]


class Report:
    """A line per case, and the counts."""

    def __init__(self, out: Callable[[str], None]) -> None:
        self.counts = {"ok": 0, "MISS": 0, "not run": 0}
        self._out = out

    def add(self, name: str, seconds: float, results: Results) -> None:
        """Report one case, with what was found on each way."""
        staged = {way: found for way, found in results.items() if found is not None}
        if not staged:
            self.add_not_run(name, "no stage for this scenario: it is not about an adapter")
            return
        found = [f"{way}: {'; '.join(texts)}" for way, texts in staged.items() if texts]
        verdict = "MISS" if found else "ok"
        self.counts[verdict] += 1
        text = "; ".join(found) or f"through {' and '.join(staged)}"
        self._out(f"{name:8} {verdict:7} {seconds:6.2f} s  {text}")

    def add_not_run(self, name: str, reason: str) -> None:
        """Report a case that was not run."""
        self.counts["not run"] += 1
        self._out(f"{name:8} not run            {reason}")

    def end(self) -> int:
        """Report the counts; returns the exit status."""
        counts = self.counts
        self._out(f"{counts['ok']} ok, {counts['MISS']} missed, {counts['not run']} not run")
        return 1 if counts["MISS"] else 0


async def run_file(path: Path, out: Callable[[str], None], ways: Sequence[str] = WAYS) -> int:
    """Run all cases of a file, a few at a time; returns the exit status.

    Lines come in the order of the file. Scenarios run alone, when no case does.
    """
    entries = load(path)
    report = Report(out)
    async with AsyncExitStack() as stack:
        open_ways: list[Way] = [AdapterWay()] if "adapter" in ways else []
        if "broker" in ways:
            open_ways.append(await stack.enter_async_context(broker_way(_replays(entries))))
        slots = asyncio.Semaphore(AT_A_TIME)
        async with asyncio.TaskGroup() as tasks:
            early = {
                id(case): tasks.create_task(_run(case, open_ways, slots))
                for case in _replays(entries)
            }
        for case in entries:
            if isinstance(case, NotRun):
                report.add_not_run(case.name, case.reason)
            else:
                task = early.get(id(case))
                seconds, found = task.result() if task else await _run(case, open_ways, slots)
                report.add(case.name, seconds, found)
        for way in open_ways:
            if isinstance(way, BrokerWay):
                report.add("logs", 0.0, {way.name: way.leaks()})
    return report.end()


async def _run(
    case: Replay | Scenario, ways: Sequence[Way], slots: asyncio.Semaphore
) -> tuple[float, Results]:
    """Run one case on every way; return how long that took and what was found."""
    async with slots:
        start = time.monotonic()
        results = {way.name: await _run_one(case, way) for way in ways}
        return time.monotonic() - start, results


def _replays(entries: Sequence[Entry]) -> list[Replay]:
    return [entry for entry in entries if isinstance(entry, Replay)]


def main(arguments: Sequence[str]) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.field")
    parser.add_argument("file", type=Path, help="a file of field cases")
    parser.add_argument(
        "--way", choices=WAYS, action="append", help="only this one (default: both)"
    )
    options = parser.parse_args(arguments)
    try:
        return asyncio.run(run_file(options.file, print, options.way or WAYS))
    except (OSError, ValueError) as exc:
        print(f"{options.file}: {exc}", file=sys.stderr)  # noqa: T201
        return 2
