"""The hint file: what was alive, believed only where the kernel agrees."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from trunkline_broker.hints import Hint, read_hints, started_ticks, write_hints
from trunkline_broker.processes import alive


def a_hint(**changes: object) -> Hint:
    """Return a hint at this very process."""
    values: dict[str, object] = {
        "pool": "a",
        "slot": 0,
        "epoch": 5,
        "number": 1,
        "pid": os.getpid(),
        "started_ticks": started_ticks(os.getpid()),
        "token": "00ff",
    }
    return Hint.model_validate(values | changes)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """Whole and private, since it holds tokens."""
    path = tmp_path / "alive.json"
    other = a_hint(slot=1, number=2, pid=os.getppid(), output="/x")
    write_hints(path, [a_hint(), other])
    assert read_hints(path) == [a_hint(), other]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_worker_out_of_sight_is_believed(tmp_path: Path) -> None:
    """Only its registration can tell; an older broker reads the others all the same."""
    path = tmp_path / "alive.json"
    far = Hint(pool="far", slot=0, epoch=5, number=2, is_manual=True)
    by_hand = a_hint(slot=1, is_manual=True)
    write_hints(path, [far, by_hand])
    assert alive(read_hints(path)) == [by_hand, far]
    rows = json.loads(path.read_text())["workers"]
    assert [row["pid"] for row in rows] == [os.getpid()]
    path.write_text(path.read_text().replace("unseen", "unknown to this version"))
    assert read_hints(path) == [by_hand]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b'{"bootId": 1}', b'{"bootId": "other", "workers": []}', b"\xff"],
)
def test_a_damaged_file_hints_at_nothing(tmp_path: Path, content: bytes) -> None:
    """Half a file of a full disk is as good as none."""
    path = tmp_path / "alive.json"
    path.write_bytes(content)
    assert read_hints(path) == []


BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
ROW = {"pool": "a", "slot": 0, "epoch": 5, "number": 1, "pid": 4321, "startedTicks": 7}


@pytest.mark.parametrize(
    "change",
    [
        {"pool": ""},
        {"pool": "x" * 10_000},
        {"pool": "a\x1b[2J"},
        {"pool": None},
        {"slot": -1},
        {"slot": 2**70},
        {"epoch": 2**63},
        {"epoch": 2**70},
        {"epoch": 1.5},
        {"number": 2**64},
        {"pid": 2**70},
        {"pid": 1},
        {"pid": -5},
        {"pid": True},
        {"startedTicks": 2**80},
        {"token": "zz"},
        {"token": "0" * 4000},
        {"token": 5},
        {"output": "x" * 10_000},
        {"output": 7},
        {"isManual": "yes"},
    ],
)
def test_a_row_that_cannot_be_is_left_out_and_the_others_are_believed(
    tmp_path: Path, change: dict[str, object]
) -> None:
    path = tmp_path / "alive.json"
    good = {**ROW, "number": 2, "pid": 4322}
    rows = [ROW | change, good]
    path.write_text(json.dumps({"bootId": BOOT_ID, "workers": rows, "unseen": [change, 7, None]}))
    assert [(hint.number, hint.pid) for hint in read_hints(path)] == [(2, 4322)]


def test_a_worker_or_process_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "alive.json"
    rows = [ROW, ROW | {"number": 2}, ROW | {"pid": 4322}, ROW | {"number": 3, "pid": 4323}]
    path.write_text(json.dumps({"bootId": BOOT_ID, "workers": rows}))
    assert [(hint.number, hint.pid) for hint in read_hints(path)] == [(1, 4321), (3, 4323)]


@pytest.mark.parametrize("kind", ["fifo", "directory", "loop", "huge", "deep"])
def test_what_is_no_hint_file_hints_at_nothing(tmp_path: Path, kind: str) -> None:
    """And is refused at once: a pipe would hold up the start of the broker."""
    path = tmp_path / "alive.json"
    make = {
        "fifo": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "loop": lambda: path.symlink_to(path),
        "huge": lambda: path.write_bytes(b" " * 5_000_000),
        "deep": lambda: path.write_bytes(b"[" * 100_000),
    }
    make[kind]()
    assert read_hints(path) == []


def test_hints_of_another_boot_are_not_believed(tmp_path: Path) -> None:
    """Pids begin anew."""
    path = tmp_path / "alive.json"
    write_hints(path, [a_hint()])
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path.write_text(path.read_text().replace(boot_id, "an-older-boot"))
    assert read_hints(path) == []


def test_a_pid_that_was_used_again_is_another_process() -> None:
    """The start time tells."""
    assert alive([a_hint()]) == [a_hint()]
    assert alive([a_hint(started_ticks=1)]) == []


def test_an_ended_process_is_not_alive() -> None:
    """Neither as a zombie nor after it."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    ticks = started_ticks(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    zombie = a_hint(pid=child.pid, started_ticks=ticks)
    assert alive([zombie]) == []
    child.wait()
    assert alive([zombie]) == []
