"""A control group of the kernel that gives its processes next to no CPU; needs root on Linux."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.timing import until

_V1: Final = Path("/sys/fs/cgroup/cpu")
_V2: Final = Path("/sys/fs/cgroup")
_QUOTA_US: Final = 1000  # the least that the kernel takes
_PERIOD_US: Final = 1_000_000


class NoCpuGroupError(Exception):
    """This machine gives a test no control group; the text says why."""


class CpuGroup:
    """A group with a quota of 1 ms of CPU per second, shared by all its processes."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._folder = folder
        self._home = home

    def take(self, pid: int) -> None:
        """Move a process with all its threads into the group."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def free(self, pid: int) -> None:
        """Move a process back; it has its CPU again."""
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            (self._home / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def cpu_group() -> Iterator[CpuGroup]:
    """Make a group, and remove it with whatever is still in it moved back.

    Raises:
        NoCpuGroupError: the kernel has no controller for CPU here, or the test may not use it.
    """
    name = f"trunkline-test-{os.getpid()}"
    is_v1 = (_V1 / "cpu.cfs_quota_us").exists()
    home = _V1 if is_v1 else _V2
    folder = home / name
    try:
        folder.mkdir()
    except OSError as exc:
        raise NoCpuGroupError(f"no control group can be made below {home}: {exc}") from exc
    group = CpuGroup(folder, home)
    try:
        try:
            if is_v1:
                (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (folder / "cpu.cfs_quota_us").write_text(str(_QUOTA_US))
            else:
                (folder / "cpu.max").write_text(f"{_QUOTA_US} {_PERIOD_US}")
        except OSError as exc:
            raise NoCpuGroupError(f"{folder} takes no quota of CPU: {exc}") from exc
        yield group
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            group.free(int(pid))
        until(lambda: _is_removed(folder), what=f"{folder} cannot be removed")


def _is_removed(folder: Path) -> bool:
    """Remove the group; a process that was moved may need a moment to leave it."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
