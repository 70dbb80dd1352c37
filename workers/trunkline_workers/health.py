"""What probes look at: a file that a worker writes once a second while its loop runs.

Its content is the state, its age the health: a loop that is stuck writes nothing. On another host
no broker can end such a process, so whoever started it looks here (`deploy/kubernetes`).
"""

from __future__ import annotations

import contextlib
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
        """Put the state into the file in one step; a full disk is counted, and seen by its age."""
        if self._path is None:
            return
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            new.write_text(f"{state}\n", encoding="utf-8")
            new.replace(self._path)
        except OSError:
            self._count("health_unwritten")

    def remove(self) -> None:
        """Take the file away: there is nobody whose state it could tell."""
        if self._path is not None:
            with contextlib.suppress(OSError):  # it was never written, or its directory is gone
                self._path.unlink()
