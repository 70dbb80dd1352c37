"""The usage ledger: calls and tokens per client, route and model, in one SQLite file.

Every entry is counted once, also if two brokers tell of it: attempts of the last minutes are
remembered by name in the same transaction. A process that is killed leaves a whole file, with
everything that was committed (WAL). Rows are minutes for two days and hours after that; the file
has a bound, at which the oldest rows go. It blocks, so the broker uses it from a thread.
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trunkline_broker.core.effects import AttemptEnded
from trunkline_broker.measured.tallies import WASTED, token_counts

COUNTS: Final = (
    "calls", "attempts", "failures", "cancelled", "retries",
    "input", "output", "cache_read", "cache_write", "reasoning",
    "wasted_input", "wasted_output", "wasted_chunks",
)  # fmt: skip
"""What is counted. `wasted_chunks`: of cut attempts whose tokens nobody told, about one each."""

GROUPS: Final = ("client", "provider", "model")
MINUTE_S: Final = 60
HOUR_S: Final = 3600
FINE_DAYS: Final = 2
REMEMBER_S: Final = 900  # longer than any worker keeps a tail for the next broker
MAX_NAMES_PER_MINUTE: Final = 2000
OTHERS: Final = "(others)"
_VERSION: Final = 1
_PAGE_BYTES: Final = 4096
_MARGIN_PAGES: Final = 16  # a transaction that needs several pages fails before the last one
_MOST_DROPS: Final = 5  # tenths of the rows that one transaction may push out
_BUSY_MS: Final = 500
_ZEROS: Final = ", ".join(f"{name} INTEGER NOT NULL DEFAULT 0" for name in COUNTS)
_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS usage (
  bucket INTEGER NOT NULL, width INTEGER NOT NULL,
  client TEXT NOT NULL, provider TEXT NOT NULL, model TEXT NOT NULL,
  {_ZEROS},
  PRIMARY KEY (bucket, width, client, provider, model)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (
  call BLOB NOT NULL, attempt INTEGER NOT NULL, at INTEGER NOT NULL,
  PRIMARY KEY (call, attempt)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_at ON seen (at);
"""
_SUMS: Final = ", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTS)
_KEY: Final = "bucket, width, client, provider, model"
_MARKS: Final = ", ".join("?" * (5 + len(COUNTS)))
_ADD: Final = (
    f"INSERT INTO usage ({_KEY}, {', '.join(COUNTS)}) VALUES ({_MARKS})"  # noqa: S608
    f" ON CONFLICT ({_KEY}) DO UPDATE SET {_SUMS}"
)
_ROLL: Final = (
    f"INSERT INTO usage ({_KEY}, {', '.join(COUNTS)})"  # noqa: S608
    f" SELECT bucket / {HOUR_S} * {HOUR_S}, {HOUR_S}, client, provider, model,"
    f" {', '.join(COUNTS)} FROM usage WHERE width = {MINUTE_S} AND bucket < ?"
    f" ON CONFLICT ({_KEY}) DO UPDATE SET {_SUMS}"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One attempt that is over.

    Attributes:
        at_s: when, in seconds of the Unix epoch.
        counts: in the order of `COUNTS`.
    """

    call: bytes
    attempt: int
    at_s: int
    client: str
    provider: str
    model: str
    counts: tuple[int, ...] = field(repr=False)


def entry_of(ended: AttemptEnded, at_s: int) -> Entry:
    """Return the entry of an attempt."""
    tokens = dict(token_counts(ended.usage))
    is_wasted = ended.outcome in WASTED
    has_worker = bool(ended.pool)
    chunks = (ended.figures or {}).get("chunks", 0)
    is_untold = is_wasted and not tokens and isinstance(chunks, int)
    prompt = sum(tokens.get(kind, 0) for kind in ("input", "cache_read", "cache_write"))
    counts = (
        int(ended.outcome != "retried"),
        int(has_worker),
        int(ended.kind == "error" and ended.outcome not in WASTED),
        int(ended.outcome == "cancelled"),
        int(ended.outcome == "retried"),
        tokens.get("input", 0),
        tokens.get("output", 0),
        tokens.get("cache_read", 0),
        tokens.get("cache_write", 0),
        tokens.get("reasoning", 0),
        prompt if is_wasted else 0,
        tokens.get("output", 0) if is_wasted else 0,
        max(0, chunks) if is_untold else 0,
    )
    return Entry(ended.call, ended.attempt, at_s, ended.client, ended.provider, ended.model, counts)


class Ledger:
    """An open ledger; one thread uses it.

    Args:
        path: the file; its directory is made, private to this user.
        days: how long rows are kept.
        mib: most room that the file takes.

    Raises:
        OSError, sqlite3.Error: it can't be used.
    """

    def __init__(self, path: Path, days: int, mib: int) -> None:
        self._days = days
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        if not path.is_file():
            raise OSError(errno.EINVAL, "not a regular file", str(path))  # SQLite waits for a pipe
        self._db = sqlite3.connect(path, timeout=_BUSY_MS / 1000, isolation_level=None)
        try:
            self._prepare(mib)
        except BaseException:  # whatever it was: no handle stays open
            self._db.close()
            raise

    def _prepare(self, mib: int) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            raise sqlite3.DatabaseError(f"the ledger is of a later version ({version})")
        for pragma in (
            f"page_size = {_PAGE_BYTES}",
            "journal_mode = WAL",
            "synchronous = NORMAL",  # a killed process loses nothing; a power cut the last moments
            "journal_size_limit = 4194304",
            f"max_page_count = {mib * 1024 * 1024 // _PAGE_BYTES}",
        ):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.executescript(_SCHEMA)
        self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def add(self, entries: Sequence[Entry]) -> int:
        """Count attempts in one transaction, each once in its life.

        Returns:
            How many were new.

        Raises:
            sqlite3.Error: nothing of them was counted.
        """
        for _ in range(_MOST_DROPS):
            try:
                return self._add(entries)
            except sqlite3.OperationalError:
                if not self._is_at_its_bound():
                    raise
            self._drop_oldest()
        return self._add(entries)

    def _add(self, entries: Sequence[Entry]) -> int:
        with self._transaction():
            new = [entry for entry in entries if self._is_new(entry)]
            self._db.executemany(_ADD, _rows(new))
        return len(new)

    def _is_new(self, entry: Entry) -> bool:
        mark = "INSERT OR IGNORE INTO seen (call, attempt, at) VALUES (?, ?, ?)"
        return self._db.execute(mark, (entry.call, entry.attempt, entry.at_s)).rowcount > 0

    def prune(self, now_s: int) -> None:
        """Roll minutes up to hours, and forget what is too old.

        Raises:
            sqlite3.Error: nothing has changed.
        """
        fine_s = (now_s - FINE_DAYS * 24 * HOUR_S) // HOUR_S * HOUR_S
        with self._transaction():
            self._db.execute("DELETE FROM seen WHERE at < ?", (now_s - REMEMBER_S,))
            self._db.execute(_ROLL, (fine_s,))
            self._db.execute(
                "DELETE FROM usage WHERE (width = ? AND bucket < ?) OR bucket < ?",
                (MINUTE_S, fine_s, now_s - self._days * 24 * HOUR_S),
            )

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _is_at_its_bound(self) -> bool:
        """Tell whether the file is as large as it may be, so that a full disk is none."""
        pages = self._db.execute("PRAGMA page_count").fetchone()[0]
        most = self._db.execute("PRAGMA max_page_count").fetchone()[0]
        return pages >= most - _MARGIN_PAGES

    def _drop_oldest(self) -> None:
        """Forget the oldest tenth of the rows."""
        with self._transaction():
            rows = self._db.execute("SELECT COUNT(*) FROM usage").fetchone()[0]
            at = "SELECT bucket FROM usage ORDER BY bucket LIMIT 1 OFFSET ?"
            edge = self._db.execute(at, (rows // 10,)).fetchone()
            if edge is not None:
                self._db.execute("DELETE FROM usage WHERE bucket <= ?", edge)
            self._db.execute("DELETE FROM seen WHERE at <= (SELECT AVG(at) FROM seen)")

    @contextlib.contextmanager
    def _transaction(self) -> Generator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:  # whatever it was: no half transaction stays
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _rows(entries: Iterable[Entry]) -> list[tuple[Any, ...]]:
    """Sum up entries by row; names beyond a bound are counted together."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for entry in entries:
        bucket = entry.at_s // MINUTE_S * MINUTE_S
        key = (bucket, MINUTE_S, entry.client, entry.provider, entry.model)
        if key not in sums and len(sums) >= MAX_NAMES_PER_MINUTE:
            key = (bucket, MINUTE_S, OTHERS, OTHERS, OTHERS)
        row = sums.setdefault(key, [0] * len(COUNTS))
        for at, count in enumerate(entry.counts):
            row[at] += count
    return [(*key, *row) for key, row in sums.items()]


def read_usage(path: Path, since_s: int, groups: Sequence[str] = GROUPS) -> list[dict[str, Any]]:
    """Return totals, the most tokens first; rows that began before `since_s` are left out.

    Args:
        path: a ledger; a broker may be writing it.
        since_s: seconds of the Unix epoch.
        groups: columns of `GROUPS`, and `day` or `hour` (UTC).

    Raises:
        sqlite3.Error: no ledger, or it can't be read.
    """
    columns = {
        "day": "strftime('%Y-%m-%d', bucket, 'unixepoch') AS day",
        "hour": "strftime('%Y-%m-%d %H:00', bucket, 'unixepoch') AS hour",
    }
    wanted = [columns.get(name, name) for name in groups]
    # Sums of floats: SUM fails where one of integers passes 64 bits, which a liar may bring about.
    sums = [f"CAST(SUM(CAST({name} AS REAL)) AS INTEGER) AS {name}" for name in COUNTS]
    numbers = ", ".join(str(at + 1) for at in range(len(groups)))
    group = f"GROUP BY {numbers} " if groups else ""
    query = (
        f"SELECT {', '.join([*wanted, *sums])} FROM usage WHERE bucket >= ? "  # noqa: S608
        f"{group}ORDER BY TOTAL(input + output + cache_read + cache_write) DESC, TOTAL(calls) DESC"
    )
    if not path.is_file():
        raise sqlite3.OperationalError(f"there is no ledger at {path}")
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        db.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        found = db.execute(query, (since_s // MINUTE_S * MINUTE_S,)).fetchall()
    names = [*groups, *COUNTS]
    rows = [dict(zip(names, row, strict=True)) for row in found]
    return [row for row in rows if row["calls"] is not None]
