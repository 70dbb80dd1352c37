"""Where the `trunkline` command begins: before its modules are loaded, which takes a moment."""

from __future__ import annotations

import signal
import sys


def run() -> None:
    """Run the command of `sys.argv`; never returns."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where a shell has it ignored: `trunkline up &`
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback out of half an import
    try:
        from trunkline_broker.cli import main
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.startswith("trunkline"):
            raise  # our own mistake
        sys.exit(
            f"trunkline: no {exc.name} here; the command needs: pip install 'trunkline[broker]'"
        )

    signal.signal(signal.SIGINT, before)
    main.run()


if __name__ == "__main__":
    run()
