"""The chat-completions adapter over HTTP/2, which is optional."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from trunkline_protocol.attribution import user_agent
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.chat_completions.adapter import ChatCompletionsAdapter

from tests.field.scenarios import SHORT, read
from tests.support.calls import a_request, fast_options, until
from tests.support.certificates import a_certificate, has_openssl

pytest.importorskip("h2", reason="HTTP/2 needs the package h2")

from tests.support.http2 import Http2Server

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not has_openssl(), reason="openssl makes the certificate, and is not here"),
]


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    made = a_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made[0]))
    return made


@asynccontextmanager
async def adapter(url: str, **changes: object) -> AsyncIterator[ChatCompletionsAdapter]:
    options = fast_options(url, **{"http2": True, "trustEnv": True, "maxConnections": 1, **changes})
    made = ChatCompletionsAdapter.create(AdapterContext(name="test", options=options))
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def test_a_connection_is_used_again(certificate: tuple[Path, Path]) -> None:
    """Two calls in turn, one connection, attribution on both."""
    async with Http2Server(SHORT, certificate) as server, adapter(server.url) as made:
        for _ in range(2):
            chunks, failure = await read(made)
            assert failure is None
            assert chunks[-1].to_dict() == {"type": "finish", "reason": {"kind": "stop"}}
        assert server.connections == 1
        assert [headers["user-agent"] for headers in server.requests] == [user_agent()] * 2


async def test_a_cancel_closes_the_connection(certificate: tuple[Path, Path]) -> None:
    """The provider sees the end at once, other calls do not, and the slot is free again."""
    async with (
        Http2Server(SHORT[:1], certificate, ends=False) as server,
        adapter(server.url, maxConnections=2) as made,
    ):
        other = made.stream(a_request())
        await anext(other)
        for _ in range(3):
            lists = made.stream(a_request())
            await anext(lists)
            assert len(server.open_connections) == 2
            await lists.aclose()
            await until(lambda: len(server.open_connections) == 1, 1.0)
        assert made.connections_in_use == 1
        await other.aclose()
        assert made.connections_in_use == 0


async def test_a_cancel_before_the_answer(certificate: tuple[Path, Path]) -> None:
    """Cancelled twice at any moment, nothing is held."""
    async with Http2Server(SHORT, certificate) as server, adapter(server.url) as made:
        for turns in range(12):
            task = asyncio.ensure_future(read(made))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            task.cancel()
            await asyncio.wait({task})
        _, failure = await read(made)
        assert failure is None
        await until(lambda: made.connections_in_use == 0, 1.0)
