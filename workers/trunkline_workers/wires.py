"""The sockets of one connection: cut at once when a call ends early, and known to be gone.

Closing a transport first sends what it still holds. A provider that reads slowly would go on
receiving the request of a call that has ended, so unfinished work is aborted instead.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import struct
import termios
from collections.abc import Callable
from typing import Final

# Of heads, sizes of chunks and the like in one answer; what is read ahead of its reader counts too.
_AROUND_BYTES: Final = 1024 * 1024
_AROUND_SHARE: Final = 16  # more per byte of the body; a chunk of one byte has five around it
_INTERIM_MAX: Final = 100  # heads of status 1xx before the one that counts
_NO_LINGER: Final = struct.pack("ii", 1, 0)  # close resets; what the kernel holds is dropped
_GONE_S: Final = 1.0  # a socket is gone a turn of the loop after its abort


class Wires:
    """Tracks the transports that one connection has used; the newest one carries it.

    Attributes:
        on_connected: called when a request is about to be sent.
        on_lost: called when the newest transport is gone.
        flood: what the provider sent too much of, or empty; the connection is cut then.
    """

    __slots__ = (
        "_body_bytes",
        "_closed",
        "_interim",
        "_received_bytes",
        "_transport",
        "flood",
        "on_connected",
        "on_lost",
    )

    def __init__(self) -> None:
        self.on_connected: Callable[[], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self.flood = ""
        self._received_bytes = self._body_bytes = self._interim = 0  # of the current answer
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] | None = None

    def add(self, transport: asyncio.Transport, closed: asyncio.Future[None] | None) -> None:
        """Take a transport that stands.

        Args:
            transport: of the connection; TLS counts as one of its own.
            closed: is done when the transport is gone; `None`: it is gone already.
        """
        if transport is self._transport:
            return
        self._transport, self._closed = transport, closed
        if closed is not None:
            closed.add_done_callback(self._on_closed)

    def connected(self) -> None:
        """Note that a request is about to be sent."""
        self._received_bytes = self._body_bytes = self._interim = 0
        if self.on_connected is not None:
            self.on_connected()

    def received(self, size: int) -> None:
        """Count bytes that came, whatever they are; too many around a body cut the connection."""
        self._received_bytes += size
        if self._received_bytes > _AROUND_BYTES + _AROUND_SHARE * self._body_bytes:
            self._cut(f"{_AROUND_BYTES >> 20} MiB around the body of its answer")

    def received_body(self, size: int) -> None:
        """Count bytes of the body that were read."""
        self._body_bytes += size

    def received_interim(self) -> None:
        """Count a head of status 1xx; too many cut the connection."""
        self._interim += 1
        if self._interim > _INTERIM_MAX:
            self._cut(f"more than {_INTERIM_MAX} heads of status 1xx")

    def _cut(self, what: str) -> None:
        self.flood = what
        if self._transport is not None:
            self._transport.abort()

    @property
    def has_body(self) -> bool:
        """Return whether some of the body was read."""
        return self._body_bytes > 0

    @property
    def is_open(self) -> bool:
        """Return whether the newest transport stands."""
        transport, closed = self._transport, self._closed
        return not (transport is None or closed is None or closed.done() or transport.is_closing())

    @property
    def is_readable(self) -> bool:
        """Return whether the kernel holds something that the loop has not read yet."""
        number = _descriptor(self._transport)
        if number is None:
            return True
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(0))

    @property
    def is_sending(self) -> bool:
        """Return whether this process holds bytes that the kernel has not taken."""
        transport = self._transport
        return transport is not None and bool(transport.get_write_buffer_size())

    def abort(self) -> None:
        """Cut the connection; a request that is not out is taken back from the kernel too."""
        transport = self._transport
        if transport is None:
            return
        if self.is_open and (self.is_sending or _is_under_way(transport)):
            sock: socket.socket = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        transport.abort()

    async def gone(self) -> None:
        """Wait until the socket is closed, at most for a second."""
        closed = self._closed
        if closed is not None and not closed.done():
            await asyncio.wait([closed], timeout=_GONE_S)

    def _on_closed(self, closed: asyncio.Future[None]) -> None:
        if not closed.cancelled():
            closed.exception()  # seen
        if closed is self._closed and self.on_lost is not None:
            self.on_lost()


def _descriptor(transport: asyncio.Transport | None) -> int | None:
    sock = None if transport is None else transport.get_extra_info("socket")
    number: int = -1 if sock is None else sock.fileno()
    return number if number >= 0 else None


def _is_under_way(transport: asyncio.Transport) -> bool:
    """Return whether the kernel holds bytes that are not at the other end."""
    number = _descriptor(transport)
    if number is None:
        return False
    try:
        (held,) = struct.unpack("i", fcntl.ioctl(number, termios.TIOCOUTQ, b"\0\0\0\0"))
    except OSError:  # a kernel that cannot tell
        return True
    return bool(held)
