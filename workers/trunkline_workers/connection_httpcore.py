"""Makes connections of httpx's own transport: one pool of httpcore that holds one connection.

httpcore is given network streams that read while they write. A provider that refuses a request
early answers and closes, and with streams that only write at that time its answer would be lost.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, cast

import aiohappyeyeballs
import httpcore
import httpx

from trunkline_workers.connections import Connection
from trunkline_workers.turns import Turns
from trunkline_workers.wires import Wires

_PIECE_BYTES: Final = 64 * 1024  # written at a time
_NEXT_ADDRESS_S: Final = 0.25  # RFC 8305: until the next address of a host is tried too
_HEAD_BYTES: Final = 4096  # read at a time before the body; h11 parses all of it in one step
_HELD_BYTES: Final = 256 * 1024  # read ahead, before the provider has to wait
_STATUS_AT: Final = len(b"HTTP/1.1 ")
_REFUSALS: Final = (b"4", b"5")
_race: Any = cast("Any", aiohappyeyeballs).start_connection  # its types are partly unknown


class _Wire(asyncio.Protocol):
    """Both directions of one socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wires: Wires) -> None:
        self._wires = wires
        self._turns = Turns(loop)
        self.transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._has_ended = False
        self._error: Exception | None = None
        self._is_paused = self._is_reading_paused = False
        self._change: asyncio.Future[None] | None = None

    # --- of asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._error, self._has_ended = exc, True
        if not self.closed.done():
            self.closed.set_result(None)
        self._changed()

    def data_received(self, data: bytes) -> None:
        self._wires.received(len(data))
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > _HELD_BYTES and self.transport is not None:
            self._is_reading_paused = True
            self.transport.pause_reading()
        self._changed()

    def eof_received(self) -> None:
        self._has_ended = True
        self._changed()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._changed()

    # --- of the stream ----------------------------------------------------------------------

    @property
    def has_unread(self) -> bool:
        """Return whether something came that nobody has read, an end included."""
        return bool(self._held) or self._has_ended

    async def read(self, max_bytes: int) -> bytes:
        """Return what came, `b""` at the end.

        Raises:
            httpcore.ReadError: the connection broke, and all that came before is read.
        """
        await self._turns.share()  # whoever parses what is held does not wait for it
        while not self._held:
            if self._has_ended:
                if self._error is not None:
                    raise httpcore.ReadError(str(self._error)) from self._error
                return b""
            await self._wait()
        if not self._wires.has_body:
            max_bytes = min(max_bytes, _HEAD_BYTES)
        data = self._held.popleft()
        if len(data) > max_bytes:
            self._held.appendleft(data[max_bytes:])
            data = data[:max_bytes]
        self._held_bytes -= len(data)
        if self._is_reading_paused and self._held_bytes <= _HELD_BYTES // 2:
            self._is_reading_paused = False
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Write, as fast as the other end takes it.

        Raises:
            httpcore.WriteError: the connection broke, or the answer is there and is a refusal.
        """
        view = memoryview(data)
        for at in range(0, len(view), _PIECE_BYTES):
            if self.transport is None or self.transport.is_closing() or self._error is not None:
                raise httpcore.WriteError("the connection is closed") from self._error
            if self._is_refused():
                raise httpcore.WriteError("the provider has refused the request")
            self.transport.write(view[at : at + _PIECE_BYTES])
            while self._is_paused and not self._has_ended and not self._is_refused():
                await self._wait()

    def _is_refused(self) -> bool:
        """Return whether the first bytes that came are an HTTP/1 answer of status 4xx or 5xx."""
        if not self._held:
            return False
        head = self._held[0] if len(self._held[0]) > _STATUS_AT else b"".join(self._held)
        return head.startswith(b"HTTP/1.") and head[_STATUS_AT : _STATUS_AT + 1] in _REFUSALS

    async def _wait(self) -> None:
        """Wait for the next change; a reader or a writer waits, never both."""
        self._change = self._loop.create_future()
        try:
            await self._change
        finally:
            self._change = None

    def _changed(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)


class _Stream(httpcore.AsyncNetworkStream):
    """A wire as httpcore wants it; limits are not its own, so timeouts are ignored."""

    def __init__(self, wire: _Wire, wires: Wires) -> None:
        self._wire = wire
        self._wires = wires

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return await self._wire.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        if buffer:
            await self._wire.write(buffer)

    async def aclose(self) -> None:
        self._wires.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        wire, loop = self._wire, asyncio.get_running_loop()
        if wire.transport is None:
            raise AssertionError("a stream is made of a connected wire")
        try:
            over = await loop.start_tls(
                wire.transport, wire, ssl_context, server_hostname=server_hostname
            )
        except OSError as exc:  # ssl.SSLError is one
            raise httpcore.ConnectError(str(exc)) from exc
        if over is None:
            raise httpcore.ConnectError("the connection was closed in the TLS handshake")
        wire.transport = over
        self._wires.add(over, wire.closed)
        return self

    def get_extra_info(self, info: str) -> Any:
        wire = self._wire
        if info == "is_readable":
            return wire.has_unread or not self._wires.is_open
        if wire.transport is None:
            return None
        names = {"client_addr": "sockname", "server_addr": "peername"}
        return wire.transport.get_extra_info(names.get(info, info))


class _Backend(httpcore.AsyncNetworkBackend):
    """Opens the streams of one connection."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        del timeout, local_address, socket_options  # limits are the exchange's; the rest is unused
        loop = asyncio.get_running_loop()
        try:
            found: Any = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            # asyncio's own race of addresses loses the socket of a winner that is cancelled.
            sock: socket.socket = await _race(
                found, happy_eyeballs_delay=_NEXT_ADDRESS_S, loop=loop
            )
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport, wire = await loop.create_connection(
                lambda: _Wire(loop, self._wires), sock=sock
            )
        except OSError as exc:
            raise httpcore.ConnectError(str(exc)) from exc
        self._wires.add(transport, wire.closed)
        return _Stream(wire, self._wires)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Transport(httpx.AsyncHTTPTransport):
    """httpx's transport on our streams."""

    def __init__(self, wires: Wires, **settings: Any) -> None:
        super().__init__(**settings)
        # httpx does not pass a backend on; httpcore's pools read it when they connect.
        pool: Any = self._pool
        pool._network_backend = _Backend(wires)  # noqa: SLF001

    @property
    def has_leftovers(self) -> bool:
        """Return whether bytes came behind the end of the last answer, or whether it is unclear."""
        if len(self._pool.connections) != 1:
            return bool(self._pool.connections)
        found: Any = self._pool.connections[0]
        if not found.is_idle():
            return True
        # A tunnel or a connection of the pool holds the one that speaks; HTTP/2 frames all bytes.
        while (inner := getattr(found, "_connection", None)) is not None:
            found = inner
        state = getattr(found, "_h11_state", None)
        if state is None:
            return not hasattr(found, "_h2_state")
        return bool(state.trailing_data[0])


class HttpcoreClient(httpx.AsyncClient):
    """httpx on our streams.

    Args:
        tls: for every connection.
        wires: of the connection.
        settings: of httpx.
    """

    def __init__(self, tls: ssl.SSLContext, wires: Wires, **settings: Any) -> None:
        self._wires = wires
        self.transports: list[_Transport] = []
        super().__init__(verify=tls, **settings)

    def _init_transport(self, *given: Any, **settings: Any) -> httpx.AsyncBaseTransport:
        del given
        settings.pop("transport", None)
        return self._made(settings)

    def _init_proxy_transport(self, *given: Any, **settings: Any) -> httpx.AsyncBaseTransport:
        (proxy,) = given
        return self._made({**settings, "proxy": proxy})

    def _made(self, settings: dict[str, Any]) -> _Transport:
        made = _Transport(self._wires, **settings)
        self.transports.append(made)
        return made


class HttpcoreConnection(Connection):
    """A connection of httpx's own transport."""

    client: HttpcoreClient

    def enter(self) -> None:
        """Do nothing: the streams know their connection."""

    @property
    def has_leftovers(self) -> bool:
        """Return whether bytes came behind the end of the last answer."""
        return any(each.has_leftovers for each in self.client.transports)
