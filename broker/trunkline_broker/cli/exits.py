"""Exit codes of the `trunkline` command: stable, for scripts; it decides nothing else."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell sees."""

    OK = 0
    FAILED = 1
    """What was asked for failed: a model call, a swap, a start."""
    USAGE = 2
    """Wrong arguments or configuration; nothing was started or changed."""
    NO_BROKER = 3
    """No broker answers at the endpoint."""
    ALREADY_RUNNING = 4
    """`up`: a live broker holds the run directory; nothing was changed."""
    TIMED_OUT = 5
    """The broker is there but did not finish in time."""
    INTERRUPTED = 130
    """Ctrl-C, 128 + SIGINT as shells do; the provider request was cancelled."""


EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong arguments or configuration, 3 no broker,"
    " 4 already running, 5 timed out, 130 interrupted."
)
