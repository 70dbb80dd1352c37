"""A provider whose answer is nearly all head, or whose head never ends: its own call ends soon."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.chat_completions.adapter import ChatCompletionsAdapter

from tests.field.scenarios import read
from tests.integration.test_floods import judge, paced
from tests.support.calls import fast_options
from tests.support.stubborn import Peer, StubbornServer
from tests.support.timing import SLOW

pytestmark = pytest.mark.integration
transports = pytest.mark.parametrize("transport", ["aiohttp", "httpx"])

KIB = 1024
SENT_MAX = 32 * KIB * KIB  # by the provider, sockets included, until the call has ended
LONG_MS = 60_000  # of the limits on silence, which do not help against a provider that talks
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"

FLOODS = {
    "one header": (HEAD + b"x: ", b"y" * (64 * KIB)),
    "headers": (HEAD, b"x: y\r\n" * (10 * KIB)),
    "status line": (b"HTTP/1.1 200 ", b"y" * (64 * KIB)),
    "empty lines": (b"", b"\r\n" * (32 * KIB)),
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2_500),
    "103 Early Hints": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 2_000),
    "extension of a chunk": (CHUNKED + b"1;", b"x" * (64 * KIB)),
    "extensions of chunks": (CHUNKED, (b"1;" + b"x" * 4_000 + b"\r\n:\r\n") * 16),
    "size of a chunk": (CHUNKED, b"0" * (64 * KIB)),
    "trailers": (CHUNKED + b"0\r\n", b"x: y\r\n" * (10 * KIB)),
}


def repeating(head: bytes, piece: bytes, sent: list[int]) -> Any:
    """Return a provider that sends a head, and then a piece until its client has had enough."""

    def serve(peer: Peer, stopped: threading.Event) -> None:
        if not peer.read_request():
            return
        peer.sock.sendall(head)
        with contextlib.suppress(OSError):
            while not stopped.is_set():
                peer.sock.sendall(piece)
                sent[0] += len(piece)

    return serve


def adapter(url: str, transport: str, **changes: int) -> ChatCompletionsAdapter:
    options = fast_options(url, transport=transport, **changes)
    return ChatCompletionsAdapter.create(AdapterContext(name="test", options=options))


@transports
@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_around_the_body_ends_its_own_call(kind: str, transport: str) -> None:
    """The call ends by what was sent, and the loop stays free meanwhile."""
    sent = [0]
    with StubbornServer(repeating(*FLOODS[kind], sent)) as server:
        limits = ("firstByteTimeoutMs", "streamIdleTimeoutMs", "progressTimeoutMs")
        made = adapter(server.url, transport, **dict.fromkeys(limits, LONG_MS))
        await made.open()
        try:
            async with paced() as worst, asyncio.timeout(20 * SLOW):
                _, failure = await read(made)
        finally:
            await made.close()
    assert failure is not None
    assert failure.code in {"MALFORMED_RESPONSE", "TRANSPORT"}, failure
    assert sent[0] < SENT_MAX
    assert worst[0] < SLOW, worst


@transports
@pytest.mark.parametrize(
    "start", [b"", HEAD, CHUNKED + b"0\r\n"], ids=["status", "head", "trailer"]
)
async def test_a_head_that_drips_ends_at_its_limit(start: bytes, transport: str) -> None:
    """Bytes of a head are no bytes of a body: they restart no limit."""

    def serve(peer: Peer, stopped: threading.Event) -> None:
        if not peer.read_request():
            return
        peer.sock.sendall(start)
        for byte in b"HTTP/1.1 200 OK\r\n" if not start else b"x: y\r\n" * KIB:
            if stopped.wait(0.1):
                return
            peer.sock.sendall(bytes([byte]))
        stopped.wait(60)

    with StubbornServer(serve) as server:
        made = adapter(server.url, transport)
        await made.open()
        began_s = time.monotonic()
        try:
            async with paced() as worst:
                _, failure = await read(made)
        finally:
            await made.close()
    judge(failure, worst[0])
    assert failure is not None
    assert failure.code == "TIMEOUT"
    assert time.monotonic() - began_s < 10 * SLOW


@transports
async def test_some_early_hints_are_no_flood(transport: str) -> None:
    """Servers may send heads of status 1xx before the one that counts."""
    body = b'data: {"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'

    def serve(peer: Peer, stopped: threading.Event) -> None:
        del stopped
        if peer.read_request():
            peer.sock.sendall(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 20)
            peer.sock.sendall(HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body))

    with StubbornServer(serve) as server:
        made = adapter(server.url, transport)
        await made.open()
        try:
            _, failure = await read(made)
        finally:
            await made.close()
    assert failure is None
