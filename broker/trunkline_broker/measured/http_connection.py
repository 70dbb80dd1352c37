"""Carries one HTTP request and its answer on a plain socket of the running loop.

There is no transport, stream or task whose error could surface elsewhere: every callback is this
file's. A request is bounded in bytes and time. It does not know what is asked.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from trunkline_broker.edge import Edge

MAX_REQUEST_BYTES: Final = 8192
TIMEOUT_S: Final = 5.0  # for a request to come, and again for its answer to be taken
LINGER_S: Final = 1.0  # for a reader to close after it has its answer
_DISCARD_BYTES: Final = 64 * 1024
_END: Final = b"\r\n\r\n"
_TEXT: Final = "text/plain; charset=utf-8"


class _State(Enum):
    READING = auto()
    WAITING = auto()  # for a page to be rendered
    SENDING = auto()
    LINGERING = auto()  # answered; closed when the reader has closed
    CLOSED = auto()


class Connection:
    """One connection: a request comes, its answer goes, and it is closed.

    Args:
        accepted: its socket; closed with it.
        edge: takes errors of its callbacks, each of which closes this connection alone.
        on_request: takes the connection and the head of its request, once at most.
        on_closed: takes the connection when it is closed, once.

    Attributes:
        wants_body: whether an answer carries its body; a HEAD request has the head alone.
    """

    def __init__(
        self,
        accepted: socket.socket,
        edge: Edge,
        on_request: Callable[[Connection, bytes], None],
        on_closed: Callable[[Connection], None],
    ) -> None:
        self.wants_body = True
        self._edge = edge
        self._on_request = on_request
        self._on_closed = on_closed
        self._socket = accepted
        self._loop = asyncio.get_running_loop()
        self._state = _State.READING
        self._head = b""
        self._rest = memoryview(b"")
        self._discarded = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is owed on it: its request is not whole, or it is answered."""
        return self._state in {_State.READING, _State.LINGERING}

    def begin(self) -> None:
        """Wait for a request."""
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._guarded(self._on_readable))
        self._within(TIMEOUT_S)

    def answer(self, status: str, body: bytes, content_type: str = _TEXT) -> None:
        """Send an answer; nothing if the connection is closed."""
        if self._state is _State.CLOSED:
            return
        self._state = _State.SENDING
        self._within(TIMEOUT_S)
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        self._rest = memoryview(head.encode("latin-1") + (body if self.wants_body else b""))
        self._send()

    def close(self) -> None:
        """Close it, whatever is under way."""
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._on_closed(self)

    def _guarded(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return a callback whose error is noted and closes this connection alone."""

        def guarded() -> None:
            try:
                call()
            except OSError:  # reset, or gone
                self.close()
            except Exception as exc:  # noqa: BLE001  # any error of a side service ends at its edge
                self._edge.note(exc)
                self.close()

        return guarded

    def _within(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(time_s, self._guarded(self.close))

    def _on_readable(self) -> None:
        if self._state is _State.LINGERING:
            self._discard()
            return
        data = self._read()
        if data is None:
            return
        if not data:
            self.close()
            return
        self._head += data
        head, end, _ = self._head.partition(_END)
        if not end and len(self._head) < MAX_REQUEST_BYTES:
            return
        self._loop.remove_reader(self._socket)
        self._state = _State.WAITING
        if end and len(head) <= MAX_REQUEST_BYTES:
            self._on_request(self, head)
        else:
            self.answer("431 Request Header Fields Too Large", b"the request is too long\n")

    def _discard(self) -> None:
        """Drop what comes behind the request: closing over it would cut the answer short."""
        data = self._read()
        if data is None:
            return
        self._discarded += len(data)
        if not data or self._discarded > _DISCARD_BYTES:
            self.close()

    def _read(self) -> bytes | None:
        try:
            return self._socket.recv(MAX_REQUEST_BYTES)
        except (BlockingIOError, InterruptedError):
            return None

    def _send(self) -> None:
        try:
            while self._rest:
                self._rest = self._rest[self._socket.send(self._rest) :]
            self._loop.remove_writer(self._socket)
            self._socket.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._socket, self._guarded(self._send))
            return
        except OSError:  # the reader has gone
            self.close()
            return
        self._state = _State.LINGERING
        self._within(LINGER_S)
        self._loop.add_reader(self._socket, self._guarded(self._on_readable))
