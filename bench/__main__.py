"""`make bench`: measure, print and write the page; a missed budget is said, nothing fails."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.table import Table

from bench import page
from bench.agent_cost import agent_cpu
from bench.control import control, flat, large
from bench.lane import lane, scale
from bench.latency import first_chunk, latency
from bench.memory import memory
from bench.peers import peers
from bench.provider_path import provider_path
from bench.result import Result
from bench.rig import Rig, rig
from bench.start import start

Part = Callable[[Rig, int, int], Result]
# Each with its size (chunks of a stream, calls of a series, seconds …), and a small one.
PARTS: Final[dict[str, tuple[Part, int, int]]] = {
    "lane": (lane, 100_000, 20_000),
    "agent": (agent_cpu, 20_000, 2_000),
    "provider": (provider_path, 100_000, 20_000),
    "latency": (latency, 100, 20),
    "first": (first_chunk, 100, 20),
    "control": (control, 3, 1),
    "flat": (flat, 2, 1),
    "large": (large, 4, 2),
    "memory": (memory, 2_000, 200),
    "scale": (scale, 100_000, 10_000),
    "start": (start, 3, 1),
}
PEERS: Final[dict[str, tuple[Part, int, int]]] = {"peers": (peers, 300, 50)}


def main() -> None:
    """Measure the wanted parts."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this (repeatable)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved; medians are shown")
    parser.add_argument("--quick", action="store_true", help="small counts, to see that it works")
    parser.add_argument("--peers", action="store_true", help="other gateways instead")
    args = parser.parse_args()
    rounds = 1 if args.quick else args.rounds
    parts = PEERS if args.peers else {name: PARTS[name] for name in args.part or PARTS}
    console = Console(highlight=False, soft_wrap=True)
    console.print(page.machine())
    for name, (measure, size, small) in parts.items():
        load = f"{os.getloadavg()[0]:.1f}"
        with rig() as running:
            result = measure(running, rounds, small if args.quick else size)
        for table in _tables(name, result):
            console.print(table)
        if not args.quick:
            page.Run.now(rounds, load, result).save(name)
    if not args.quick:
        page.write()
        console.print(f"written: {page.PAGE.relative_to(page.ROOT)}")


def _tables(name: str, result: Result) -> list[Table]:
    found = [([name, *page.HEAD[1:]], list(map(page.cells, result.rows)))] if result.rows else []
    found += [(table.head, table.rows) for table in result.tables]
    tables: list[Table] = []
    for head, rows in found:
        table = Table(*head, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        tables.append(table)
    return tables


if __name__ == "__main__":
    main()
