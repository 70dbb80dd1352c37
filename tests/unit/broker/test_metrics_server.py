"""The HTTP side of the metrics, request by request; only one test opens a socket."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from trunkline_broker.measured import metrics_server
from trunkline_broker.measured.metrics import Page, Snapshot
from trunkline_broker.measured.metrics_server import MAX_REQUEST_BYTES, MetricsServer


class FakeSnapshot:
    """Renders what it was asked for."""

    def page(self, accept: str) -> Page:
        return Page("text/x", f"accept={accept}".encode())


class Transport:
    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class Writer:
    """What a connection's reader would get; `is_stuck`: it takes nothing."""

    def __init__(self, *, is_stuck: bool = False) -> None:
        self.transport = Transport()
        self.sent = b""
        self.is_closed = False
        self._is_stuck = is_stuck

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None:
        if self._is_stuck:
            await asyncio.Event().wait()

    def close(self) -> None:
        self.is_closed = True

    async def wait_closed(self) -> None:
        return


def a_server() -> MetricsServer:
    return MetricsServer(lambda: cast("Snapshot", FakeSnapshot()))


async def serve(
    server: MetricsServer, sent: bytes, writer: Writer, *, is_over: bool = True
) -> None:
    """Have the server answer a connection on which something was sent."""
    reader = asyncio.StreamReader(MAX_REQUEST_BYTES)
    reader.feed_data(sent)
    if is_over:
        reader.feed_eof()
    await server._serve(reader, cast("Any", writer))


async def answer(request: str, server: MetricsServer | None = None) -> tuple[str, bytes]:
    """Return status line and body."""
    writer = Writer()
    await serve(server or a_server(), f"{request}\r\n\r\n".encode("latin-1"), writer)
    assert writer.is_closed
    assert not writer.transport.is_aborted
    head, _, body = writer.sent.partition(b"\r\n\r\n")
    return head.decode().split("\r\n")[0], body


@pytest.mark.parametrize("target", ["/metrics", "/metrics?name=x"])
async def test_the_page_is_rendered_as_the_reader_accepts_it(target: str) -> None:
    status, body = await answer(f"GET {target} HTTP/1.1\r\nHost: x\r\nAccept:  text/plain ")
    assert (status, body) == ("HTTP/1.1 200 OK", b"accept=text/plain")
    assert (await answer("GET /metrics HTTP/1.1"))[1] == b"accept="


async def test_head_has_the_length_and_no_body() -> None:
    writer = Writer()
    await serve(a_server(), b"HEAD /metrics HTTP/1.1\r\n\r\n", writer)
    assert b"Content-Length: 7\r\n" in writer.sent
    assert writer.sent.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("POST /metrics HTTP/1.1", "405 Method Not Allowed"),
        ("GET / HTTP/1.1", "404 Not Found"),
        ("GET /metrics/x HTTP/1.1", "404 Not Found"),
        ("nonsense", "405 Method Not Allowed"),
        ("", "405 Method Not Allowed"),
        ("GET", "404 Not Found"),
        ("GET /metric\xff HTTP/1.1", "404 Not Found"),
    ],
)
async def test_everything_else_is_refused(request_line: str, status: str) -> None:
    assert (await answer(request_line))[0] == f"HTTP/1.1 {status}"


@pytest.mark.parametrize(
    "sent", [b"", b"GET /metrics HTTP/1.1\r\n", b"x" * (MAX_REQUEST_BYTES + 10)]
)
async def test_half_a_request_or_too_much_of_one_is_cut(sent: bytes) -> None:
    writer = Writer()
    await serve(a_server(), sent, writer)
    assert writer.transport.is_aborted
    assert writer.sent == b""


@pytest.mark.parametrize("is_stuck", [False, True])
async def test_who_says_or_takes_nothing_is_cut_in_time(
    monkeypatch: pytest.MonkeyPatch, is_stuck: bool
) -> None:
    monkeypatch.setattr(metrics_server, "TIMEOUT_S", 0.01)
    writer = Writer(is_stuck=is_stuck)
    sent = b"GET /metrics HTTP/1.1\r\n\r\n" if is_stuck else b"GET"
    await serve(a_server(), sent, writer, is_over=False)
    assert writer.transport.is_aborted


async def test_of_too_many_at_once_the_last_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those who come after them are served again."""
    monkeypatch.setattr(metrics_server, "MAX_CONNECTIONS", 1)
    server = a_server()
    async with asyncio.TaskGroup() as tasks:
        silent = asyncio.StreamReader()
        first = tasks.create_task(server._serve(silent, cast("Any", Writer())))
        await asyncio.sleep(0)
        assert (await answer("GET /metrics HTTP/1.1", server))[
            0
        ] == "HTTP/1.1 503 Service Unavailable"
        silent.feed_eof()
        await first
        assert (await answer("GET /metrics HTTP/1.1", server))[0] == "HTTP/1.1 200 OK"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_the_address_in_use_can_be_put_into_a_url(host: str) -> None:
    server = a_server()
    try:
        address = await server.start(f"{host}:0")
    except OSError:
        pytest.skip(f"this machine has no {host}")
    parts = urlsplit(f"http://{address}/metrics")
    assert parts.hostname == host.strip("[]")
    assert parts.port
    server.close()


async def test_a_server_that_never_listened_can_be_closed() -> None:
    a_server().close()
