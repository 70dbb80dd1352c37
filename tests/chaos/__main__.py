"""`python -m tests.chaos`: play seeded faults, write `chaos.jsonl`, judge it.

Ends with 0 if the checker is content, else with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tests.chaos import breaks
from tests.chaos.book import Book
from tests.chaos.faults import FAULTS, play
from tests.chaos.more_faults import MORE_FAULTS
from tests.chaos.world import a_world, look_for_leftovers
from tests.support.timing import SLOW

FULL: Final = 10  # strikes of each fault
BROKEN: Final = {
    "dedupe": 3,
    "wakeup": 12,
}  # strikes that show that a rule is missing, if one is not enough
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
    "wakeup": ("crowd",),
}
OVER_TCP_TOO: Final = ("broker_kill", "broker_restart", "worker_kill", "swap", "cancel")


async def run(path: Path, plan: Plan) -> None:
    """Play every fault of a plan so many times, in several worlds at once."""
    book = Book(path)
    book.note(
        "run",
        seed=plan.seed,
        faults=list(plan.faults),
        least=plan.strikes,
        least_calls=FULL_CALLS if plan.strikes >= FULL else 1,
        worlds=len(plan.shares()),
        slow=SLOW,
        broken=plan.broken,
    )
    try:
        async with asyncio.timeout(BOUND_S * SLOW), asyncio.TaskGroup() as tasks:
            for number, share in enumerate(plan.shares()):
                tasks.create_task(_live(number, path, plan, share))
    finally:
        book.close()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run plays.

    Attributes:
        faults: names; those of `MORE_FAULTS` are played after the others.
        strikes: of each fault.
        worlds: over Unix sockets; one more plays over TCP what it can, if `has_tcp`.
        has_players: players stream beside the faults in all worlds but the last one over Unix
            sockets, where nothing may be held after each fault.
    """

    seed: int
    faults: Sequence[str]
    strikes: int
    worlds: int
    broken: str = ""
    has_players: bool = True
    has_tcp: bool = True

    def shares(self) -> list[list[str]]:
        """Return the faults of each world, which depend on the seed alone."""
        old = [fault for fault in self.faults if fault in FAULTS for _ in range(self.strikes)]
        more = [fault for fault in self.faults if fault in MORE_FAULTS for _ in range(self.strikes)]
        tcp: list[str] = []
        if self.has_tcp:  # half of what is about links is played there, and a few deaths
            tcp = [fault for fault in more if fault != "crowd"][::2]
            for fault in tcp:
                more.remove(fault)
            tcp += [fault for fault in OVER_TCP_TOO if fault in self.faults]
        for number, faults in enumerate((old, more, tcp)):
            Random(self.seed if not number else f"{self.seed}/{number}").shuffle(faults)  # noqa: S311
        shares = [old[at :: self.worlds] + more[at :: self.worlds] for at in range(self.worlds)]
        return [*shares, tcp] if self.has_tcp else shares

    def is_tcp(self, number: int) -> bool:
        """Return whether a world is the one over TCP."""
        return number >= self.worlds

    def players_of(self, number: int) -> int:
        """Return how many players stream in a world beside its faults."""
        return int(self.has_players and number != self.worlds - 1)


async def _live(number: int, path: Path, plan: Plan, faults: Sequence[str]) -> None:
    book = Book(path)
    is_tcp = plan.is_tcp(number)
    try:
        async with a_world(number, book, plan.seed, plan.broken, is_tcp=is_tcp) as world:
            for each in range(plan.players_of(number)):
                ways = [world.links.direct, world.links.proxies["control"].endpoint]
                more = {"lines": 2, "rest_s": 0.3, "providers": ["one"] * 5 + ["two"]}
                world.start_player(f"w{number}-{each}", plan.seed + number, ways, **more)
            for fault in faults:
                await play(world, fault)
            await world.end_players()
            await look_for_leftovers(world)
    finally:
        book.close()


def main() -> int:
    """Play and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--break", dest="broken", choices=("", *breaks.NAMES), default="")
    parser.add_argument(
        "--fault", action="append", choices=[*FAULTS, *MORE_FAULTS], help="only this one"
    )
    parser.add_argument("--strikes", type=int, default=None, help="of each fault")
    parser.add_argument("--worlds", type=int, default=None)
    no = argparse.BooleanOptionalAction
    parser.add_argument("--players", action=no, default=True, help="stream beside the faults")
    parser.add_argument("--tcp", action=no, default=True, help="a world over TCP")
    parser.add_argument("--out", type=Path, default=Path("chaos.jsonl"))
    asked = parser.parse_args()
    faults = tuple(asked.fault or SHOWN_BY.get(asked.broken, FAULTS | MORE_FAULTS))
    plan = Plan(
        asked.seed,
        faults,
        asked.strikes or (BROKEN.get(asked.broken, 1) if asked.broken else FULL),
        asked.worlds or (1 if asked.broken else WORLDS),
        asked.broken,
        has_players=asked.players and not asked.broken,
        has_tcp=asked.tcp and not asked.broken,
    )
    asked.out.unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    try:
        asyncio.run(run(asked.out, plan))
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
