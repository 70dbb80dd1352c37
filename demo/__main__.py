"""`make demo`: perform the main job and say whether every promise held; 1 if not."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import trunkline
from rich.console import Console
from trunkline_broker.onboarding import has_local_model

from demo.record import Record
from demo.stage import TOPICS, Plan, StageError, perform
from demo.view import View, final_table


def main() -> int:
    """Perform; the last line of standard output is JSON."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--agents", type=int, choices=range(1, len(TOPICS) + 1), default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--swaps", type=int, default=2)
    parser.add_argument("--scripted", action="store_true", help="a script instead of the model")
    args = parser.parse_args()
    console = Console(highlight=False)
    is_local = not args.scripted and has_local_model()
    if not is_local and not args.scripted:
        console.print("The local model is not installed here: a script plays its part.")
    record = Record()
    complaints: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tl-demo-") as name:
        plan = Plan(args.agents, args.turns, args.max_tokens, args.swaps, is_local, Path(name))
        try:
            with View(record, console) as view:
                asyncio.run(_performed(plan, record, view))
        except* (StageError, trunkline.TrunklineError) as errors:
            complaints += [str(error) for error in _leaves(errors)]
        except* (KeyboardInterrupt, asyncio.CancelledError):
            complaints.append("interrupted")
    console.print(final_table(record))
    complaints += record.complaints(args.swaps)
    for complaint in complaints:
        console.print(f"NOT AS PROMISED: {complaint}", style="red", markup=False)
    sys.stdout.write(json.dumps(record.summary(complaints)) + "\n")
    return 1 if complaints else os.EX_OK


async def _performed(plan: Plan, record: Record, view: View) -> None:
    """Perform so that SIGTERM, like Ctrl-C, still ends the broker and the agents."""
    performance = asyncio.current_task()
    assert performance is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, performance.cancel)
    await perform(plan, record, view)


def _leaves(group: BaseExceptionGroup[Exception]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


if __name__ == "__main__":
    sys.exit(main())
