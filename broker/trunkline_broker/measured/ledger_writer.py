"""The thread that keeps the usage ledger; the loop hands entries over and never waits.

What can't be written (disk full, file locked or broken) waits in memory, bounded; past the bound
it is lost, counted and said. Streams do not notice.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Final

from trunkline_broker.core.effects import AttemptEnded
from trunkline_broker.edge import Edge
from trunkline_broker.measured.ledger import Entry, Ledger, entry_of
from trunkline_broker.queues import QueueFigures

GATHER_S: Final = 0.05  # one transaction for what ends within it; so much a kill -9 may lose
MAX_WAITING: Final = 50_000
PRUNE_EVERY_S: Final = 300.0
RETRY_S: Final = 1.0
CLOSE_S: Final = 2.0
_BATCH: Final = 5000

Say = Callable[[str, str, Mapping[str, Any]], None]


class LedgerWriter:
    """Writes to one ledger until it is closed.

    Args:
        path: of the ledger.
        days: how long it is kept.
        mib: most room that it takes.
        say: writes a log line (level, event, fields); called from the thread.
        edge: takes what no full disk and no broken file explains.
    """

    def __init__(self, path: Path, days: int, mib: int, say: Say, edge: Edge) -> None:
        self._path, self._days, self._mib = path, days, mib
        self._say = say
        self._edge = edge
        self._waiting: deque[Entry] = deque()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._ledger: Ledger | None = None
        self._prune_at_s = 0.0
        self._written = self._lost = self._high_water = 0
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def put(self, ended: AttemptEnded) -> None:
        """Take an attempt; counted as lost if too many wait."""
        if len(self._waiting) >= MAX_WAITING:
            self._lost += 1
            return
        self._waiting.append(entry_of(ended, _now_s()))
        self._high_water = max(self._high_water, len(self._waiting))
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Write what waits, for two seconds at most."""
        self._closing.set()
        self._wake.set()
        self._thread.join(CLOSE_S)

    def queue(self) -> QueueFigures:
        """Return how many entries wait to be written."""
        return QueueFigures("usage ledger", len(self._waiting), self._high_water, MAX_WAITING)

    def figures(self) -> dict[str, object]:
        """Return what the status document says of it."""
        return {
            "file": str(self._path),
            "written": self._written,
            "waiting": len(self._waiting),
            "lost": self._lost,
            "trouble": self._trouble,
        }

    # --- in the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        # At the start too: whether the ledger can be used is better known before it is needed.
        while self._step() or not self._closing.is_set():
            if self._trouble:
                self._closing.wait(RETRY_S)
            elif not self._waiting:
                self._wake.wait(PRUNE_EVERY_S)
                self._wake.clear()
                self._closing.wait(GATHER_S)
        if self._ledger is not None:
            self._edge.guard(self._ledger.close)()

    def _step(self) -> bool:
        """Write a batch; return whether there is more that can be written now."""
        batch = [self._waiting[at] for at in range(min(len(self._waiting), _BATCH))]
        try:
            ledger = self._opened()
            if batch:
                self._written += self._add(ledger, batch)
            self._prune(ledger)
        except (sqlite3.Error, OSError) as exc:
            self._fail(exc, len(batch))
            return False
        except Exception as exc:  # noqa: BLE001  # any error of a side service ends at its edge
            self._edge.note(exc)
            self._fail(exc, len(batch))
            return False
        for _ in batch:
            self._waiting.popleft()
        if self._trouble:
            self._say("info", "ledger_written_again", {"lost": self._lost})
            self._trouble = ""
        return bool(self._waiting)

    def _add(self, ledger: Ledger, batch: Sequence[Entry]) -> int:
        """Write a batch; an entry that no file could take is lost, and the others are written."""
        try:
            return ledger.add(batch)
        except (OverflowError, UnicodeError, TypeError, ValueError) as exc:
            self._edge.note(exc)
        written = 0
        for entry in batch:
            try:
                written += ledger.add([entry])
            except (OverflowError, UnicodeError, TypeError, ValueError):
                self._lost += 1
        return written

    def _opened(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger(self._path, self._days, self._mib)
        return self._ledger

    def _prune(self, ledger: Ledger) -> None:
        now_s = monotonic()
        if now_s >= self._prune_at_s:
            self._prune_at_s = now_s + PRUNE_EVERY_S
            ledger.prune(_now_s())

    def _fail(self, exc: Exception, size: int) -> None:
        """Say it once, and start from the file anew at the next try."""
        if not self._trouble:
            fields = {"file": str(self._path), "reason": str(exc), "waiting": size}
            self._say("warning", "ledger_not_written", fields)
        self._trouble = str(exc) or type(exc).__name__
        if self._ledger is not None:
            self._edge.guard(self._ledger.close)()
            self._ledger = None


def _now_s() -> int:
    return int(datetime.now(UTC).timestamp())
