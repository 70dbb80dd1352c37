"""A provider made of raw bytes: it answers as told and remembers what it saw on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self, cast

from tests.support.timing import NotSoonEnoughError, until_async

End = Literal["clean", "open", "reset", "cut"]
TAKEN_S = 2.0


@dataclass(slots=True)
class Answer:
    """What the server sends to one request.

    `gate` holds the answer back until it is set: before the head, or after `gate_after` writes.
    `chunked` false sends a body that ends with the connection.
    """

    writes: Sequence[bytes] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    end: End = "clean"
    interval_s: float = 0.0
    chunked: bool = True
    gate: asyncio.Event | None = None
    gate_after: int | None = None


@dataclass(slots=True)
class Exchange:
    """One request as it was seen; `closed` is set when its connection has ended."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0  # body writes


class RawServer:
    """Serves answers in order on a free port of loopback; the last one is served again."""

    def __init__(self, *answers: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answers = list(answers)
        self.tls = tls
        self.exchanges: list[Exchange] = []
        self.connections = 0
        self.open_connections: set[_Connection] = set()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        scheme = "https" if self.tls else "http"
        return f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", 0, ssl=self.tls
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [connection.abort() for connection in list(self.open_connections)]
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
        await self._server.wait_closed()

    def take(self, exchange: Exchange) -> Answer:
        """Note a request and choose its answer."""
        answer = self.answers[min(len(self.exchanges), len(self.answers) - 1)]
        self.exchanges.append(exchange)
        self._changed.set()
        return answer

    def serve(self, *answers: Answer) -> int:
        """Give these answers from now on; returns the number of the next request."""
        number = len(self.exchanges)
        self.answers = [*answers[:1] * number, *answers]
        return number

    async def exchange(self, number: int, timeout_s: float = 5.0) -> Exchange:
        """Wait for the request of that number, from 0."""
        async with asyncio.timeout(timeout_s):
            while len(self.exchanges) <= number:
                self._changed.clear()
                await self._changed.wait()
        return self.exchanges[number]


class _Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, server: RawServer) -> None:
        self._server = server
        self._number = server.connections
        self._received = b""
        self._exchanges: list[Exchange] = []
        self._answering: asyncio.Task[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        server.connections += 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        for exchange in self._exchanges:
            exchange.closed.set()
        self._can_write.set()
        if self._answering is not None:
            self._answering.cancel()
        self._server.open_connections.discard(self)

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._next_request()

    def abort(self) -> asyncio.Task[None] | None:
        """Cut the connection; returns the answer in progress."""
        self._transport.abort()
        return self._answering

    def _next_request(self) -> None:
        if self._answering is not None or (exchange := self._parse()) is None:
            return
        self._exchanges.append(exchange)
        answer = self._server.take(exchange)
        self._answering = asyncio.ensure_future(self._answer(answer, exchange))
        self._answering.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering = None
        if not task.cancelled() and not self._transport.is_closing():
            task.result()
            self._next_request()

    def _parse(self) -> Exchange | None:
        head, blank, rest = self._received.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in lines[1:] if ":" in line)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        length = int(headers.get("content-length", "0"))
        if not blank or len(rest) < length:
            return None
        self._received = rest[length:]
        method, path, _ = lines[0].split(" ", 2)
        return Exchange(method, path, headers, rest[:length], self._number)

    async def _answer(self, answer: Answer, exchange: Exchange) -> None:
        if answer.gate is not None and answer.gate_after is None:
            await answer.gate.wait()
        has_body = answer.status != 204
        await self._write(_head(answer, has_body=has_body))
        if has_body:
            await self._body(answer, exchange)
            await self._end(answer)

    async def _body(self, answer: Answer, exchange: Exchange) -> None:
        for number, data in enumerate(answer.writes):
            if answer.gate is not None and answer.gate_after == number:
                await answer.gate.wait()
            if data:
                piece = b"%x\r\n%s\r\n" % (len(data), data) if answer.chunked else data
                await self._write(piece)
            exchange.sent += 1
            if answer.interval_s:
                await asyncio.sleep(answer.interval_s)

    async def _end(self, answer: Answer) -> None:
        if answer.end == "open":
            await asyncio.Event().wait()
        elif answer.end == "cut":  # in the middle of a chunk, or of the length it promised
            await self._write(b"100\r\ndata: " if answer.chunked else b"")
            self._transport.close()
        elif answer.end == "reset":
            await self._until_taken()  # a reset drops what the other end has not read yet
            self._reset()
        elif answer.chunked:
            await self._write(b"0\r\n\r\n")
        else:
            self._transport.close()

    async def _write(self, data: bytes) -> None:
        self._transport.write(data)
        await asyncio.sleep(0)
        await self._can_write.wait()

    async def _until_taken(self) -> None:
        """Wait until the other end has read all; one that does not read is not waited for long."""
        here = self._transport.get_extra_info("sockname")
        there = self._transport.get_extra_info("peername")

        def is_taken() -> bool:
            return not self._transport.get_write_buffer_size() and not _is_under_way(here, there)

        with contextlib.suppress(NotSoonEnoughError):
            await until_async(is_taken, TAKEN_S)

    def _reset(self) -> None:
        """Close with a TCP reset instead of an orderly end."""
        sock: socket.socket = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


def _is_under_way(here: tuple[str, int], there: tuple[str, int]) -> bool:
    """Tell whether the kernel holds bytes from here that were not read there; both on this host."""
    ends = {_end(here): _end(there), _end(there): _end(here)}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if ends.get(local) == remote:
            sending, received = (int(size, 16) for size in queues.split(":"))
            if sending if local == _end(here) else received:
                return True
    return False


def _end(address: tuple[str, int]) -> str:
    """Return an IPv4 address as the kernel's table has it."""
    return f"{int.from_bytes(socket.inet_aton(address[0]), 'little'):08X}:{address[1]:04X}"


def _head(answer: Answer, *, has_body: bool) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} Answer"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    if has_body:
        lines.append("transfer-encoding: chunked" if answer.chunked else "connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
