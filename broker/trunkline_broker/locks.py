"""One broker per run directory: an `flock` on `broker.lock`, taken before any socket is bound.

A second bind on a live ipc path succeeds silently and steals it (measured), so the lock is the
only guard. The kernel drops it with the process, however that dies; the file itself stays.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trunkline_broker.paths import PRIVATE_FILE_MODE
from trunkline_broker.regular_files import UnfitFileError, open_regular

_TRIES: Final = 4
_MOST_PID_DIGITS: Final = 7  # of Linux: below 2**22
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

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def is_there(self) -> bool:
        """Return whether the file that is locked still has its name.

        If not, its directory was removed or replaced, and another broker may hold the new one. What
        cannot be told (an error of the file system) counts as there.
        """
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._fd))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def release(self) -> None:
        """Give the lock up; the file stays, so that nobody can hold an unlinked one."""
        os.close(self._fd)


def take_lock(path: Path, endpoint: str) -> BrokerLock:
    """Take the lock at once or not at all, and write pid and endpoint into it.

    Raises:
        BrokerRunning: a live process holds it; its pid and endpoint are in the error.
        OSError: the file can't be opened or written.
    """
    fd = open_lock(path)
    if not _is_taken(fd):
        holder = _read(fd)
        os.close(fd)
        raise BrokerRunning(holder)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n{endpoint}\n".encode(), 0)
    return BrokerLock(fd, path)


def open_lock(path: Path) -> int:
    """Open a lock file, made if it is not there; what is none is moved out of the way.

    Raises:
        OSError: it cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        return open_regular(path, flags, PRIVATE_FILE_MODE)
    except (UnfitFileError, IsADirectoryError):
        clear_name(path)
    except OSError as exc:
        if exc.errno != errno.ELOOP:  # a link, which no broker has made
            raise
        clear_name(path)
    return open_regular(path, flags, PRIVATE_FILE_MODE)


def clear_name(path: Path) -> None:
    """Free a name of ours: what is there is removed, and a directory is set aside beside it.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):
        if not path.is_dir():
            raise
        path.rename(path.with_name(f"{path.name}.{time.time_ns()}.unfit"))


def lock_holder(path: Path) -> Holder | None:
    """Return who holds the lock, or `None`; takes nothing and changes nothing."""
    try:
        fd = open_regular(path)
    except (FileNotFoundError, UnfitFileError):
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
    digits = lines[0] if lines else ""
    is_pid = digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_PID_DIGITS
    pid = int(digits) if is_pid else 0
    return Holder(pid, lines[1] if len(lines) > 1 else "")
