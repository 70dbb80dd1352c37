"""`python -m tests.chaos`: play seeded faults, write `chaos.jsonl`, judge it.

Ends with 0 if the checker is content, else with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from tests.chaos import breaks
from tests.chaos.book import Book
from tests.chaos.faults import FAULTS, play
from tests.chaos.world import a_world, look_for_leftovers
from tests.support.timing import SLOW

FULL: Final = 10  # strikes of each fault
BROKEN: Final = {"dedupe": 3}  # strikes that show that a rule is missing, if one is not enough
FULL_CALLS: Final = 200
WORLDS: Final = 3
BOUND_S: Final = 290.0
# What shows that a rule is missing, for runs with a rule switched off.
SHOWN_BY: Final = {
    "resume": ("lane_cut", "worker_lane_cut"),
    "dedupe": ("lane_stall",),
    "credit": ("client_stop",),
    "reconcile": ("broker_kill", "broker_restart"),
    "probe": ("second_holder",),
}


async def run(
    path: Path, seed: int, faults: Sequence[str], strikes: int, worlds: int, broken: str = ""
) -> None:
    """Play every fault so many times, in so many worlds at once."""
    book = Book(path)
    book.note(
        "run",
        seed=seed,
        faults=list(faults),
        least=strikes,
        least_calls=FULL_CALLS if strikes >= FULL else 1,
        worlds=worlds,
        slow=SLOW,
        broken=broken,
    )
    left = [fault for fault in faults for _ in range(strikes)]
    Random(seed).shuffle(left)  # noqa: S311  no secret
    try:
        async with asyncio.timeout(BOUND_S * SLOW), asyncio.TaskGroup() as tasks:
            for number in range(worlds):
                # Each world has its share from the start, so that a seed plays the same again.
                tasks.create_task(_live(number, path, seed, left[number::worlds], broken))
    finally:
        book.close()


async def _live(number: int, path: Path, seed: int, faults: Sequence[str], broken: str) -> None:
    book = Book(path)
    try:
        async with a_world(number, book, seed, broken) as world:
            for fault in faults:
                await play(world, fault)
            await look_for_leftovers(world)
    finally:
        book.close()


def main() -> int:
    """Play and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--break", dest="broken", choices=("", *breaks.NAMES), default="")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only this one")
    parser.add_argument("--strikes", type=int, default=None, help="of each fault")
    parser.add_argument("--worlds", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("chaos.jsonl"))
    asked = parser.parse_args()
    faults = tuple(asked.fault or SHOWN_BY.get(asked.broken, FAULTS))
    strikes = asked.strikes or (BROKEN.get(asked.broken, 1) if asked.broken else FULL)
    worlds = asked.worlds or (1 if asked.broken else WORLDS)
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    asked.out.unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    try:
        asyncio.run(run(asked.out, asked.seed, faults, strikes, worlds, asked.broken))
    except* (AssertionError, subprocess.TimeoutExpired) as group:
        # The oracle is the file: what was noted until here is judged, and is not whole.
        sys.stderr.write(f"the run broke off: {group.exceptions}\n")
    except* TimeoutError:
        sys.stderr.write(f"the run took longer than {BOUND_S * SLOW:g} s\n")
    checker = Path(__file__).with_name("check.py")
    command = [sys.executable, "-I", str(checker), str(asked.out)]
    return subprocess.run(command, check=False).returncode  # noqa: S603  our own program


if __name__ == "__main__":
    sys.exit(main())
