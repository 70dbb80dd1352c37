"""The HTTP client that adapters share: it counts its connections, and each response is bounded.

The API is httpx; the transport under it is aiohttp (`httpx-aiohttp`), which costs a fifth per read,
or httpx's own where HTTP/2 is asked for. Library retries and redirects are off. Proxies and
certificates come from the environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` …), as far as the
worker's configuration passes those variables on.

A connection is owned by a task of this client from the request to the close, not by the task that
reads. Cancelling a reader twice, or before the first byte, then cannot leak a connection
(encode/httpx#3782). A call that ends early cuts its socket, whatever of the request is still to be
sent, and holds its slot until the socket is gone. This file knows no provider.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ssl
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
)
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar, cast
from urllib.parse import urlsplit

import httpx
from trunkline_protocol.attribution import attribution_headers
from trunkline_protocol.failure import Code, LlmError, LlmFailure

from trunkline_workers.clocks import StreamClocks, StreamLimits
from trunkline_workers.connection_aiohttp import AiohttpClient, AiohttpConnection, Resolver
from trunkline_workers.connection_httpcore import HttpcoreClient, HttpcoreConnection
from trunkline_workers.connections import Connection, ConnectionPool
from trunkline_workers.inflate import DECODABLE, InflateError, Inflater
from trunkline_workers.loop_clock import LoopClock
from trunkline_workers.tracing import note_response
from trunkline_workers.transport_failure import transport_failure
from trunkline_workers.turns import Turns
from trunkline_workers.watchdog import Watchdog
from trunkline_workers.wires import Wires

_T = TypeVar("_T")
TransportName = Literal["aiohttp", "httpx"]

_DRAIN_S: Final = 0.1  # for the end of a body that is complete, so that its connection is reused
_CLOSE_S: Final = 5.0  # for all connections when the worker ends
_READ_BYTES: Final = 16 * 1024  # at a time: what is made of a read takes some milliseconds at most
_SENT_BYTES: Final = 64 * 1024  # of a body at a time; the transports copy what they are given


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client connects.

    Attributes:
        max_connections: calls that may hold a connection at a time; more wait.
        transport: `aiohttp`, or `httpx` for its own.
        http2: speak HTTP/2 where the server does; needs the `httpx` transport and the `h2` package.
        trust_env: take proxies and certificates from the environment.
        keep_alive: use a connection for several calls.
    """

    max_connections: int = 256
    transport: TransportName = "aiohttp"
    http2: bool = False
    trust_env: bool = True
    keep_alive: bool = True


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; `headers` may hold a key, so neither they nor the body appear in a text."""

    method: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    content: bytes | None = field(default=None, repr=False)


class HttpClient:
    """Connections to providers."""

    def __init__(self, options: ClientOptions) -> None:
        """Describe the client; nothing is opened yet.

        Raises:
            ValueError: HTTP/2 is asked for and the package for it is missing.
        """
        if options.http2 and importlib.util.find_spec("h2") is None:
            raise ValueError("http2: needs the package `h2` (pip install trunkline[http2])")
        self._options = options
        self._clock: LoopClock | None = None
        self._pool: ConnectionPool | None = None
        self._slots = asyncio.Semaphore(options.max_connections)
        self._in_use = 0
        self._exchanges: set[asyncio.Task[Any]] = set()
        self._closings: set[asyncio.Task[Any]] = set()

    @property
    def in_use(self) -> int:
        """Connections that calls hold at this moment, those that are being cut included."""
        return self._in_use

    async def open(self) -> None:
        """Make the client ready; it connects nothing yet."""
        if self._pool is None:
            trust_env = self._options.trust_env
            # Certificates are read from disk, in tens of milliseconds.
            tls = await asyncio.to_thread(httpx.create_ssl_context, trust_env=trust_env)
            self._clock = LoopClock(asyncio.get_running_loop())
            self._pool = ConnectionPool(
                _maker(self._options, tls),
                self._options.max_connections if self._options.keep_alive else 0,
                lambda connection: self.own(connection.close()),
            )

    async def close(self) -> None:
        """Close every connection; responses that are still open are cut."""
        for task in self._exchanges:
            task.cancel()
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
        for tasks in (self._exchanges, self._closings):
            if tasks:
                await asyncio.wait(list(tasks), timeout=_CLOSE_S)

    async def send(self, request: HttpRequest, limits: StreamLimits) -> HttpResponse:
        """Send a request and wait for the head of its answer.

        Safe to cancel: the connection is cut and its slot returned, whatever point was reached.

        Raises:
            LlmError: `TIMEOUT` with the name of the limit, `TRANSPORT`, `INVALID_REQUEST` for a
                request that cannot be sent, or `INVALID_ADAPTER` for a certificate that this worker
                does not trust.
        """
        pool, clock = self._pool, self._clock
        if pool is None or clock is None:
            raise AssertionError("the client is used before open()")
        clock.hold()
        watchdog = Watchdog(asyncio.get_running_loop(), clock)
        try:
            await self._take_slot(limits, watchdog, clock)
        except BaseException:  # whatever ends the wait for a slot, a cancel too
            watchdog.close()
            clock.release()
            raise
        exchange = _Exchange(request, pool, self)
        response = HttpResponse(exchange, StreamClocks(limits), watchdog, clock)
        try:
            await response.receive_head(limits.connect_s)
        except BaseException:  # a cancel too: the connection is cut
            await response.close()
            raise
        return response

    async def _take_slot(self, limits: StreamLimits, watchdog: Watchdog, clock: LoopClock) -> None:
        watchdog.arm(clock.now_s() + limits.pool_s)
        try:
            await self._slots.acquire()
        except asyncio.CancelledError:
            if watchdog.took_effect():
                text = f"no free connection within {limits.pool_s:g} s (pool limit of this worker)"
                raise LlmError(LlmFailure(text, Code.TRANSPORT)) from None
            raise
        finally:
            watchdog.disarm()
        self._in_use += 1

    def return_slot(self) -> None:
        """Give back the slot of an exchange whose socket is gone, or free for another call."""
        self._in_use -= 1
        self._slots.release()
        if self._clock is not None:
            self._clock.release()

    def start(self, exchange: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run an exchange; `close` cancels and awaits it."""
        return _run(exchange, self._exchanges)

    def own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that must end even if the call that needs it is gone; `close` awaits it."""
        return _run(work, self._closings)

    def stream(
        self, connection: Connection, request: HttpRequest, body: SentBody
    ) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        """Return httpx's own context of a streamed request.

        Args:
            connection: of the request.
            request: to send.
            body: of the request.
        """

        async def trace(name: str, info: Mapping[str, object]) -> None:
            del info
            if name.endswith(".send_request_headers.started"):
                connection.wires.connected()

        headers: dict[str, str] = dict(request.headers)
        content: bytes | SentBody | None = request.content
        if content is not None and len(content) > _SENT_BYTES:
            headers["content-length"] = str(len(content))
            content = body
        return connection.client.stream(
            request.method,
            request.url,
            headers=headers,
            content=content,
            timeout=None,  # limits are the response's: these would count a loop that is late
            extensions={"trace": trace},
        )


def _run(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def _maker(options: ClientOptions, tls: ssl.SSLContext) -> Callable[[], Connection]:
    """Return what makes connections."""
    headers = {**attribution_headers(), "accept-encoding": "identity"}
    if not options.keep_alive:
        headers["connection"] = "close"
    settings: dict[str, Any] = {  # httpx's own parameter types differ per parameter
        "headers": headers,
        "limits": httpx.Limits(max_connections=1, keepalive_expiry=None),
        "trust_env": options.trust_env,
        "follow_redirects": False,
        "event_hooks": {"request": [_attribute]},
    }
    if options.transport == "httpx" or options.http2:

        def make() -> Connection:
            wires = Wires()
            client = HttpcoreClient(tls, wires, http2=options.http2, **settings)
            return HttpcoreConnection(client, wires)

        return make
    resolver = Resolver()

    def make_aiohttp() -> Connection:
        wires = Wires()
        return AiohttpConnection(AiohttpClient(tls, resolver, wires, **settings), wires)

    return make_aiohttp


async def _attribute(request: httpx.Request) -> None:
    """Put the attribution on a request, whatever headers it was given."""
    for name, value in attribution_headers().items():
        request.headers[name] = value


class SentBody:
    """The body of a request, in pieces.

    Args:
        content: all of it.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def is_out(self) -> bool:
        """Return whether the transport has asked for all of it, or it is sent in one piece."""
        return self._at >= len(self._content) or len(self._content) <= _SENT_BYTES

    def __aiter__(self) -> SentBody:
        """Return the body itself; it is sent once."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next piece."""
        if self._at >= len(self._content):
            raise StopAsyncIteration
        piece = self._content[self._at : self._at + _SENT_BYTES]
        self._at += len(piece)
        return piece


class _Exchange:
    """One request and its response, owned by a task from the send to the close.

    Attributes:
        connected: is set when the request is about to be sent, and when the exchange has ended.
        head: of the response.
        body: of the response, once its head is there.
        wires: of the connection, once there is one.
    """

    def __init__(self, request: HttpRequest, pool: ConnectionPool, client: HttpClient) -> None:
        self.connected = asyncio.Event()
        self.head: asyncio.Future[httpx.Response] = asyncio.get_running_loop().create_future()
        self.body: AsyncIterator[bytes] | None = None
        self._client = client
        self.wires: Wires | None = None
        self._connection: Connection | None = None
        self._sent = SentBody(request.content or b"")
        self._closing = asyncio.Event()
        self._has_head = False
        self._is_complete = False
        self._task = client.start(self._run(request, pool))

    async def _run(self, request: HttpRequest, pool: ConnectionPool) -> None:
        head, server = self.head, _server_of(request.url)
        kept: str | None = None
        try:
            self._connection = connection = await pool.take(server)
            self.wires = connection.wires
            connection.wires.on_connected = self.connected.set
            connection.enter()
            async with self._client.stream(connection, request, self._sent) as response:
                self._has_head = True
                if not head.done():
                    head.set_result(response)
                await self._closing.wait()
                if await self._is_clean(connection):
                    kept = response.headers.get("keep-alive", "")
                else:
                    connection.wires.abort()
        except Exception as exc:  # noqa: BLE001 - every failure belongs to the caller
            if not head.done():
                head.set_exception(exc)
                head.exception()  # seen, even if the caller has gone
        finally:
            head.cancel()
            self.connected.set()
            try:
                await self._part(pool, server, kept)
            finally:
                self._client.return_slot()

    async def _is_clean(self, connection: Connection) -> bool:
        """Return whether the answer was read to its end and nothing of the request is left."""
        if not self._is_complete or self.body is None:
            return False
        if connection.wires.is_sending or not self._sent.is_out:
            return False
        return await _drain(self.body)

    async def _part(self, pool: ConnectionPool, server: str, kept: str | None) -> None:
        """Part with the connection: it is kept if its `Keep-Alive` header was read, else cut."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.wires.on_connected = None
        if kept is None:
            # Not in this task: the client that closes cancels it.
            await asyncio.wait([self._client.own(connection.close())])
        else:
            pool.give_back(connection, server, kept)

    def flooded(self) -> LlmFailure | None:
        """Return the failure of a provider that was cut because it sent too much."""
        if self.wires is None or not self.wires.flood:
            return None
        return LlmFailure(f"the provider sent {self.wires.flood}", Code.MALFORMED_RESPONSE)

    async def close(self, *, is_complete: bool) -> None:
        """Cut the connection, or give it back if the body is complete; idempotent."""
        self._is_complete = is_complete
        self._closing.set()
        if self._task.done() or is_complete:  # its end comes in the background
            return
        if self._connection is not None:
            self._connection.wires.abort()
        # A second cancellation stops the wait here, not the close itself.
        await asyncio.wait([self._task if self._has_head else self._client.own(self._abort())])

    async def _abort(self) -> None:
        """Cancel the request before its answer has begun."""
        self._task.cancel()
        await asyncio.wait([self._task])


def _server_of(url: str) -> str:
    """Return scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


async def _drain(body: AsyncIterator[bytes]) -> bool:
    """Read the end of a body whose content is complete, so that the connection can be reused.

    Returns:
        Whether the end came.
    """
    # What goes wrong here only costs the connection, which is then closed.
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_DRAIN_S):
            async for _ in body:
                pass
            return True
    return False


class HttpResponse:
    """One response whose reads are bounded by the limits.

    Attributes:
        status: HTTP status, once the head is there.
        headers: of the response, names in lower case.
    """

    def __init__(
        self, exchange: _Exchange, clocks: StreamClocks, watchdog: Watchdog, clock: LoopClock
    ) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._exchange = exchange
        self._clocks = clocks
        self._watchdog = watchdog
        self._clock = clock
        self._body: AsyncIterator[bytes] | None = None
        self._turns = Turns(asyncio.get_running_loop())

    async def receive_head(self, connect_s: float) -> None:
        """Wait for status and headers.

        Args:
            connect_s: until the connection stands.

        Raises:
            LlmError: the request failed or a limit passed.
        """
        connected = self._exchange.connected.wait()
        if await self._within(connected, is_head=True, limit_s=connect_s) is None:
            text = f"no connection to the provider: connect limit of {connect_s:g} s passed"
            raise LlmError(LlmFailure(text, Code.TIMEOUT))
        response = await self._within(self._exchange.head, is_head=True)
        if response is None:
            raise AssertionError("a wait without a limit of its own gives what it waits for")
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        note_response(self.headers)
        encoding = self.headers.get("content-encoding", "").strip().lower()
        if encoding not in DECODABLE:
            text = f"the provider compressed its answer with {encoding!r}, which is not supported"
            raise LlmError(LlmFailure(text, Code.MALFORMED_RESPONSE))
        # The transport's own iterator costs two hops less than httpx's.
        stream = cast("AsyncIterable[bytes]", response.stream)
        plain = encoding in {"", "identity"}
        body = self._exchange.body = _counted(aiter(stream), self._exchange.wires)
        self._body = _cut(body) if plain else _inflated(body, Inflater(encoding))

    async def read(self) -> bytes:
        """Return the next bytes of the body, some KiB at most, `b""` at its end.

        A body that comes faster than it is read leaves the loop to others between two reads.

        Raises:
            LlmError: `TIMEOUT` with the name of the limit, `TRANSPORT`, or `MALFORMED_RESPONSE` for
                a body that can't be decompressed.
        """
        data = await self.read_within(None)
        return b"" if data is None else data

    async def read_within(self, limit_s: float | None) -> bytes | None:
        """Read like `read`, but return `None` if nothing came for `limit_s` seconds of the loop."""
        if self._body is None:
            raise AssertionError("the body is read before the head")
        await self._turns.share()
        return await self._within(anext(self._body, b""), is_head=False, limit_s=limit_s)

    async def read_all(self, limit_bytes: int, first: bytes = b"") -> tuple[bytes, bool]:
        """Return the rest of the body and whether it is complete, `limit_bytes` at most."""
        parts, size = [first], len(first)
        while data := await self.read():
            parts.append(data)
            size += len(data)
            if size > limit_bytes:
                return b"".join(parts)[:limit_bytes], False
        return b"".join(parts), True

    async def read_some(self, limit_bytes: int) -> bytes:
        """Return the beginning of the body, as far as it can be read."""
        parts, size = list[bytes](), 0
        with contextlib.suppress(LlmError):  # what came before the trouble is the answer
            while size < limit_bytes and (data := await self.read()):
                parts.append(data)
                size += len(data)
        return b"".join(parts)[:limit_bytes]

    async def share(self) -> None:
        """Leave the loop to others if this response has used its time of the current turn."""
        await self._turns.share()

    def clock_s(self) -> float:
        """Return seconds of the loop, for a limit that spans several reads."""
        return self._clock.now_s()

    @property
    def quiet_s(self) -> float:
        """Seconds waited for the provider since the last content."""
        return self._clocks.quiet_s

    def progressed(self) -> None:
        """Note that content came, which restarts the progress limit."""
        self._clocks.progressed()

    async def close(self, *, is_complete: bool = False) -> None:
        """Close the connection; idempotent.

        Args:
            is_complete: the content is complete, so the connection may be used again.
        """
        self._watchdog.close()
        await self._exchange.close(is_complete=is_complete)

    async def _within(
        self, wait: Awaitable[_T], *, is_head: bool, limit_s: float | None = None
    ) -> _T | None:
        """Await one thing from the provider, bounded by the clocks.

        The watchdog cancels this task when a limit passes. If the caller cancelled it too, that
        wins: the call was aborted, not timed out. `None`: `limit_s` passed before any other limit.
        """
        clocks, watchdog, clock = self._clocks, self._watchdog, self._clock
        has_bytes = False
        now_s = clock.now_s()
        deadline_s = clocks.arm(now_s)
        is_own = limit_s is not None and now_s + limit_s < deadline_s
        watchdog.arm(now_s + limit_s if is_own and limit_s is not None else deadline_s)
        try:
            result = await wait
            has_bytes = not is_head
        except asyncio.CancelledError:
            if not watchdog.took_effect():
                raise
            if is_own:
                return None
            raise LlmError(_limit_passed(clocks)) from None
        except InflateError as exc:
            text = "the answer could not be decompressed"
            raise LlmError(LlmFailure(text, Code.MALFORMED_RESPONSE)) from exc
        except Exception as exc:  # of many types: httpx-aiohttp passes some of aiohttp's on
            raise LlmError(self._exchange.flooded() or transport_failure(exc)) from exc
        finally:
            watchdog.disarm()
            clocks.disarm(clock.now_s(), has_bytes=has_bytes)
        return result


async def _counted(body: AsyncIterator[bytes], wires: Wires | None) -> AsyncIterator[bytes]:
    """Yield a body as it comes, and tell its size to the connection."""
    async for data in body:
        if wires is not None:
            wires.received_body(len(data))
        yield data


async def _cut(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield a body in pieces whose work is bounded."""
    async for data in body:
        if len(data) <= _READ_BYTES:
            yield data
            continue
        for at in range(0, len(data), _READ_BYTES):
            yield data[at : at + _READ_BYTES]


async def _inflated(body: AsyncIterator[bytes], inflater: Inflater) -> AsyncIterator[bytes]:
    """Yield what a compressed body stands for."""
    async for data in body:
        for piece in inflater.feed(data):
            yield piece


def _limit_passed(clocks: StreamClocks) -> LlmFailure:
    text = f"the provider was silent: {clocks.limit} limit of {clocks.limit_s:g} s passed"
    return LlmFailure(text, Code.TIMEOUT)
