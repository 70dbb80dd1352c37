"""`python -m tests.chaos.streams`: many streams in mixed patterns, each compared letter by letter.

Nothing strikes; broker, workers and players are real processes. With `--burners N` so many others
take the CPU meanwhile. Ends with 0 if every stream was right and none stood still.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Final

from tests.chaos import breaks
from tests.chaos.book import Book
from tests.chaos.world import World, a_world, look_for_leftovers
from tests.support.timing import SLOW

_PLAYERS: Final = 3
_LINES: Final = 6
_BURN_MOST_S: Final = 7_200
_CHECK: Final = Path(__file__).with_name("check.py")
# One loop, which ends by itself if its parent is gone.
_BURN: Final = """\
import os, sys, time
parent, end_s = os.getppid(), time.monotonic() + float(sys.argv[1])
while os.getppid() == parent and time.monotonic() < end_s:
    sum(range(200_000))
"""


@contextlib.contextmanager
def burners(count: int) -> Iterator[None]:
    """Keep so many processes busy; afterwards none is left."""
    command = [sys.executable, "-c", _BURN, str(_BURN_MOST_S)]
    children = [subprocess.Popen(command) for _ in range(count)]  # noqa: S603  our own program
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


async def run(path: Path, seed: int, count: int, burning: int, broken: str = "") -> None:
    """Play at least `count` streams; what was expected and what came is in the file."""
    book = Book(path)
    facts = {"faults": [], "least": 0, "least_calls": 0, "worlds": 1, "slow": SLOW}
    book.note("run", seed=seed, broken=broken, burners=burning, **facts)
    try:
        async with a_world(0, book, seed, broken) as world:
            with burners(burning):
                await _play(world, seed, count)
            await look_for_leftovers(world)
    finally:
        book.close()


async def _play(world: World, seed: int, count: int) -> None:
    begun_s = monotonic()
    for number in range(_PLAYERS):
        endpoints = [world.broker.endpoint] * 2
        more = {"count": -(-count // _PLAYERS), "lines": _LINES, "providers": ["one", "one", "two"]}
        world.start_player(f"p{number}", seed * 1_000 + number, endpoints, **more)
    told = 0
    while any(child.poll() is None for child in world.players.values()):
        world.take_news()
        if world.read_count >= told + 1_000:
            told = world.read_count
            sys.stdout.write(f"{told} streams in {monotonic() - begun_s:.0f} s\n")
            sys.stdout.flush()
        await asyncio.sleep(0.2)
    await world.end_players()
    world.take_news()


def judged(path: Path) -> int:
    """Have the external checker judge a file and print its table; return its exit code."""
    command = [sys.executable, "-I", str(_CHECK), str(path)]
    return subprocess.run(command, check=False).returncode  # noqa: S603  our own program


def main() -> int:
    """Play and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.streams", description=__doc__)
    parser.add_argument("--count", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--burners", type=int, default=0)
    parser.add_argument("--break", dest="broken", choices=("", *breaks.NAMES), default="")
    parser.add_argument("--out", type=Path, default=Path("streams.jsonl"))
    asked = parser.parse_args()
    asked.out.unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    try:
        asyncio.run(run(asked.out, asked.seed, asked.count, asked.burners, asked.broken))
    except AssertionError as exc:
        sys.stderr.write(f"the run broke off: {exc}\n")
    return judged(asked.out)


if __name__ == "__main__":
    sys.exit(main())
