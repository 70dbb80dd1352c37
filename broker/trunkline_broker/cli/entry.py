"""Where the `trunkline` command begins: before its modules are loaded, which takes a moment."""

from __future__ import annotations

import signal


def run() -> None:
    """Run the command of `sys.argv`; never returns."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where a shell has it ignored: `trunkline up &`
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback out of half an import
    from trunkline_broker.cli import main

    signal.signal(signal.SIGINT, before)
    main.run()


if __name__ == "__main__":
    run()
