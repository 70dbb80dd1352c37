"""The chat-completions adapter in a worker process, called by a client through a broker."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trunkline
from trunkline_protocol.chunks import Finish

from tests.field.scenarios import SHORT
from tests.field.ways import toml
from tests.support.broker import BrokerProcess, broker_process
from tests.support.calls import a_request, fast_options, text_event, until
from tests.support.certificates import a_certificate, has_openssl
from tests.support.raw_http import Answer, RawServer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
CANARY = "canary-0123456789-abcdef"
CLOSE_S = 1.0


@dataclass
class World:
    """A broker with its pools, a client, and the providers that they reach."""

    broker: BrokerProcess
    runtime: trunkline.LlmRuntime
    server: RawServer
    proxy: RawServer
    key_file: Path

    def call(self, route: str, **fields: Any) -> trunkline.Stream:
        return self.runtime.stream(a_request(provider=route, **fields))

    async def read(self, route: str) -> tuple[str, Any]:
        """Read a call to its end; return its text and its failure."""
        async with self.call(route) as stream:
            chunks = [chunk async for chunk in stream]
        text = "".join(chunk.text for chunk in chunks if isinstance(chunk, trunkline.TextDelta))
        assert isinstance(chunks[-1], Finish)
        return text, chunks[-1].reason.failure


@contextmanager
def a_black_hole() -> Iterator[str]:
    """Yield an address where connections never come about: its backlog is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        for filler in fillers:
            filler.close()


def _pool(name: str, options: dict[str, Any], env: tuple[str, ...] = ()) -> str:
    return (
        f'[worker.{name}]\nadapter = "chat_completions"\nproviders = ["{name}"]\n'
        f"env = {toml(env)}\noptions = {toml(options)}\n"
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Start one broker for all tests of this file."""
    root = tmp_path_factory.mktemp("keys")
    key_file = root / "key"
    key_file.write_text("first-key-0001\n")
    async with RawServer(Answer(SHORT)) as server, RawServer(Answer(SHORT)) as proxy:
        with a_black_hole() as hole:
            config = "\n".join(
                (
                    _pool("one", fast_options(server.url, maxConnections=1)),
                    _pool("hole", fast_options(hole, maxConnections=1, connectTimeoutMs=600)),
                    _pool("file", fast_options(server.url, apiKeyFile=str(key_file))),
                    _pool(
                        "keyed",
                        fast_options(server.url, apiKeyEnv="KEY_UNDER_TEST", requireKey=True),
                        ("KEY_UNDER_TEST",),
                    ),
                    _pool(
                        "proxied",
                        fast_options("http://provider.invalid", trustEnv=True),
                        ("HTTP_PROXY",),
                    ),
                    _pool("keyless", fast_options(server.url, profile="deepseek")),
                )
            )
            environ = {"KEY_UNDER_TEST": CANARY, "HTTP_PROXY": proxy.url}
            async with broker_process(config, environ) as broker:
                for pool in ("one", "hole", "file", "keyed", "proxied", "keyless"):
                    await asyncio.to_thread(broker.until_ready, pool)
                async with trunkline.connect(broker.endpoint, timeout_s=10) as runtime:
                    yield World(broker, runtime, server, proxy, key_file)


@pytest.mark.parametrize("texts", [0, 1])
async def test_a_cancel_closes_the_connection_and_returns_its_slot(
    world: World, texts: int
) -> None:
    """Before the first byte and in mid-stream, cancelled twice; the next call has the slot."""
    answer = Answer(gate=asyncio.Event()) if not texts else Answer(SHORT[:1], end="open")
    number = world.server.serve(answer)
    stream = world.call("one")
    reading = asyncio.ensure_future(anext(stream))
    exchange = await world.server.exchange(number)
    if texts:
        await reading
    stream.cancel()
    stream.cancel()
    await until(exchange.closed.is_set, CLOSE_S)
    await _settled(reading)
    await stream.aclose()
    world.server.serve(Answer(SHORT))
    assert await world.read("one") == ("Hi", None)


async def test_a_cancel_during_connect_returns_the_slot(world: World) -> None:
    """The next call gets as far as the connect limit: it has the only slot."""
    stream = world.call("hole")
    reading = asyncio.ensure_future(anext(stream))
    await until(lambda: _calls_of(world, "hole") == 1)
    stream.cancel()
    await stream.aclose()
    await _settled(reading)
    _, failure = await world.read("hole")
    assert failure.code == "TIMEOUT"
    assert "connect limit" in failure.message


async def _settled(reading: asyncio.Future[Any]) -> None:
    """Wait for the end of a read that was cancelled: the finish, or the end of the iterator."""
    await asyncio.wait({reading})
    reading.exception()


def _calls_of(world: World, route: str) -> int:
    routes = {entry["provider"]: entry for entry in world.broker.status()["routes"]}
    return routes[route]["inFlight"]


async def test_a_call_that_waits_for_the_only_connection_can_be_cancelled(world: World) -> None:
    """It makes no request, and the one that has the connection goes on."""
    gate = asyncio.Event()
    number = world.server.serve(Answer(SHORT, gate=gate, gate_after=1))
    first = world.call("one")
    seen = [await anext(first), await anext(first)]
    waiting = world.call("one")
    reading = asyncio.ensure_future(anext(waiting))
    await until(lambda: _calls_of(world, "one") == 2)
    waiting.cancel()
    await waiting.aclose()
    await _settled(reading)
    await until(lambda: _calls_of(world, "one") == 1)
    gate.set()
    rest = [chunk async for chunk in first]
    assert isinstance(seen[1], trunkline.TextDelta)
    assert isinstance(rest[-1], Finish)
    assert rest[-1].reason.kind == "stop"
    assert len(world.server.exchanges) == number + 1


async def test_a_reader_that_pauses_is_no_silent_provider(world: World) -> None:
    """A pause longer than the idle limit, with the provider blocked, ends nothing."""
    pieces = [text_event("x" * 200)] * 12_000
    world.server.serve(Answer((*pieces, *SHORT[1:])))
    async with world.call("one") as stream:
        size = 0
        async for chunk in stream:
            if isinstance(chunk, trunkline.TextDelta):
                if not size:
                    await asyncio.sleep(1.2)  # the idle limit is 0.8 s
                size += len(chunk.text)
    assert stream.finish is not None
    assert (stream.finish.kind, size) == ("stop", 200 * 12_000)


async def test_a_key_is_rotated_without_a_restart(world: World) -> None:
    """The file is read for every call."""
    number = world.server.serve(Answer(SHORT))
    await world.read("file")
    world.key_file.write_text("second-key-0002")
    await world.read("file")
    keys = [exchange.headers["authorization"] for exchange in world.server.exchanges[number:]]
    assert keys == ["Bearer first-key-0001", "Bearer second-key-0002"]


@pytest.mark.parametrize(
    "answer",
    [
        Answer([f"no such key: {CANARY}".encode()], status=401),
        Answer([b'data: {"error":{"message":"bad ' + CANARY.encode() + b'"}}\n\n']),
        Answer([b"<html>" + CANARY.encode()]),
        Answer([b"data: " + CANARY.encode() + b"\n\n"]),
        Answer([b"\n" + CANARY[:9].encode() + b"... is not a key"], status=500),
    ],
)
async def test_no_text_shows_the_key(world: World, answer: Answer) -> None:
    """Neither the failure nor a log of broker or worker."""
    number = world.server.serve(answer)
    _, failure = await world.read("keyed")
    assert world.server.exchanges[number].headers["authorization"] == f"Bearer {CANARY}"
    run_dir = world.broker.run_dir
    logs = [run_dir / "stderr", *(run_dir / "workers").glob("*.log")]
    texts = [failure.message, *(path.read_text("utf-8") for path in logs)]
    assert not any(CANARY[:5] in text for text in texts)
    status = str(world.broker.status())
    assert CANARY[:5] not in status


async def test_a_missing_key_makes_no_request(world: World) -> None:
    """The failure names where the key was looked for."""
    number = world.server.serve(Answer(SHORT))
    _, failure = await world.read("keyless")
    assert failure.code == "MISSING_CREDENTIAL"
    assert "DEEPSEEK_API_KEY" in failure.message
    assert len(world.server.exchanges) == number


async def test_the_proxy_of_the_environment_is_used(world: World) -> None:
    """A worker that is given the variable and trusts it calls through the proxy."""
    number = world.proxy.serve(Answer(SHORT))
    assert await world.read("proxied") == ("Hi", None)
    assert world.proxy.exchanges[number].path == "http://provider.invalid/v1/chat/completions"


@pytest.mark.skipif(not has_openssl(), reason="openssl makes the certificate, and is not here")
@pytest.mark.parametrize("transport", ["aiohttp", "httpx"])
async def test_certificates_of_the_environment(transport: str, tmp_path: Path) -> None:
    """A private authority is trusted where SSL_CERT_FILE names it, and only there."""
    certificate, key = await asyncio.to_thread(a_certificate, tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with RawServer(Answer(SHORT), tls=context) as server:
        options = fast_options(server.url, trustEnv=True, transport=transport)
        config = _pool("trusting", options, ("SSL_CERT_FILE",)) + _pool("strange", options)
        environ = {**os.environ, "SSL_CERT_FILE": str(certificate)}
        async with broker_process(config, environ) as broker:
            for pool in ("trusting", "strange"):
                await asyncio.to_thread(broker.until_ready, pool)
            async with trunkline.connect(broker.endpoint, timeout_s=10) as runtime:
                trusting, strange = [
                    await runtime.generate(a_request(provider=route), recovery="none")
                    for route in ("trusting", "strange")
                ]
    assert (trusting.text, trusting.failure) == ("Hi", None)
    assert strange.failure is not None
    assert strange.failure.code == "INVALID_ADAPTER"  # permanent: no retry helps
    assert "certificate" in strange.failure.message.lower()
    assert "SSL_CERT_FILE" in strange.failure.message
