"""What the limit of open files allows this process, and what is done with connections beyond it.

ZeroMQ (4.3.5) aborts the process when it accepts a connection on a socket file and no descriptor is
left, and spins where that happens on TCP (both measured). So nobody may come that far: clients are
refused with a clear word below a first line, and connections above the line are closed as soon as
they are accepted. A new descriptor has the lowest free number: who gets one above the line has come
when so many were in use, and nothing needs counting. It is a race with ZeroMQ's thread, which is
what the reserve is for (measured: it accepts 23 connections in a millisecond), and why fewer than
the reserve may wait for it (on a busy machine it takes all that wait before we run).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

SMALLEST_LIMIT: Final = 256
CLIENT_FILES: Final = 3  # control, lane, and a pidfd that tells when its process is gone
WORKER_FILES: Final = 3
MOST_BACKLOG: Final = 100  # ZeroMQ's own; beyond it a connection is tried again
_RESERVE_MOST: Final = 2048
_MANUAL_WORKERS: Final = 16  # that may come without being configured

Tell = Callable[[str, Mapping[str, object]], None]


class OpenFiles(NamedTuple):
    """Who may use how many of the descriptors of this process."""

    limit: int

    @property
    def clients_line(self) -> int:
        """The number from which on no descriptor is a client's connection."""
        return self.limit - self._reserve

    @property
    def workers_line(self) -> int:
        """The same for workers: a flood of clients must not keep them out."""
        return self.limit - self._reserve // 2

    @property
    def backlog(self) -> int:
        """Connections that may wait to be accepted: ZeroMQ's thread takes all of them at once."""
        return min(MOST_BACKLOG, self._reserve // 4)

    @property
    def _reserve(self) -> int:
        return min(self.limit // 3, _RESERVE_MOST)

    def max_clients(self, in_use: int, slots: int) -> int:
        """Return how many clients there may be, at least one.

        Args:
            in_use: descriptors that are open before anybody has come.
            slots: configured places of workers; in a swap there are two in each.
        """
        workers = 2 * slots + _MANUAL_WORKERS
        left = self.clients_line - in_use - WORKER_FILES * workers
        return max(1, left // CLIENT_FILES)


class Line:
    """Closes connections that are accepted above a line.

    Args:
        number: the first descriptor that is too high; `None`: none is.
        kind: whose connections, for people.
        tell: takes event and fields.
        backlog: connections that may wait to be accepted on a socket.
    """

    def __init__(
        self, number: int | None, kind: str, tell: Tell, backlog: int = MOST_BACKLOG
    ) -> None:
        self.backlog = backlog
        self._number = number
        self._kind = kind
        self._tell = tell

    def on_accepted(self, fd: int) -> None:
        """Judge a connection that ZeroMQ has accepted; one that is too many ends at once."""
        if not self.is_passed_by(fd):
            return
        self._tell("connection_over_limit", {"kind": self._kind, "line": self._number})
        hang_up(fd)

    def is_passed_by(self, fd: int) -> bool:
        """Tell whether a connection is too many."""
        return self._number is not None and fd >= self._number


def hang_up(fd: int) -> None:
    """End a connection that is ZeroMQ's: it closes the descriptor when it reads the end.

    If it has closed it by now, the number is nobody's, or that of another connection, which comes
    back by itself.
    """
    with contextlib.suppress(OSError):
        # Family and type are named, so that Python does not ask the kernel for them; to `shutdown`
        # they make no difference.
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)
        try:
            connection.shutdown(socket.SHUT_RDWR)
        finally:
            connection.detach()


def no_line() -> Line:
    """Return a line that is never passed."""
    return Line(None, "", lambda event, fields: None)
