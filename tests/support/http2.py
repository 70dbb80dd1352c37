"""A provider that speaks HTTP/2: one answer for every request, and what it saw of the streams."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Self, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset


class Http2Server:
    """Serves over TLS on a free port of loopback.

    Attributes:
        requests: headers of the requests so far.
        resets: streams that the client broke off.
        connections: made so far.
    """

    def __init__(
        self, writes: Sequence[bytes], certificate: tuple[Path, Path], *, ends: bool = True
    ) -> None:
        self.writes = writes
        self.ends = ends
        self.requests: list[dict[str, str]] = []
        self.resets = 0
        self.connections = 0
        self.open_connections: set[asyncio.Transport] = set()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(*certificate)
        self._tls.set_alpn_protocols(["h2"])
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", 0, ssl=self._tls
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for transport in list(self.open_connections):
            transport.abort()
        await self._server.wait_closed()


class _Connection(asyncio.Protocol):
    """One connection of a client; the library keeps its state."""

    def __init__(self, server: Http2Server) -> None:
        self._server = server
        self._state = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections += 1
        self._server.open_connections.add(self._transport)
        self._state.initiate_connection()
        self._transport.write(self._state.data_to_send())

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._server.open_connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        for event in self._state.receive_data(data):
            if isinstance(event, RequestReceived):
                self._server.requests.append(dict(event.headers))
            elif isinstance(event, DataReceived):
                length = event.flow_controlled_length
                self._state.acknowledge_received_data(length, event.stream_id)
            elif isinstance(event, StreamEnded):
                self._answer(event.stream_id)
            elif isinstance(event, StreamReset):
                self._server.resets += 1
        self._transport.write(self._state.data_to_send())

    def _answer(self, stream_id: int) -> None:
        headers = [(":status", "200"), ("content-type", "text/event-stream")]
        self._state.send_headers(stream_id, headers)
        for data in self._server.writes:
            self._state.send_data(stream_id, data)
        if self._server.ends:
            self._state.end_stream(stream_id)
