"""A provider that floods a worker: its own call ends, and the loop stays free for the others."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import threading
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from trunkline_protocol.failure import LlmFailure
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.chat_completions.adapter import ChatCompletionsAdapter

from tests.field.scenarios import read
from tests.support.calls import fast_options
from tests.support.stubborn import Peer, StubbornServer
from tests.support.timing import SLOW

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
WORST_GAP_S = 1.5  # of heartbeats and other streams; a worker counts as stuck after 3 s
LIMIT_S = 60.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"

TRANSPORTS: Final = ("aiohttp", "httpx")
FLOODS: Final = {
    "comments": b":\n" * MIB,
    "blank lines": b"\n" * MIB,
    "empty data": b"data:\n" * (MIB // 6),
    "carriage returns": b"\r" * MIB,
    "one line": b"data: " + b"x" * MIB,
    "many lines": b"data: x\n" * (MIB // 8),
    "empty objects": b"data: {}\n\n" * (MIB // 10),
    "values": b"data: [" + b"{}," * (MIB // 3) + b"{}]\n\n",
    "calls": b'data: {"usage":5,"choices":[{"delta":{"tool_calls":['
    + b"{}," * (5 * MIB)
    + b"{}]}}]}\n\n",
    "objects": b"data: " + b"{}" * (MIB // 2) + b"\n\n",
    "a text for a list": b'data: {"candidates":"%s","choices":"%s","message":"%s"}\n\n'
    % ((b"x" * (MIB // 3),) * 3),
}


def flooding(flood: bytes, how: str) -> Any:
    """Return a provider that repeats a flood until its client has had enough."""

    def serve(peer: Peer, stopped: threading.Event) -> None:
        if not peer.read_request():
            return
        if how == "gzip":
            packed = gzip.compress(flood * 4, 6)
            peer.sock.sendall(
                HEAD + b"content-encoding: gzip\r\nconnection: close\r\n\r\n" + packed
            )
            return
        if how == "tiny chunks":
            peer.sock.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
            piece = b"".join(b"1\r\n%c\r\n" % byte for byte in flood[: 64 * 1024])
        else:
            peer.sock.sendall(HEAD + b"connection: close\r\n\r\n")
            piece = flood
        with contextlib.suppress(OSError):
            for _ in range(4 if how == "tiny chunks" else 80):
                if stopped.is_set():
                    return
                peer.sock.sendall(piece)

    return serve


@contextlib.asynccontextmanager
async def paced() -> AsyncIterator[list[float]]:
    """Measure the longest time in which the loop ran nothing else."""
    worst = [0.0]

    async def tick() -> None:
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now_s = time.monotonic()
            worst[0], last_s = max(worst[0], now_s - last_s), now_s

    task = asyncio.ensure_future(tick())
    try:
        yield worst
    finally:
        task.cancel()


_ON_BOTH: Final = ("comments", "one line", "values")  # the rest is the same above the transports
CASES: Final = (
    *((kind, "plain", "aiohttp") for kind in FLOODS),
    *((kind, "plain", "httpx") for kind in _ON_BOTH),
    *((kind, "gzip", transport) for kind in ("blank lines", "values") for transport in TRANSPORTS),
    *((kind, "tiny chunks", transport) for kind in ("one line",) for transport in TRANSPORTS),
)


@pytest.mark.parametrize(("kind", "how", "transport"), CASES)
async def test_a_flood_ends_its_own_call(kind: str, how: str, transport: str) -> None:
    """The call ends with a failure of the answer, and nobody waits for it."""
    with StubbornServer(flooding(FLOODS[kind], how)) as server:
        options = fast_options(server.url, transport=transport)
        made = ChatCompletionsAdapter.create(AdapterContext(name="test", options=options))
        await made.open()
        try:
            async with paced() as worst, asyncio.timeout(LIMIT_S * SLOW):
                _, failure = await read(made)
        finally:
            await made.close()
    judge(failure, worst[0])


def judge(failure: LlmFailure | None, gap_s: float) -> None:
    """Look at what came of a flood."""
    assert failure is not None
    assert failure.code in {"MALFORMED_RESPONSE", "STREAM_CLOSED", "TIMEOUT", "EMPTY_RESPONSE"}
    assert gap_s < WORST_GAP_S * SLOW, gap_s
