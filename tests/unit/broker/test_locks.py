"""One broker per run directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from trunkline_broker.locks import BrokerRunning, Holder, lock_holder, take_lock


def test_a_second_one_is_told_who_holds_it(tmp_path: Path) -> None:
    """Pid and endpoint; the first keeps it."""
    path = tmp_path / "broker.lock"
    lock = take_lock(path, "ipc:///x/control")
    with pytest.raises(BrokerRunning, match=rf"pid {os.getpid()}, ipc:///x/control"):
        take_lock(path, "ipc:///y/control")
    assert lock_holder(path) == Holder(os.getpid(), "ipc:///x/control")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lock.release()


def test_a_released_lock_is_free_and_its_file_stays(tmp_path: Path) -> None:
    """What a dead broker wrote is overwritten, also where it was longer."""
    path = tmp_path / "broker.lock"
    take_lock(path, "ipc:///a/very/long/endpoint/indeed").release()
    assert lock_holder(path) is None
    assert path.exists()
    lock = take_lock(path, "ipc:///b")
    assert lock_holder(path) == Holder(os.getpid(), "ipc:///b")
    lock.release()


def test_no_file_means_nobody(tmp_path: Path) -> None:
    """Asking creates nothing."""
    assert lock_holder(tmp_path / "broker.lock") is None
    assert not list(tmp_path.iterdir())


def test_whoever_only_looks_does_not_stop_a_broker(tmp_path: Path) -> None:
    """A moment with a shared lock is waited out."""
    path = tmp_path / "broker.lock"
    take_lock(path, "ipc:///x").release()
    for _ in range(20):
        lock_holder(path)
        take_lock(path, "ipc:///x").release()
