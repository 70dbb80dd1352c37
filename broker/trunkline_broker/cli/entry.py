"""Where the `trunkline` command begins: before its modules are loaded, which takes a moment."""

from __future__ import annotations

import os
import sys


def run() -> None:
    """Run the command of `sys.argv`; never returns."""
    _leave_out_relative_paths()  # before anything else is imported: it could come from there
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, children that end leave no status
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
    _open_what_is_closed()
    main.run()


def _leave_out_relative_paths() -> None:
    """Import nothing from the current directory, where an empty `PYTHONPATH` entry has put it."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if entries != [""]:
        relative = {os.path.abspath(entry) for entry in entries if not os.path.isabs(entry)}
        wanted = {entry for entry in entries if os.path.isabs(entry)}
        sys.path[:] = [path for path in sys.path if path in wanted or path not in relative]


def _open_what_is_closed() -> None:
    """Give the command its three standard files; a file of ours must not take their numbers."""
    from pathlib import Path

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  kept


if __name__ == "__main__":
    run()
