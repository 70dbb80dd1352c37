"""One broker per run directory: an `flock` on `broker.lock`, taken before any socket is bound.

A second bind on a live ipc path succeeds silently and steals it (measured), so the lock is the
only guard. The kernel drops it with the process, however that dies; the file itself stays.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trunkline_broker.paths import PRIVATE_FILE_MODE

_TRIES: Final = 4
_TRY_AGAIN_S: Final = 0.01  # whoever only looks holds the lock for some microseconds


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock: process id (0 if it has not written it yet) and endpoint of its clients."""

    pid: int
    endpoint: str


class BrokerRunning(Exception):  # noqa: N818  # a fact about the world, not a fault
    """A live broker holds this run directory; nothing was changed."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(f"a broker is running already: pid {holder.pid}, {holder.endpoint}")
        self.holder = holder


class BrokerLock:
    """The held lock; `release` or the end of the process gives it up."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Give the lock up; the file stays, so that nobody can hold an unlinked one."""
        os.close(self._fd)


def take_lock(path: Path, endpoint: str) -> BrokerLock:
    """Take the lock at once or not at all, and write pid and endpoint into it.

    Raises:
        BrokerRunning: a live process holds it; its pid and endpoint are in the error.
        OSError: the file can't be opened or written.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    if not _is_taken(fd):
        holder = _read(fd)
        os.close(fd)
        raise BrokerRunning(holder)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n{endpoint}\n".encode(), 0)
    return BrokerLock(fd)


def lock_holder(path: Path) -> Holder | None:
    """Return who holds the lock, or `None`; takes nothing and changes nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # A shared lock that is given back at once; `take_lock` tries again for those who ask.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(fd)
    else:
        return None
    finally:
        os.close(fd)


def _is_taken(fd: int) -> bool:
    for attempt in range(_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 < _TRIES:
                time.sleep(_TRY_AGAIN_S)
        else:
            return True
    return False


def _read(fd: int) -> Holder:
    lines = os.pread(fd, 4096, 0).decode("utf-8", "replace").splitlines()
    pid = int(lines[0]) if lines and lines[0].isdigit() else 0
    return Holder(pid, lines[1] if len(lines) > 1 else "")
