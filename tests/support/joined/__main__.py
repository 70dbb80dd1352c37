"""Play histories of the joined cores: `python -m tests.support.joined [FIRST] [COUNT]`.

Prints each history that fails, and the totals. `--break wakeup` uses a worker that loses wake-ups.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from trunkline_workers.core.calls import WorkerCalls

from tests.chaos.breaks import ForgetfulCalls
from tests.support.joined.history import Outcome, played


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Play; return 1 if a history failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.joined")
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("--break", dest="broken", choices=("", "wakeup"), default="")
    parser.add_argument("--calm", action="store_true", help="nothing breaks")
    chosen = parser.parse_args()
    calls_type = ForgetfulCalls if chosen.broken else WorkerCalls
    began_s = time.monotonic()
    outcomes: list[Outcome] = []
    failed = 0
    for seed in range(chosen.first, chosen.first + chosen.count):
        try:
            outcome = played(seed, calls_type, has_faults=not chosen.calm)
        except AssertionError:  # of a core: its own net, or an invariant
            _tell(f"seed {seed}: {traceback.format_exc()}")
            failed += 1
            continue
        outcomes.append(outcome)
        if outcome.problems:
            failed += 1
            _tell(f"seed {seed}: {len(outcome.problems)} problems; {outcome.problems[:3]}")
    _tell(
        f"{chosen.count} histories, {failed} failed; {sum(o.calls for o in outcomes)} streams read,"
        f" {sum(o.attached for o in outcomes)} attached, {sum(o.chunks for o in outcomes)} chunks;"
        f" {time.monotonic() - began_s:.1f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
