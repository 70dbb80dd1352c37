"""Writes the file that probes read, once a second while the loop of a worker runs.

Its first line is the state, its age the health: a loop that is stuck writes nothing. On another
host no broker can end such a process, so whoever started it looks here (`deploy/kubernetes`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


class HealthFile:
    """Writes the file, if there is to be one.

    Args:
        path: of the file; its directory is there. Empty: nothing is written.
        count: takes the name of a counter.
    """

    def __init__(self, path: str, count: Callable[[str], None]) -> None:
        # Absolute: adapter code may change the working directory.
        self._path = Path(path).absolute() if path else None
        self._count = count

    def write(self, state: str) -> None:
        """Put state and uptime into the file in one step.

        A full disk is counted, and seen by the age. The second line is the machine's uptime in
        whole seconds, as the first number of `/proc/uptime`: a probe that compares the two needs no
        clock that can be set.
        """
        if self._path is None:
            return
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            uptime_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
            new.write_text(f"{state}\n{uptime_s}\n", encoding="utf-8")
            new.replace(self._path)
        except OSError:
            self._count("health_unwritten")

    def remove(self) -> None:
        """Take the file away: there is nobody whose state it could tell."""
        if self._path is not None:
            with contextlib.suppress(OSError):  # it was never written, or its directory is gone
                self._path.unlink()
