"""`make bench`: measure and print a table; a budget that is missed is said, nothing fails."""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import version
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.parts import PARTS as SHARED_PARTS
from bench.parts import Row
from bench.provider_path import provider_path
from bench.rig import rig

PARTS: Final = {**SHARED_PARTS, "provider": provider_path}
# Chunks of one measured stream, or calls of one series.
SIZES: Final = {"lane": 100_000, "agent": 20_000, "first": 100, "provider": 100_000}
QUICK: Final = {"lane": 20_000, "agent": 2_000, "first": 20, "provider": 20_000}


def main() -> None:
    """Measure the wanted parts."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this (repeatable)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved; medians are shown")
    parser.add_argument("--quick", action="store_true", help="small counts, to see that it works")
    args = parser.parse_args()
    sizes = QUICK if args.quick else SIZES
    console = Console(highlight=False)
    console.print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()},"
        f" pyzmq {version('pyzmq')}, openai {version('openai')}; medians of {args.rounds} rounds"
    )
    rows: list[Row] = []
    with rig() as running:
        for part in args.part or PARTS:
            rows += PARTS[part](running, 1 if args.quick else args.rounds, sizes[part])
    console.print(_table(rows))


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("measured", "ours", "spread", "beside", "ratio", "budget", ""):
        table.add_column(head, justify="left", overflow="fold")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        met = "met" if row.is_met else "MISSED"
        table.add_row(row.what, row.ours, row.spread, row.beside, ratio, row.budget, met)
    return table


if __name__ == "__main__":
    main()
