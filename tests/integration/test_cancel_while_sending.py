"""A call that ends while its request is being sent: the provider is told, and nothing is held."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.chat_completions.adapter import ChatCompletionsAdapter

from tests.field.scenarios import read
from tests.support.calls import a_request, fast_options
from tests.support.certificates import a_certificate, has_openssl
from tests.support.stubborn import Peer, StubbornServer, reads_nothing, reads_slowly
from tests.support.timing import until_async

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
BODY = "x" * (30 * MIB)
KERNEL_BYTES = 12 * MIB  # what two sockets on loopback hold: tcp_wmem and tcp_rmem at most
WAYS = ["aiohttp", "httpx", "tls", "http2"]
ways = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    if not has_openssl():
        pytest.skip("openssl makes the certificate, and is not here")
    made = a_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made[0]))
    return made


def _tls(way: str, certificate: tuple[Path, Path]) -> ssl.SSLContext | None:
    if way not in {"tls", "http2"}:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if way == "http2":
        context.set_alpn_protocols(["h2"])
    return context


@asynccontextmanager
async def adapter(url: str, way: str, **changes: object) -> AsyncIterator[ChatCompletionsAdapter]:
    if way == "http2":
        pytest.importorskip("h2", reason="HTTP/2 needs the package h2")
    chosen = {"http2": True} if way == "http2" else {"transport": "httpx"} if way == "httpx" else {}
    options = fast_options(url, **{"trustEnv": True, **chosen, **changes})
    made = ChatCompletionsAdapter.create(AdapterContext(name="test", options=options))
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def freed_bytes() -> int:
    """Return the memory that is left after a collection: tracebacks hold requests in cycles."""
    gc.collect()
    return resident_bytes()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@ways
async def test_a_cancel_reaches_a_provider_that_reads_slowly(
    way: str, certificate: tuple[Path, Path]
) -> None:
    """It receives no more than the kernel held, and sees the end at once."""
    with StubbornServer(reads_slowly, _tls(way, certificate)) as server:
        async with adapter(server.url, way, firstByteTimeoutMs=60_000) as made:
            task = asyncio.ensure_future(read(made, a_request(BODY)))
            await until_async(lambda: server.peers and server.peers[0].received > 1000, 20.0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            received = server.peers[0].received
            assert made.connections_in_use == 0
            await until_async(server.peers[0].ended.is_set, 10.0)
            assert server.peers[0].received - received <= KERNEL_BYTES


@ways
@pytest.mark.parametrize("end", ["cancel", "limit"])
async def test_twenty_calls_to_a_provider_that_reads_nothing(
    way: str, end: str, certificate: tuple[Path, Path]
) -> None:
    """Their memory, descriptors and slots come back, at a cancel and at a limit."""
    calls, limit_ms = 20, 1500 if end == "limit" else 120_000
    handshake = _reads_preface if way == "http2" else reads_nothing
    with StubbornServer(handshake, _tls(way, certificate)) as server:
        async with adapter(
            server.url, way, firstByteTimeoutMs=limit_ms, maxConnections=calls
        ) as made:
            request = a_request(BODY)
            before_bytes, before_count = resident_bytes(), descriptors()
            tasks = [asyncio.ensure_future(read(made, request)) for _ in range(calls)]
            if end == "cancel":
                await until_async(lambda: len(server.peers) == calls, 60.0)
                assert made.connections_in_use == calls
                _ = [task.cancel() for task in tasks]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            if end == "limit":
                codes = {result[1].code for result in results}  # type: ignore[index,union-attr]
                assert codes == {"TIMEOUT"}
            assert made.connections_in_use == 0
            del tasks, results
            await until_async(lambda: all(peer.ended.is_set() for peer in server.peers), 10.0)
            peers = len(server.peers)
            await until_async(lambda: descriptors() <= before_count + peers + 4, 10.0)
            await until_async(lambda: freed_bytes() - before_bytes < 10 * len(BODY), 10.0)


def _reads_preface(peer: Peer, stopped: threading.Event) -> None:
    """Read the beginning alone, so that HTTP/2 gets no window for more."""
    peer.read()
    while not stopped.wait(0.02) and not peer.ended.is_set():
        peer.sock.setblocking(False)
        try:
            if not peer.sock.recv(65536):
                peer.ended.set()
        except (BlockingIOError, ssl.SSLWantReadError):
            continue
        except OSError:
            peer.ended.set()


@ways
async def test_the_slots_of_cut_calls_bound_their_sockets(
    way: str, certificate: tuple[Path, Path]
) -> None:
    """Calls that are made and cut in turn never have more sockets than slots."""
    handshake = _reads_preface if way == "http2" else reads_nothing
    with StubbornServer(handshake, _tls(way, certificate)) as server:
        async with adapter(server.url, way, firstByteTimeoutMs=60_000, maxConnections=2) as made:
            before = descriptors()
            for number in range(8):
                task = asyncio.ensure_future(read(made, a_request(BODY)))
                await until_async(lambda number=number: len(server.peers) > number, 20.0)  # type: ignore[misc]
                task.cancel()
                await asyncio.wait({task})
                ours = descriptors() - before - len(server.peers)
                assert ours <= 2, (ours, number)
