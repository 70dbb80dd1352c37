"""What every HTTP adapter shares: a client that counts its connections, and one bounded response.

The API is httpx; the transport under it is aiohttp (`httpx-aiohttp`), which costs a fifth per read,
or httpx's own where HTTP/2 is asked for. Library retries and redirects are off. Proxies and
certificates come from the environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE` …), as far as the
worker's configuration passes those variables on.

A connection is owned by a task of this client from the request to the close, not by the task that
reads: cancelling a reader twice, or before the first byte, then can't leak a connection
(encode/httpx#3782). This file knows no provider.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar, cast

import aiohttp
import httpx
from httpx_aiohttp import HttpxAiohttpClient
from trunkline_protocol.attribution import attribution_headers
from trunkline_protocol.failure import Code, LlmError, LlmFailure

from trunkline_workers.clocks import StreamClocks, StreamLimits
from trunkline_workers.tracing import note_response
from trunkline_workers.watchdog import Watchdog

_T = TypeVar("_T")
TransportName = Literal["aiohttp", "httpx"]

_DRAIN_S: Final = 0.1  # for the end of a body that is complete, so that its connection is reused
_BEGIN_S: Final = 0.5  # a request begins within a few turns of the loop
_KEPT_S: Final = 30.0  # below the 60 s and more after which provider front ends close
_CLOSE_S: Final = 5.0  # for all connections when the worker ends
_DECODABLE: Final = frozenset({"", "identity", "gzip", "deflate"})


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
    """Connections to one provider."""

    def __init__(self, options: ClientOptions) -> None:
        """Describe the client; nothing is opened yet.

        Raises:
            ValueError: HTTP/2 is asked for and the package for it is missing.
        """
        if options.http2 and importlib.util.find_spec("h2") is None:
            raise ValueError("http2: needs the package `h2` (pip install trunkline[http2])")
        self._options = options
        self._client: httpx.AsyncClient | None = None
        self._tls: ssl.SSLContext | None = None  # of the clients for HTTP/2
        self._spare: list[httpx.AsyncClient] = []  # those that no exchange uses
        self._slots = asyncio.Semaphore(options.max_connections)
        self._in_use = 0
        self._owners: set[asyncio.Task[Any]] = set()

    @property
    def in_use(self) -> int:
        """Connections that calls hold at this moment."""
        return self._in_use

    async def open(self) -> None:
        """Make the client ready; it connects nothing yet."""
        if self._client is None:
            # Certificates are read from disk, in tens of milliseconds.
            self._tls = await asyncio.to_thread(_certificates, self._options)
            self._client = await asyncio.to_thread(_new_client, self._options, self._tls)

    async def close(self) -> None:
        """Close every connection; responses that are still open are cut."""
        owners = list(self._owners)
        for task in owners:
            task.cancel()
        if owners:
            await asyncio.wait(owners, timeout=_CLOSE_S)
        client, self._client = self._client, None
        for each in (*self._spare, *(() if client is None else (client,))):
            await each.aclose()
        self._spare.clear()

    async def send(self, request: HttpRequest, limits: StreamLimits) -> HttpResponse:
        """Send a request and wait for the head of its answer.

        Safe to cancel: the connection is closed and its slot returned, whatever point was reached.

        Raises:
            LlmError: `TIMEOUT` with the name of the limit, `TRANSPORT`, or `INVALID_REQUEST` for a
                request that can't be sent.
        """
        await self._take_slot(limits)
        clocks = StreamClocks(limits)
        exchange = _Exchange(self, request, limits)
        watchdog = Watchdog(asyncio.get_running_loop())
        response = HttpResponse(exchange, clocks, watchdog)
        try:
            await response.receive_head()
        except BaseException:  # a cancel too: the connection is closed
            await response.close()
            raise
        return response

    async def _take_slot(self, limits: StreamLimits) -> None:
        if self._client is None:
            raise AssertionError("the client is used before open()")
        try:
            async with asyncio.timeout(limits.pool_s):
                await self._slots.acquire()
        except TimeoutError:
            text = f"no free connection within {limits.pool_s:g} s (pool limit of this worker)"
            raise LlmError(LlmFailure(text, Code.TRANSPORT)) from None
        self._in_use += 1

    def lend(self) -> httpx.AsyncClient:
        """Return the client for one exchange.

        With HTTP/2 each exchange has a connection of its own: httpcore sends no RST_STREAM (seen
        with 1.0.9), so that a provider stops only when the connection closes, and that must not be
        the one of other calls.
        """
        if self._client is None:
            raise AssertionError("the client is used before open()")
        if not self._options.http2:
            return self._client
        return self._spare.pop() if self._spare else _new_client(self._options, self._tls)

    async def take_back(self, client: httpx.AsyncClient, *, is_clean: bool) -> None:
        """Take back what `lend` gave.

        Args:
            client: that was lent.
            is_clean: its exchange was read to the end.
        """
        if client is self._client:
            return
        if is_clean and self._client is not None:
            self._spare.append(client)
        else:
            await client.aclose()

    def return_slot(self) -> None:
        """Give back the slot of an exchange that has ended."""
        self._in_use -= 1
        self._slots.release()

    def own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that must end even if the call that needs it is gone; `close` awaits it."""
        task = asyncio.get_running_loop().create_task(work)
        self._owners.add(task)
        task.add_done_callback(self._owners.discard)
        return task

    def stream(
        self,
        client: httpx.AsyncClient,
        request: HttpRequest,
        limits: StreamLimits,
        began: asyncio.Event,
    ) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        """Return httpx's own context of a streamed request.

        Args:
            client: from `lend`.
            request: to send.
            limits: for the connection.
            began: is set when the transport may be cancelled without losing a connection.
        """
        # aiohttp's `pool` limit also covers what its `connect` one leaves out: names and TLS.
        timeout = httpx.Timeout(None, connect=limits.connect_s, pool=limits.connect_s)
        return client.stream(
            request.method,
            request.url,
            headers=request.headers,
            content=request.content,
            timeout=timeout,
            extensions=self._extensions(began),
        )

    def _extensions(self, began: asyncio.Event) -> dict[str, Any] | None:
        """Have httpcore tell when it is safe to cancel.

        Cancelled between choosing a connection, connecting it and sending on it, its pool keeps the
        unused connection for ever (seen with httpcore 1.0.9). aiohttp has no such moment.
        """
        if self._options.transport == "aiohttp" and not self._options.http2:
            began.set()
            return None

        async def trace(name: str, info: Mapping[str, object]) -> None:
            del info
            if name == "connection.start_tls.started":
                return  # cancelled in it, the socket stays open until it is collected
            if name.endswith(".started"):
                began.set()
            elif name.startswith("connection.") and name.endswith(".complete"):
                began.clear()

        return {"trace": trace}


def _certificates(options: ClientOptions) -> ssl.SSLContext | None:
    """Read the certificates that several clients share."""
    return httpx.create_ssl_context(trust_env=options.trust_env) if options.http2 else None


def _new_client(options: ClientOptions, tls: ssl.SSLContext | None) -> httpx.AsyncClient:
    headers = {**attribution_headers(), "accept-encoding": "identity"}
    if not options.keep_alive:
        headers["connection"] = "close"
    settings: dict[str, Any] = {  # httpx's own parameter types differ per parameter
        "headers": headers,
        "limits": httpx.Limits(
            max_connections=options.max_connections,
            max_keepalive_connections=options.max_connections,
            # Zero: aiohttp keeps a connection that the server has not asked to close.
            keepalive_expiry=_KEPT_S if options.keep_alive else 0.0,
        ),
        "trust_env": options.trust_env,
        "follow_redirects": False,
        "event_hooks": {"request": [_attribute]},
    }
    if options.transport == "httpx" or options.http2:
        verify = True if tls is None else tls
        return httpx.AsyncClient(http2=options.http2, verify=verify, **settings)
    return HttpxAiohttpClient(**settings)


async def _attribute(request: httpx.Request) -> None:
    """Put the attribution on a request, whatever headers it was given."""
    for name, value in attribution_headers().items():
        request.headers[name] = value


class _Exchange:
    """One request and its response, owned by a task from the send to the close."""

    def __init__(self, client: HttpClient, request: HttpRequest, limits: StreamLimits) -> None:
        self.connect_s = limits.connect_s
        self.head: asyncio.Future[httpx.Response] = asyncio.get_running_loop().create_future()
        self.body: AsyncIterator[bytes] | None = None
        self._client = client
        self._began = asyncio.Event()
        self._closing = asyncio.Event()
        self._has_head = False
        self._is_complete = False
        self._task = client.own(self._run(request, limits))

    async def _run(self, request: HttpRequest, limits: StreamLimits) -> None:
        head = self.head
        client = self._client.lend()
        is_clean = False
        try:
            async with self._client.stream(client, request, limits, self._began) as response:
                self._has_head = True
                if not head.done():
                    head.set_result(response)
                await self._closing.wait()
                if self._is_complete and self.body is not None:
                    is_clean = await _drain(self.body)
        except Exception as exc:  # noqa: BLE001 - every failure belongs to the caller
            if not head.done():
                head.set_exception(exc)
                head.exception()  # seen, even if the caller has gone
        finally:
            head.cancel()
            try:
                await self._client.take_back(client, is_clean=is_clean)
            finally:
                self._client.return_slot()

    async def close(self, *, is_complete: bool) -> None:
        """Close the connection, or give it back if the body is complete; idempotent."""
        self._is_complete = is_complete
        self._closing.set()
        if self._task.done() or is_complete:  # its end comes in the background
            return
        # A second cancellation stops the wait here, not the close itself.
        await asyncio.wait([self._task if self._has_head else self._client.own(self._abort())])

    async def _abort(self) -> None:
        """Cancel the request before its answer has begun."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEGIN_S):
                await self._began.wait()
        self._task.cancel()
        await asyncio.wait([self._task])


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

    def __init__(self, exchange: _Exchange, clocks: StreamClocks, watchdog: Watchdog) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._exchange = exchange
        self._clocks = clocks
        self._watchdog = watchdog
        self._body: AsyncIterator[bytes] | None = None
        self._loop = asyncio.get_running_loop()

    async def receive_head(self) -> None:
        """Wait for status and headers.

        Raises:
            LlmError: the request failed or a limit passed.
        """
        response = await self._within(self._exchange.head, is_head=True)
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        note_response(self.headers)
        encoding = self.headers.get("content-encoding", "").strip().lower()
        if encoding not in _DECODABLE:
            text = f"the provider compressed its answer with {encoding!r}, which is not supported"
            raise LlmError(LlmFailure(text, Code.MALFORMED_RESPONSE))
        is_plain = encoding in {"", "identity"}
        # Without decompression the transport's own iterator does, and costs two hops less.
        stream = cast("AsyncIterable[bytes]", response.stream)
        self._exchange.body = self._body = aiter(stream) if is_plain else response.aiter_bytes()

    async def read(self) -> bytes:
        """Return the next bytes of the body, `b""` at its end.

        Raises:
            LlmError: `TIMEOUT` with the name of the limit, `TRANSPORT`, or `MALFORMED_RESPONSE` for
                a body that can't be decompressed.
        """
        if self._body is None:
            raise AssertionError("the body is read before the head")
        return await self._within(anext(self._body, b""), is_head=False)

    async def read_within(self, limit_s: float) -> bytes | None:
        """Read like `read`, but return `None` if nothing came for `limit_s` seconds."""
        try:
            async with asyncio.timeout(limit_s):
                return await self.read()
        except TimeoutError:
            return None

    async def read_all(self, limit_bytes: int, first: bytes = b"") -> tuple[bytes, bool]:
        """Return the rest of the body and whether it is complete, `limit_bytes` at most."""
        parts, size = [first], len(first)
        while data := await self.read():
            parts.append(data)
            size += len(data)
            if size > limit_bytes:
                return b"".join(parts)[:limit_bytes], False
        return b"".join(parts), True

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

    async def _within(self, wait: Awaitable[_T], *, is_head: bool) -> _T:
        """Await one thing from the provider, bounded by the clocks.

        The watchdog cancels this task when a limit passes. If the caller cancelled it too, that
        wins: the call was aborted, not timed out.
        """
        clocks, watchdog, loop = self._clocks, self._watchdog, self._loop
        has_bytes = False
        watchdog.arm(clocks.arm(loop.time()))
        try:
            result = await wait
            has_bytes = not is_head
        except asyncio.CancelledError:
            if watchdog.took_effect():
                raise LlmError(_limit_passed(clocks)) from None
            raise
        except Exception as exc:  # of many types: httpx-aiohttp passes some of aiohttp's on
            raise LlmError(transport_failure(exc, self._exchange.connect_s)) from exc
        finally:
            watchdog.disarm()
            clocks.disarm(loop.time(), has_bytes=has_bytes)
        return result


def _limit_passed(clocks: StreamClocks) -> LlmFailure:
    text = f"the provider was silent: {clocks.limit} limit of {clocks.limit_s:g} s passed"
    return LlmFailure(text, Code.TIMEOUT)


def transport_failure(exc: Exception, connect_s: float) -> LlmFailure:
    """Describe what went wrong between this worker and the provider; no URL, no header.

    Args:
        exc: an exception of httpx, or of the socket under it.
        connect_s: the connect limit, for its message.
    """
    # httpx-aiohttp reports a connection that broke as ConnectTimeout, so the cause decides.
    cause = exc.__cause__
    is_timeout = not isinstance(cause, aiohttp.ClientError) or isinstance(cause, TimeoutError)
    if isinstance(exc, httpx.ConnectTimeout) and is_timeout:
        text = f"no connection to the provider: connect limit of {connect_s:g} s passed"
        return LlmFailure(text, Code.TIMEOUT)
    if isinstance(exc, httpx.PoolTimeout):
        return LlmFailure("no free connection in this worker", Code.TRANSPORT)
    if isinstance(exc, httpx.TimeoutException) and is_timeout:
        return LlmFailure("the connection to the provider timed out", Code.TIMEOUT)
    if isinstance(exc, httpx.DecodingError):
        return LlmFailure("the answer could not be decompressed", Code.MALFORMED_RESPONSE)
    if isinstance(exc, httpx.UnsupportedProtocol | httpx.InvalidURL | httpx.LocalProtocolError):
        return LlmFailure(f"the request can't be sent: {exc}", Code.INVALID_REQUEST)
    if isinstance(exc, ValueError) and not isinstance(exc, OSError):
        return LlmFailure(f"the request can't be sent: {exc}", Code.INVALID_REQUEST)
    # aiohttp's own text of an answer that is no HTTP holds the URL.
    is_answer = isinstance(exc, aiohttp.ClientResponseError)
    kind, said = type(exc).__name__, " ".join((exc.message if is_answer else str(exc)).split())
    return LlmFailure(
        f"the connection to the provider failed: {said or kind} ({kind})", Code.TRANSPORT
    )
