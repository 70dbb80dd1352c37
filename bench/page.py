"""`docs/benchmarks.md` from what the runs have found out; nothing of it is written by hand."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

from bench.plots import draw
from bench.result import Result, Row, Table
from bench.rig import ROOT

DOCS: Final = ROOT / "docs"
PAGE: Final = DOCS / "benchmarks.md"
DATA: Final = DOCS / "benchmarks"
HEAD: Final = ["measured", "ours", "spread", "beside", "ratio", "budget", ""]
_PACKAGES: Final = ("pyzmq", "msgpack", "uvloop", "httpx", "aiohttp", "msgspec", "openai")

_INTRO: Final = """# Benchmarks

Written by `make bench` and `make bench-peers`; not edited by hand. Everything runs on one machine
over loopback and Unix sockets. What is compared is measured in turns in one run, so read the
ratios: absolute figures belong to the machine. CPU is that of all threads of a process. Where each
microsecond goes, and why a missed budget is missed, is in [performance.md](performance.md).
"""

SECTIONS: Final = {
    "lane": "The chunk lane\n\nFrom `adapter.stream()` to the application's `async for`, forty-byte"
    " chunks, beside the same\nchunks through a bare `zmq.proxy` between three processes that do"
    " nothing else.",
    "agent": "What an agent pays\n\nBeside the `openai` SDK that reads the same provider itself.",
    "provider": "Provider bytes to typed chunks",
    "latency": "Added latency",
    "first": "Time to the first chunk",
    "control": "The control plane",
    "flat": "Does a call cost more when there is more?\n\nBroker CPU per call, always with 200"
    " calls at a time; beside more clients, ROUTERs that only\npass on the same frames.",
    "large": "Large requests\n\nRequests with 8 MiB of history, which the broker only passes on,"
    " beside a paced stream.",
    "memory": "Memory",
    "scale": "Throughput",
    "start": "Start\n\nWhat an import puts off, the first call pays: so a whole process with one"
    " call is\nmeasured too.",
    "peers": "Beside other gateways\n\nThe same mock provider, twenty streams at once, in a burst"
    " and at 20 ms. *Bare loop* is httpx\nover aiohttp with typed decoding; *whole* is gateway and"
    " agent together.",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One part of the page: when, where and what was found."""

    date: str
    machine: str
    rounds: int
    load: str
    result: Result

    @classmethod
    def now(cls, rounds: int, load: str, result: Result) -> Self:
        """Stamp a result."""
        return cls(datetime.now(UTC).strftime("%Y-%m-%d"), machine(), rounds, load, result)

    def save(self, name: str) -> None:
        """Keep it beside the page."""
        DATA.mkdir(parents=True, exist_ok=True)
        data = {
            "date": self.date,
            "machine": self.machine,
            "rounds": self.rounds,
            "load": self.load,
            "result": self.result.to_dict(),
        }
        (DATA / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        data: dict[str, Any] = json.loads(path.read_text())
        return cls(**{**data, "result": Result.from_dict(data["result"])})


def machine() -> str:
    """Name the processor, the kernel and the versions that matter."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return (
        f"{cpu}, {os.cpu_count()} CPUs, Linux {platform.release()}, Python"
        f" {platform.python_version()}, {packages}"
    )


def write() -> None:
    """Write the page and its plots from all kept runs."""
    runs = {path.stem: Run.read(path) for path in DATA.glob("*.json")}
    draw((chart for run in runs.values() for chart in run.result.charts), DATA)
    parts = [
        _INTRO,
        _summary(runs),
        *(_section(name, runs[name]) for name in SECTIONS if name in runs),
    ]
    PAGE.write_text("\n".join(parts))


def _summary(runs: dict[str, Run]) -> str:
    rows = [row for run in runs.values() for row in run.result.rows if row.budget]
    missed = [row.what for row in rows if not row.is_met]
    text = f"{len(rows)} budgets, {len(rows) - len(missed)} met."
    if missed:
        text += " Missed: " + "; ".join(missed) + "."
    return text + "\n"


def _section(name: str, run: Run) -> str:
    title, _, intro = SECTIONS[name].partition("\n\n")
    lines = [f"## {title}\n"]
    if intro:
        lines.append(intro + "\n")
    if run.result.rows:
        lines.append(_rows(run.result.rows))
    lines += [_table(table) for table in run.result.tables]
    lines += [f"![{chart.title}](benchmarks/{chart.name}.png)\n" for chart in run.result.charts]
    load = f"; load of the machine before: {run.load}" if run.load else ""
    lines.append(f"*{run.date}, medians of {run.rounds} rounds{load}. {run.machine}.*\n")
    return "\n".join(lines)


def _rows(rows: list[Row]) -> str:
    return _table(Table(HEAD, [cells(row) for row in rows]))


def cells(row: Row) -> list[str]:
    """Return a row as texts."""
    ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
    verdict = "" if not row.budget else "met" if row.is_met else "**missed**"
    return [row.what, row.ours, row.spread, row.beside, ratio, row.budget, verdict]


def _table(table: Table) -> str:
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
