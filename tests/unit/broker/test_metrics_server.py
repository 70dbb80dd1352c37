"""The two pages over HTTP, on real sockets: what is answered, and what no reader can break."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from typing import cast
from urllib.parse import urlsplit

import pytest
from trunkline_broker.measured import http_connection
from trunkline_broker.measured.http_connection import MAX_REQUEST_BYTES
from trunkline_broker.measured.metrics import Page, Snapshot
from trunkline_broker.measured.metrics_server import MAX_CONNECTIONS, MetricsServer

from tests.support.edges import KnownEdges
from tests.support.processes import open_files
from tests.support.timing import SLOW, until_async


class FakeSnapshot:
    """Renders what it was asked for; a page of `size` bytes more."""

    def __init__(self, size: int = 0) -> None:
        self._size = size

    def page(self, accept: str) -> Page:
        return Page("text/x", f"accept={accept}".encode() + b"x" * self._size)


class Served:
    """A server that listens on loopback, with what its edge was told."""

    def __init__(self, take: Callable[[], object] | None) -> None:
        self.edges = KnownEdges()
        wanted = None if take is None else cast("Callable[[], Snapshot]", take)
        self.server = MetricsServer(wanted, self.edges.of("metrics"))
        self.address = ("127.0.0.1", 0)

    async def start(self) -> None:
        host, _, port = (await self.server.start("127.0.0.1:0")).rpartition(":")
        self.address = (host, int(port))

    async def ask(self, sent: bytes) -> tuple[str, bytes]:
        """Return status line and body; two empty texts if nothing comes."""
        async with asyncio.timeout(10 * SLOW):
            reader, writer = await asyncio.open_connection(*self.address)
            try:
                writer.write(sent)
                await writer.drain()
                answer = await reader.read()
            except OSError:
                answer = b""
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        head, _, body = answer.partition(b"\r\n\r\n")
        return head.decode("latin-1").split("\r\n")[0], body

    async def get(self, request: str) -> tuple[str, bytes]:
        return await self.ask(f"{request}\r\n\r\n".encode("latin-1"))

    async def is_well(self) -> bool:
        """Whether it answers both pages."""
        pages = [await self.get(f"GET {path} HTTP/1.1") for path in ("/healthz", "/metrics")]
        return [status for status, _ in pages] == ["HTTP/1.1 200 OK"] * 2


@contextlib.asynccontextmanager
async def served(take: Callable[[], object] | None = FakeSnapshot) -> AsyncIterator[Served]:
    made = Served(take)
    await made.start()
    try:
        yield made
    finally:
        made.server.close()


@pytest.mark.parametrize("target", ["/metrics", "/metrics?name=x"])
async def test_the_page_is_rendered_as_the_reader_accepts_it(target: str) -> None:
    async with served() as page:
        request = f"GET {target} HTTP/1.1\r\nHost: x\r\nAccept:  text/plain "
        assert await page.get(request) == ("HTTP/1.1 200 OK", b"accept=text/plain")
        assert (await page.get("GET /metrics HTTP/1.1"))[1] == b"accept="


async def test_the_health_page_looks_at_nothing() -> None:
    """It is answered where the snapshot fails, and where there are no metrics at all."""

    def broken() -> object:
        raise AssertionError("the health page must not look at this")

    for take in (broken, None):
        async with served(take) as page:
            assert await page.get("GET /healthz HTTP/1.1") == ("HTTP/1.1 200 OK", b"ok\n")
            assert await page.get("HEAD /healthz HTTP/1.1") == ("HTTP/1.1 200 OK", b"")
            assert not page.edges.counters


async def test_head_has_the_length_and_no_body() -> None:
    async with served() as page:
        reader, writer = await asyncio.open_connection(*page.address)
        writer.write(b"HEAD /metrics HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        assert b"Content-Length: 7\r\n" in answer
        assert answer.endswith(b"\r\n\r\n")
        writer.close()


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("POST /metrics HTTP/1.1", "405 Method Not Allowed"),
        ("GET / HTTP/1.1", "404 Not Found"),
        ("GET /metrics/x HTTP/1.1", "404 Not Found"),
        ("GET /healthz/ HTTP/1.1", "404 Not Found"),
        ("nonsense", "405 Method Not Allowed"),
        ("", "405 Method Not Allowed"),
        ("GET", "404 Not Found"),
        ("GET /metric\xff HTTP/1.1", "404 Not Found"),
        ("GET /metrics HTTP/1.1\r\nx: " + "y" * MAX_REQUEST_BYTES, "431 Request Header Fields"),
    ],
)
async def test_everything_else_is_refused(request_line: str, status: str) -> None:
    async with served() as page:
        assert (await page.get(request_line))[0].startswith(f"HTTP/1.1 {status}")
        assert await page.is_well()


@pytest.mark.parametrize("sent", [b"", b"\0" * 100, b"GET /metrics HTTP/1.1\r\n"])
async def test_half_a_request_is_closed_in_time(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_connection, "TIMEOUT_S", 0.05)
    async with served() as page:
        assert await page.ask(sent) == ("", b"")
        monkeypatch.setattr(http_connection, "TIMEOUT_S", 5.0 * SLOW)
        assert await page.is_well()


async def test_a_reader_that_takes_nothing_is_closed_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its page is larger than what the kernel keeps for it."""
    async with served(lambda: FakeSnapshot(64 * 1024 * 1024)) as page:
        stuck = socket.create_connection(page.address)
        await until_async(lambda: page.server.open_count() == 1)
        monkeypatch.setattr(http_connection, "TIMEOUT_S", 0.05)
        stuck.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        await until_async(lambda: page.server.open_count() == 0, what="it is kept for ever")
        stuck.close()


async def test_pipelined_requests_do_not_cut_the_first_answer() -> None:
    """One is answered; closing over unread bytes would reset the connection under the answer."""
    async with served(lambda: FakeSnapshot(1024 * 1024)) as page:
        request = b"GET /metrics HTTP/1.1\r\n\r\n"
        status, body = await page.ask(request * 300)
        assert (status, len(body)) == ("HTTP/1.1 200 OK", 1024 * 1024 + 7)


@pytest.mark.parametrize("error", [ValueError("odd"), MemoryError(), RecursionError("deep")])
@pytest.mark.parametrize("place", ["take", "page"])
async def test_a_page_that_cannot_be_made_is_answered_counted_and_over(
    place: str, error: Exception
) -> None:
    """The next one is served."""
    is_broken = True

    class Snapshots(FakeSnapshot):
        def __init__(self) -> None:
            super().__init__()
            if is_broken and place == "take":
                raise error

        def page(self, accept: str) -> Page:
            if is_broken:
                raise error
            return super().page(accept)

    async with served(Snapshots) as page:
        assert (await page.get("GET /metrics HTTP/1.1"))[0] == "HTTP/1.1 500 Internal Server Error"
        assert page.edges.counters == {"service_failed.metrics": 1}
        is_broken = False
        assert await page.is_well()


async def test_resets_at_any_moment_end_nothing() -> None:
    """In the handshake, in the request, before the page, and while it is sent."""
    async with served(lambda: FakeSnapshot(4 * 1024 * 1024)) as page:
        loop = asyncio.get_running_loop()
        errors: list[object] = []
        loop.set_exception_handler(lambda _, context: errors.append(context))
        for at in range(60):
            client = socket.create_connection(page.address)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n"[: at * 2])
            for _ in range(at % 7):
                await asyncio.sleep(0.002)
            client.close()
        assert await page.is_well()
        await until_async(lambda: page.server.open_count() == 0)
        assert errors == []
        assert not page.edges.counters


async def test_a_thousand_silent_connections_keep_nobody_out() -> None:
    """Each makes room for the next; they hold no more descriptors than the bound."""
    async with served() as page:
        before = open_files(os.getpid())
        silent: list[socket.socket] = []

        def connect() -> None:
            silent.extend(socket.create_connection(page.address) for _ in range(1000))

        try:
            await asyncio.to_thread(connect)
            assert await page.is_well()
            assert page.server.open_count() <= MAX_CONNECTIONS
            held = open_files(os.getpid()) - before - len(silent)
            assert held <= MAX_CONNECTIONS + 4
        finally:
            for each in silent:
                each.close()


async def test_requests_that_wait_share_one_snapshot() -> None:
    """A flood of readers costs the loop no more than one snapshot at a time."""
    taken = 0
    rendering = threading.Event()

    class Slow(FakeSnapshot):
        def page(self, accept: str) -> Page:
            rendering.wait(5 * SLOW)
            return super().page(accept)

    def take() -> object:
        nonlocal taken
        taken += 1
        return Slow()

    async with served(take) as page:
        asks = [asyncio.ensure_future(page.get("GET /metrics HTTP/1.1")) for _ in range(8)]
        await until_async(lambda: page.server.open_count() == 8)
        rendering.set()
        answers = await asyncio.gather(*asks)
        assert {status for status, _ in answers} == {"HTTP/1.1 200 OK"}
        assert taken <= 3


async def test_readers_that_wait_for_a_page_keep_no_probe_out() -> None:
    """However many they are: a health check is answered while a page takes its time."""
    rendering = threading.Event()

    class Slow(FakeSnapshot):
        def page(self, accept: str) -> Page:
            rendering.wait(20 * SLOW)
            return super().page(accept)

    async with served(Slow) as page:
        request = b"GET /metrics HTTP/1.1\r\n\r\n"
        waiting = [socket.create_connection(page.address) for _ in range(MAX_CONNECTIONS)]
        for each in waiting:
            each.sendall(request)
        await until_async(lambda: page.server.open_count() == MAX_CONNECTIONS)
        try:
            for _ in range(5):
                assert await page.get("GET /healthz HTTP/1.1") == ("HTTP/1.1 200 OK", b"ok\n")
        finally:
            rendering.set()
            for each in waiting:
                each.close()
        assert await page.is_well()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_the_address_in_use_can_be_put_into_a_url(host: str) -> None:
    server = Served(FakeSnapshot).server
    try:
        address = await server.start(f"{host}:0")
    except OSError:
        pytest.skip(f"this machine has no {host}")
    parts = urlsplit(f"http://{address}/metrics")
    assert parts.hostname == host.strip("[]")
    assert parts.port
    server.close()


async def test_a_server_that_never_listened_can_be_closed() -> None:
    Served(FakeSnapshot).server.close()


async def test_a_taken_address_is_an_error_of_the_system() -> None:
    async with served() as page:
        with pytest.raises(OSError, match="in use"):
            await Served(FakeSnapshot).server.start("{}:{}".format(*page.address))
