"""Opens and reads files that must be regular ones: no pipe, device or directory, and with a bound.

The broker's one loop reads small files. Opening a named pipe waits for its other end, and reading a
device may have no end, so neither is begun: `O_NONBLOCK`, then `fstat`, then a bounded read.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class UnfitFileError(OSError):
    """What a path leads to is not a regular file, or is too large; the text says which."""


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file at once; the caller closes the descriptor.

    Args:
        path: of the file; a link is followed unless `flags` has `O_NOFOLLOW`.
        flags: as for `os.open`; `O_CLOEXEC` and `O_NONBLOCK` are added.
        mode: of a file that is made.

    Raises:
        UnfitFileError: it is a pipe, a socket, a device or a directory; nothing is left open.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    try:
        kind = os.fstat(descriptor).st_mode
    except OSError:
        os.close(descriptor)
        raise
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise UnfitFileError(errno.EINVAL, f"is {_name(kind)}, not a regular file", str(path))
    return descriptor


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file.

    Args:
        path: of the file.
        most_bytes: the most that it may have.

    Raises:
        UnfitFileError: it is not a regular file, or larger.
        OSError: it cannot be read.
    """
    with open(open_regular(path), "rb", buffering=0) as file:
        pieces: list[bytes] = []
        left = most_bytes + 1
        while left and (piece := file.read(left)):
            pieces.append(piece)
            left -= len(piece)
    if not left:
        text = f"has more than {most_bytes} bytes, the most that is read"
        raise UnfitFileError(errno.EFBIG, text, str(path))
    return b"".join(pieces)


def _name(kind: int) -> str:
    names = (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for is_it, name in names if is_it(kind)), "something else")
