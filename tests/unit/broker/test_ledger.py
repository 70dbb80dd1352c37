"""The usage ledger: every attempt once, bounded, and whole whatever happens to its writer."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from trunkline_broker.measured import ledger as module
from trunkline_broker.measured.ledger import COUNTS, Ledger, entry_of, read_usage
from trunkline_broker.measured.ledger_writer import LedgerWriter

from tests.support.attempts import an_attempt
from tests.support.edges import an_edge
from tests.support.timing import SLOW, until

NOW_S = 1_796_000_000
HOUR_S = 3600


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "usage.sqlite"


def total(path: Path, name: str, since_s: int = 0) -> int:
    return sum(row[name] for row in read_usage(path, since_s))


def test_every_kind_of_end_is_counted_as_what_it_is(path: Path) -> None:
    """Calls end once; attempts are what a worker ran; wasted is what nobody got."""
    ledger = Ledger(path, 10, 1)
    failed = {"kind": "error", "code": "SERVER"}
    entries = [
        entry_of(ended, NOW_S)
        for ended in (
            an_attempt(usage={"inputTokens": 10, "outputTokens": 5, "cacheReadTokens": 2}),
            an_attempt(outcome="retried", **failed),
            an_attempt(outcome="cancelled", kind="aborted", usage=None),
            an_attempt(outcome="cancelled", kind="aborted"),
            an_attempt(outcome="failed", pool="", usage=None, figures=None, **failed),
            an_attempt(**failed),
        )
    ]
    assert ledger.add(entries) == 6
    (row,) = read_usage(path, 0)
    assert (row["client"], row["provider"], row["model"]) == ("agent", "p", "m")
    assert {name: row[name] for name in COUNTS} == {
        "calls": 5, "attempts": 5, "failures": 2, "cancelled": 2, "retries": 1,
        "input": 40, "output": 20, "cache_read": 2, "cache_write": 0, "reasoning": 0,
        "wasted_input": 20, "wasted_output": 10, "wasted_chunks": 6,
    }  # fmt: skip
    ledger.close()


def test_an_attempt_that_is_told_twice_is_counted_once(path: Path) -> None:
    """By one broker or by two; another attempt of the call is another entry."""
    ended = an_attempt()
    for _ in range(2):
        ledger = Ledger(path, 10, 1)
        ledger.add([entry_of(ended, NOW_S), entry_of(ended, NOW_S)])
        ledger.close()
    assert total(path, "calls") == 1
    ledger = Ledger(path, 10, 1)
    again = an_attempt(call=ended.call, attempt=1)
    assert ledger.add([entry_of(again, NOW_S)]) == 1
    ledger.close()


def test_totals_are_grouped_as_asked(path: Path) -> None:
    ledger = Ledger(path, 10, 1)
    for client, model, at_s in (("a", "m", 0), ("a", "n", HOUR_S), ("b", "m", HOUR_S)):
        ledger.add([entry_of(an_attempt(client=client, model=model), NOW_S + at_s)])
    ledger.close()
    assert {row["client"]: row["calls"] for row in read_usage(path, 0, ["client"])} == {
        "a": 2,
        "b": 1,
    }
    assert [row["calls"] for row in read_usage(path, 0, [])] == [3]
    assert len(read_usage(path, 0, ["hour"])) == 2
    assert {row["day"] for row in read_usage(path, 0, ["day"])} == {"2026-11-30"}
    assert total(path, "calls", NOW_S + HOUR_S) == 2
    assert read_usage(path, NOW_S + 2 * HOUR_S, []) == []


def test_minutes_become_hours_and_the_old_goes(path: Path) -> None:
    ledger = Ledger(path, 10, 1)
    for age_s in (0, 60, 3 * 24 * HOUR_S, 3 * 24 * HOUR_S + 60, 11 * 24 * HOUR_S):
        ledger.add([entry_of(an_attempt(), NOW_S - age_s)])
    ledger.prune(NOW_S)
    ledger.prune(NOW_S)
    ledger.close()
    assert total(path, "calls") == 4
    with contextlib.closing(sqlite3.connect(path)) as db:
        widths = db.execute("SELECT width, COUNT(*) FROM usage GROUP BY width").fetchall()
        assert sorted(widths) == [(60, 2), (3600, 1)]
        assert db.execute("SELECT COUNT(*) FROM seen").fetchone() == (2,)


def test_at_its_bound_the_oldest_goes_and_writing_goes_on(path: Path) -> None:
    """One MiB, filled twice over with names as long as agents may choose them."""
    ledger = Ledger(path, 10, 1)
    for minute in range(60):
        names = (f"{number}-{minute}-{'x' * 200}" for number in range(150))
        ledger.add([entry_of(an_attempt(client=name), NOW_S + 60 * minute) for name in names])
        assert path.stat().st_size <= 1024 * 1024
    ledger.close()
    rows = read_usage(path, 0)
    assert any(row["client"].startswith("149-59-") for row in rows)
    assert not any(row["client"].startswith("0-0-") for row in rows)


def test_names_are_bounded_per_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NAMES_PER_MINUTE", 2)
    ledger = Ledger(path, 10, 1)
    ledger.add([entry_of(an_attempt(client=f"c{n}"), NOW_S) for n in range(5)])
    ledger.close()
    assert {row["client"]: row["calls"] for row in read_usage(path, 0)} == {
        "c0": 1,
        "c1": 1,
        "(others)": 3,
    }


def test_the_file_is_private_and_a_later_one_is_left_alone(path: Path) -> None:
    Ledger(path, 10, 1).close()
    assert path.stat().st_mode & 0o077 == 0
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(sqlite3.DatabaseError, match="later version"):
        Ledger(path, 10, 1)
    with pytest.raises(sqlite3.OperationalError, match="no ledger"):
        read_usage(path.with_name("none"), 0)


WRITER = """
import sys
from pathlib import Path
from tests.support.attempts import an_attempt
from trunkline_broker.measured.ledger import Ledger, entry_of

ledger = Ledger(Path(sys.argv[1]), 10, 16)
while True:
    ledger.add([entry_of(an_attempt(), 1796000000) for _ in range(7)])
    sys.stdout.write("7\\n")
    sys.stdout.flush()
"""


def test_a_writer_killed_mid_write_leaves_a_whole_ledger(path: Path) -> None:
    """Everything that was committed is there, nothing of a torn transaction, and it goes on."""
    root = Path(__file__).resolve().parents[3]
    for _ in range(3):
        path.unlink(missing_ok=True)
        child = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            cwd=root,
            text=True,
        )
        assert child.stdout is not None
        told = 0
        while told < 7 * 50:
            told += int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        told += sum(int(line) for line in child.stdout.read().split())
        child.stdout.close()
        child.wait()
        with contextlib.closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        calls = total(path, "calls")
        assert told <= calls <= told + 7
        assert calls % 7 == 0
        ledger = Ledger(path, 10, 16)
        ledger.add([entry_of(an_attempt(call=b"x" * 16), NOW_S)])
        ledger.close()
        assert total(path, "calls") == calls + 1
        for extra in path.parent.iterdir():
            extra.unlink()


# --- the thread -----------------------------------------------------------------------------


class Said:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, Mapping[str, Any]]] = []

    def __call__(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        self.lines.append((level, event, fields))

    def events(self) -> list[str]:
        return [event for _, event, _ in self.lines]


def test_the_thread_writes_soon_and_whole_at_the_end(path: Path) -> None:
    said = Said()
    writer = LedgerWriter(path, 10, 1, said, an_edge())
    writer.put(an_attempt())
    until(lambda: writer.figures()["written"] == 1, 5.0)
    for _ in range(100):
        writer.put(an_attempt())
    writer.close()
    assert total(path, "calls") == 101
    assert writer.figures() == {
        "file": str(path), "written": 101, "waiting": 0, "lost": 0, "trouble": "",
    }  # fmt: skip
    assert said.lines == []
    assert not [thread for thread in threading.enumerate() if thread.name == "ledger"]


def test_what_cannot_be_written_waits_and_is_said_once(path: Path) -> None:
    """A directory stands where the ledger should be; then it is gone."""
    path.mkdir(parents=True)
    said = Said()
    writer = LedgerWriter(path, 10, 1, said, an_edge())
    until(lambda: bool(said.lines), 5.0)
    writer.put(an_attempt())
    until(lambda: writer.figures()["waiting"] == 1, 5.0)
    assert writer.figures()["trouble"]
    path.rmdir()
    until(lambda: writer.figures()["written"] == 1, 10.0)
    assert said.events() == ["ledger_not_written", "ledger_written_again"]
    writer.close()
    assert total(path, "calls") == 1


def test_what_waits_is_bounded_and_the_rest_is_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunkline_broker.measured.ledger_writer.MAX_WAITING", 3)
    path.mkdir(parents=True)
    writer = LedgerWriter(path, 10, 1, Said(), an_edge())
    for _ in range(5):
        writer.put(an_attempt())
    assert (writer.figures()["waiting"], writer.figures()["lost"]) == (3, 2)
    writer.close()


FULL = """
import resource, sys
from pathlib import Path
from tests.support.attempts import an_attempt
from trunkline_broker.edge import Edge
from trunkline_broker.measured.ledger_writer import LedgerWriter

path = Path(sys.argv[1])
events = []
say = lambda level, event, fields: events.append(event)
writer = LedgerWriter(path, 10, 1, say, Edge('ledger', lambda name: None, say))
def wait(fact):
    import time
    end = time.monotonic() + 30
    while not fact() and time.monotonic() < end:
        time.sleep(0.01)
    assert fact(), (writer.figures(), events)
writer.put(an_attempt())
wait(lambda: writer.figures()["written"] == 1)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
writer.put(an_attempt())
wait(lambda: events == ["ledger_not_written"])
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
wait(lambda: writer.figures()["written"] == 2)
assert events[-1] == "ledger_written_again"
writer.close()
"""


def test_a_full_disk_only_delays(path: Path) -> None:
    """The system refuses every write beyond 4 KiB, as it would on a full disk; then it has room."""
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", FULL, str(path)],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        timeout=60 * SLOW,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert total(path, "calls") == 2
