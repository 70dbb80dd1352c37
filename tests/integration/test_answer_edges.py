"""The edges of an answer: early refusals, left-over bytes, idle connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from trunkline_protocol.chunks import TextDelta
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.chat_completions.adapter import ChatCompletionsAdapter

from tests.field.scenarios import read
from tests.support.calls import a_request, fast_options
from tests.support.certificates import a_certificate, has_openssl
from tests.support.stubborn import Peer, StubbornServer, an_answer
from tests.support.timing import until_async

pytestmark = pytest.mark.integration
transports = pytest.mark.parametrize("transport", ["aiohttp", "httpx"])

GOOD = an_answer(b'{"choices":[{"delta":{"content":"Hi"},"finish_reason":"stop"}]}', b"[DONE]")
REFUSAL = b'{"error":{"message":"prompt is too long: 9 tokens > 8 maximum","code":400}}'
EARLY = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%s" % (len(REFUSAL), REFUSAL)
)


@contextlib.asynccontextmanager
async def adapter(
    url: str, transport: str, **changes: object
) -> AsyncIterator[ChatCompletionsAdapter]:
    options = fast_options(url, transport=transport, firstByteTimeoutMs=20_000, **changes)
    made = ChatCompletionsAdapter.create(AdapterContext(name="test", options=options))
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@transports
@pytest.mark.parametrize("then", ["closes", "goes on reading", "stops reading"])
async def test_the_word_of_a_provider_wins_over_a_write_error(transport: str, then: str) -> None:
    """It refuses a request of which it has read the beginning alone."""

    def serve(peer: Peer, stopped: threading.Event) -> None:
        peer.read()
        peer.sock.sendall(EARLY)
        if then == "closes":
            time.sleep(0.05)
            peer.sock.close()
        elif then == "stops reading":
            peer.wait_for_end(stopped)
        else:
            while peer.read():
                pass

    with StubbornServer(serve) as server:
        async with adapter(server.url, transport) as made:
            _, failure = await read(made, a_request("x" * 8_000_000))
    assert failure is not None
    assert (failure.code, failure.status) == ("CONTEXT_WINDOW_EXCEEDED", 400)


@transports
@pytest.mark.parametrize("is_late", [False, True])
async def test_bytes_behind_an_answer_are_read_as_no_other_one(
    transport: str, *, is_late: bool
) -> None:
    """Their connection is closed, whether they come with the answer or while it idles."""
    false = an_answer(b'{"choices":[{"delta":{"content":"FALSE"},"finish_reason":"stop"}]}')
    is_read, is_sent = threading.Event(), threading.Event()

    def serve(peer: Peer, stopped: threading.Event) -> None:
        del stopped
        while peer.read_request():
            peer.sock.sendall(GOOD if is_late else GOOD + false)
            if is_late:
                is_read.wait(30)
                is_read.clear()
                peer.sock.sendall(false)  # on loopback it is there when this returns
            is_sent.set()

    with StubbornServer(serve) as server:
        async with adapter(server.url, transport) as made:
            for _ in range(5):
                chunks, failure = await read(made)
                assert failure is None
                assert [each.text for each in chunks if isinstance(each, TextDelta)] == ["Hi"]
                await until_async(lambda: made.connections_in_use == 0)
                is_read.set()
                assert await asyncio.to_thread(is_sent.wait, 30)
                is_sent.clear()
        assert len(server.peers) == 5


@transports
@pytest.mark.parametrize("closes_after_s", [0.0, 0.01, 1.0])
async def test_servers_that_close_idle_connections_fail_no_call(
    transport: str, closes_after_s: float
) -> None:
    """Whatever they close after, and without a word about it."""

    def serve(peer: Peer, stopped: threading.Event) -> None:
        del stopped
        peer.sock.settimeout(60)
        while peer.read_request():
            peer.sock.sendall(GOOD)
            peer.sock.settimeout(closes_after_s or 0.000001)
        peer.sock.close()

    with StubbornServer(serve) as server:
        async with adapter(server.url, transport) as made:
            failures = []
            for number in range(40):
                _, failure = await read(made)
                failures.append(failure)
                await asyncio.sleep(0.001 * (number % 20))
    assert [each for each in failures if each is not None] == []


@transports
async def test_a_certificate_that_is_not_trusted_is_said_once(
    transport: str, tmp_path: Path
) -> None:
    """Trying again changes nothing, and the failure names what does."""
    if not has_openssl():
        pytest.skip("openssl makes the certificate, and is not here")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*a_certificate(tmp_path))
    with StubbornServer(lambda peer, _: None, tls) as server:
        async with adapter(server.url, transport) as made:
            _, failure = await read(made)
    assert failure is not None
    assert failure.code == "INVALID_ADAPTER"
    assert "SSL_CERT_FILE" in failure.message
