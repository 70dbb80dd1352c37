"""`python -m tests.soak --minutes 120`: one broker under light load; fails if anything grows.

Writes `soak.json` (all samples and verdicts) and `soak.txt` (a table) into the directory `--out`.
Ends with 0 if nothing grew past its bound and no stream went wrong, else with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final

from trunkline_protocol.limits import MAX_ENDED_CALLS

from tests.chaos import inside
from tests.chaos.book import Book
from tests.chaos.player import Orders
from tests.soak import samples
from tests.soak.load import Load, pids_of, until_idle, until_serving
from tests.soak.slope import Bound, Sample, Verdict, judge
from tests.support.broker import broker_in, run_directory
from tests.support.processes import cpu_s

_CONFIG: Final = """\
[broker]
metrics = "127.0.0.1:{port}"
attachments_mib = 1
[worker.steady]
adapter = "{adapter}"
providers = ["steady"]
env = ["CHAOS_INSIDE", "PYTHONPATH"]
[worker.restless]
adapter = "{adapter}"
providers = ["restless"]
replicas = 2
concurrency = 24
queue_size = 900
env = ["CHAOS_INSIDE", "PYTHONPATH"]
restart = {{ intensity = 1000, period_s = 60, initial_delay_s = 0.05, max_delay_s = 0.2 }}
"""
# Growth that is allowed over a whole run, by the end of a series' name.
BOUNDS: Final = {
    "rssKib": Bound(3 * 1024, 0.05),
    "blocks": Bound(6_000, 0.03),
    "files": Bound(2),
    "threads": Bound(1),
    "tasks": Bound(4),
    # Logs and the ledger have bounds of their own: 8 MiB of log, 64 MiB of ledger.
    "kib": Bound(24 * 1024),
    "count": Bound(60),
    "bytes": Bound(2_048, 0.1),
}
# Memories of calls that are over: they fill up, and their size is a constant of the program.
FULL_AT: Final = {
    "Calls._past": MAX_ENDED_CALLS,
    "Past": MAX_ENDED_CALLS,
}
_OTHER: Final = Bound(8, 0.1)  # entries of a table or a queue
_WARM_SHARE: Final = 0.25
_WARM_MOST_S: Final = 900.0


class Soak:
    """One run: samples by series, and what went wrong."""

    def __init__(self, load: Load, directory: Path, seconds: float, every_s: float) -> None:
        self.series: dict[str, list[Sample]] = defaultdict(list)
        self._load = load
        self._directory = directory
        self._seconds = seconds
        self._every_s = every_s
        self._begun_s = monotonic()
        self._cpu: dict[int, float] = {}

    async def run(self) -> None:
        """Sample until the time is over."""
        while (passed_s := monotonic() - self._begun_s) < self._seconds:
            await self._sample(passed_s)
            self._load.take_news()
            self._load.check_players()
            await asyncio.sleep(self._every_s)

    async def _sample(self, passed_s: float) -> None:
        broker = self._load.broker
        document = await asyncio.to_thread(broker.status)
        pids = {"broker": broker.pid, **pids_of(document, "steady")}
        pids |= {name: child.pid for name, child in self._load.players.items()}
        found = await samples.gather(self._directory, pids)
        for name, (figures, tables) in found.items():
            self._take(passed_s, name, figures)
            self._take(passed_s, f"{name} table", tables)
        for name, pid in pids_of(document, "restless").items():
            figures = samples.of_kernel(pid)
            few = {key: figures[key] for key in ("files", "threads") if key in figures}
            self._take(passed_s, name, few)
        self._take(passed_s, "run directory", samples.of_directory(broker.run_dir))
        self._take(passed_s, "status", samples.of_status(document))
        self._note_cpu([*pids.values(), *pids_of(document, "restless").values()])

    def _take(self, passed_s: float, name: str, figures: Any) -> None:
        for key, value in figures.items():
            self.series[f"{name} {key}"].append((round(passed_s, 1), value))

    def _note_cpu(self, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(FileNotFoundError):
                self._cpu[pid] = cpu_s(pid)

    @property
    def cores(self) -> float:
        """Processor time of all processes that were seen, as a share of one core."""
        return sum(self._cpu.values()) / (monotonic() - self._begun_s)

    def verdicts(self) -> list[Verdict]:
        """Judge every series; a table that is seldom filled counts zero where it was not seen."""
        return verdicts_of(self._filled(), self._seconds)

    def _filled(self) -> dict[str, list[Sample]]:
        """Return the series, with the tables that were not there at a sample as empty."""
        times: dict[str, list[float]] = defaultdict(list)
        for name, line in self.series.items():
            owner = name.split(" table ")[0]
            if name.endswith(" tasks"):
                times[owner.removesuffix(" tasks")] = [at for at, _ in line]
        filled: dict[str, list[Sample]] = {}
        for name, line in self.series.items():
            found, owner = dict(line), name.split(" table ")[0]
            is_table = " table " in name
            filled[name] = [(at, found.get(at, 0)) for at in times[owner]] if is_table else line
        return filled


def verdicts_of(series: Mapping[str, Sequence[Sample]], seconds: float) -> list[Verdict]:
    """Judge series by name; those that have a bound of their own count as grown only past it."""
    warm_s = warm_up_s(series, seconds)
    verdicts: list[Verdict] = []
    for name, line in sorted(series.items()):
        field = name.rsplit(" ", 1)[-1]
        if field in FULL_AT:
            most = max(value for _, value in line)
            verdicts.append(
                Verdict(name, len(line), line[0][1], most, line[-1][1], most, most, FULL_AT[field])
            )
            continue
        verdicts.append(judge(name, line, BOUNDS.get(field, _OTHER), warm_s))
    return verdicts


def warm_up_s(series: Mapping[str, Sequence[Sample]], seconds: float) -> float:
    """Return when everything has been used: a part of the run, or until the memories are full.

    A memory that is still filling at the end of the run has made no promise; then half is taken.
    """
    warm_s = min(_WARM_MOST_S, _WARM_SHARE * seconds)
    for name, line in series.items():
        if name.rsplit(" ", 1)[-1] in FULL_AT:
            most = max(value for _, value in line)
            full_s = next(at for at, value in line if value >= 0.98 * most)
            warm_s = max(warm_s, min(full_s, seconds / 2))
    return warm_s


def _table(verdicts: list[Verdict], load: Load, cores: float, minutes: float) -> str:
    """Return the table: everything but tables that hold nearly nothing and stay so."""
    shown = [each for each in verdicts if not each.is_good or " table " not in each.name]
    heads = f"{'series':<44}{'first':>10}{'median':>10}{'last':>10}{'most':>10}"
    rows = [f"{heads}{'growth':>10}{'allowed':>10}"]
    for each in shown:
        mark = "" if each.is_good else "  GROWS"
        figures = (each.first, each.middle, each.last, each.most, each.growth, each.allowed)
        rows.append(f"{each.name:<44}" + "".join(f"{value:>10.6g}" for value in figures) + mark)
    done = ", ".join(f"{name} {count}" for name, count in sorted(load.done.items()))
    tables = sum(" table " in each.name for each in verdicts)
    grown = sum(not each.is_good for each in verdicts)
    return "\n".join(
        [
            *rows,
            f"{minutes:.1f} minutes, {cores:.3f} cores; {done}",
            f"{len(verdicts)} series ({tables} tables), {grown} grow; {len(load.wrong)} wrong",
            *load.wrong[:20],
            "",
        ]
    )


async def run(seconds: float, every_s: float, rest_s: float, seed: int, out: Path) -> int:
    """Run the soak and write its files; return the exit code."""
    with run_directory() as root, contextlib.ExitStack() as stack:
        shown, board = root / "inside", root / "board"
        shown.mkdir()
        board.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        adapter = f"{Path(inside.__file__).with_name('seen_worker.py')}:SeenAdapter"
        config = _CONFIG.format(adapter=adapter, port=port)
        config_file = root / "test.toml"
        command = [sys.executable, "-m", "tests.soak.broker", "--config", str(config_file)]
        environ = inside.environ(shown)
        broker = stack.enter_context(broker_in(root, config, environ, command))
        book = stack.enter_context(contextlib.closing(Book(root / "book.jsonl")))
        load = Load(broker, book, Random(seed), port)  # noqa: S311  no secret
        await asyncio.to_thread(broker.start)
        await until_serving(broker)
        for number in range(2):
            name, routes = f"player{number}", ["steady", "restless"]
            orders = Orders([broker.endpoint] * 2, str(book.path), name, seed + number)
            orders.lines, orders.rest_s, orders.providers = 2, rest_s, routes
            orders.board = str(board)
            load.start_player(name, orders)
        try:
            await load.until_playing()
            soak = Soak(load, shown, seconds, every_s)
            await _until_over(soak, load)
        finally:
            await load.stop_players()
        await until_idle(broker)
        for log in (*root.glob("player*.log"), broker.run_dir / "stderr"):
            shutil.copy(log, out / log.name)
        code = await asyncio.to_thread(broker.stop)
        if code:
            load.wrong.append(f"the broker ended with {code}")
        return _write(soak, load, seconds, out)


async def _until_over(soak: Soak, load: Load) -> None:
    operator = asyncio.ensure_future(load.operate())
    try:
        await soak.run()
    finally:
        operator.cancel()
        await asyncio.wait([operator])
    if not operator.cancelled() and (error := operator.exception()) is not None:
        load.wrong.append(f"the operator gave up: {error!r}")


def _write(soak: Soak, load: Load, seconds: float, out: Path) -> int:
    verdicts = soak.verdicts()
    is_good = all(each.is_good for each in verdicts) and not load.wrong
    table = _table(verdicts, load, soak.cores, seconds / 60)
    document = {
        "seconds": seconds,
        "cores": soak.cores,
        "done": dict(load.done),
        "wrong": load.wrong,
        "verdicts": [each.to_dict() for each in verdicts],
        "series": soak.series,
    }
    (out / "soak.json").write_text(json.dumps(document))
    (out / "soak.txt").write_text(table)
    sys.stdout.write(table)
    return 0 if is_good else 1


def main() -> int:
    """Run and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples")
    parser.add_argument("--rest", type=float, default=4.0, help="mean pause of a line of a player")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/soak"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    return asyncio.run(run(asked.minutes * 60, asked.every, asked.rest, asked.seed, asked.out))


if __name__ == "__main__":
    sys.exit(main())
