"""Makes connections of aiohttp: one session that holds one connection, with httpx in front.

aiohttp costs a fifth per read of httpx's own transport. Its hook for requests shows the transport
that a request is sent on. This file knows no provider.
"""

from __future__ import annotations

import asyncio
import ssl
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import aiohttp
import httpx
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler
from httpx_aiohttp.transport import AiohttpTransport

from trunkline_workers.connections import Connection
from trunkline_workers.wires import Wires

_connection: Final[ContextVar[AiohttpConnection | None]] = ContextVar("_connection", default=None)


class _Request(aiohttp.ClientRequest):
    """A request that shows on which transport it is sent."""

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        """Send the request."""
        connection, protocol = _connection.get(), conn.protocol
        if connection is not None and protocol is not None and protocol.transport is not None:
            connection.carry(protocol)
        return await super().send(conn)


class _Protocol(ResponseHandler):
    """A protocol of aiohttp that counts what comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wires: Wires) -> None:
        super().__init__(loop)
        self._wires = wires

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self._wires.received(len(data))
        if not self._wires.flood:
            super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take the head of an answer; each costs its reader as much as an event."""
        if 100 <= data[0].code < 200:
            self._wires.received_interim()
        if not self._wires.flood:
            super().feed_data(data, size)


class _Transport(AiohttpTransport):
    """A transport of one connection."""

    def __init__(
        self, tls: ssl.SSLContext, resolver: AbstractResolver, wires: Wires, **settings: Any
    ) -> None:
        super().__init__(verify=tls, **settings)
        self._resolver = resolver
        self._wires = wires

    def get_client(self) -> aiohttp.ClientSession:
        """Return a new session; it is closed with the transport."""
        connector = aiohttp.TCPConnector(
            limit=1, ssl=self.ssl_context, keepalive_timeout=None, resolver=self._resolver
        )
        # aiohttp offers no other way to count what a connection brings.
        loop = asyncio.get_running_loop()
        hidden: Any = connector
        hidden._factory = partial(_Protocol, loop, self._wires)  # noqa: SLF001
        return aiohttp.ClientSession(
            connector=connector, request_class=_Request, cookie_jar=aiohttp.DummyCookieJar()
        )


class AiohttpClient(httpx.AsyncClient):
    """httpx with aiohttp under it.

    Args:
        tls: for every connection.
        resolver: of host names, shared by all clients.
        wires: of the connection.
        settings: of httpx.
    """

    def __init__(
        self, tls: ssl.SSLContext, resolver: AbstractResolver, wires: Wires, **settings: Any
    ) -> None:
        self._resolver = resolver
        self._wires = wires
        super().__init__(verify=tls, **settings)

    def _init_transport(self, *given: Any, **settings: Any) -> httpx.AsyncBaseTransport:
        del given
        tls, trust_env = settings["verify"], settings["trust_env"]
        return _Transport(tls, self._resolver, self._wires, trust_env=trust_env)

    def _init_proxy_transport(self, *given: Any, **settings: Any) -> httpx.AsyncBaseTransport:
        (proxy,) = given
        tls, trust_env = settings["verify"], settings["trust_env"]
        return _Transport(tls, self._resolver, self._wires, trust_env=trust_env, proxy=proxy)


class AiohttpConnection(Connection):
    """A connection of aiohttp."""

    def __init__(self, client: httpx.AsyncClient, wires: Wires) -> None:
        super().__init__(client, wires)
        self._protocol: Any = None

    def enter(self) -> None:
        """Have requests of the current task report to this connection."""
        _connection.set(self)

    def carry(self, protocol: Any) -> None:
        """Take the protocol of aiohttp on which a request is about to be sent."""
        self._protocol = protocol
        self.wires.add(protocol.transport, protocol.closed)
        self.wires.connected()

    @property
    def has_leftovers(self) -> bool:
        """Return whether bytes came behind the end of the last answer, at once or later."""
        return self._protocol is None or bool(self._protocol.should_close)


class Resolver(AbstractResolver):
    """Names of hosts, asked for once for all connections that are made at the same time."""

    def __init__(self) -> None:
        self._resolver = aiohttp.ThreadedResolver()
        self._asked: dict[tuple[str, int, int], asyncio.Future[Any]] = {}

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> Any:
        """Return the addresses of a host; connections that wait for the same one share it."""
        key = (host, port, int(family))
        asked = self._asked.get(key)
        if asked is None:
            asked = asyncio.ensure_future(self._resolver.resolve(host, port, family))
            self._asked[key] = asked
            asked.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(asked)

    def _answered(self, key: tuple[str, int, int], done: asyncio.Future[Any]) -> None:
        self._asked.pop(key, None)
        if not done.cancelled():
            done.exception()  # seen, even if nobody waits any more

    async def close(self) -> None:
        """Close nothing: a session closes it, and others use it."""
