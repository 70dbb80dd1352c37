"""A loop that stands still in the middle of a wait changes no answer: what came is read first."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Final

import pytest
from trunkline_protocol.chunks import Finish, TextDelta
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.chat_completions.adapter import ChatCompletionsAdapter

from tests.field.scenarios import read
from tests.support.calls import DONE_EVENT, fast_options, text_event
from tests.support.stubborn import Peer, StubbornServer
from tests.support.timing import until_async

pytestmark = pytest.mark.integration
transports = pytest.mark.parametrize("transport", ["aiohttp", "httpx"])

STILL_S: Final = 0.5  # for which the loop stands still, with the bytes in the socket
LIMIT_MS: Final = 250  # of each wait in turn, below it
LONG_MS: Final = 60_000
LIMITS: Final = (
    "connectTimeoutMs",
    "firstByteTimeoutMs",
    "streamIdleTimeoutMs",
    "progressTimeoutMs",
    "totalTimeoutMs",
    "finishGraceMs",
)
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    """Return a chunk of a body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


USAGE: Final = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":7}}\n\n'
PARTS: Final = {
    "each in its turn": (
        HEAD,
        chunk(text_event("Hel")),
        chunk(text_event("lo!")),
        chunk(text_event("", "stop")),
        chunk(USAGE),
        chunk(DONE_EVENT) + b"0\r\n\r\n",
    ),
    "a finish reason in every one": (
        HEAD,
        chunk(text_event("Hel", "stop")),
        chunk(text_event("lo", "stop")),
        chunk(text_event("!", "stop") + USAGE),
        chunk(DONE_EVENT) + b"0\r\n\r\n",
    ),
}


def stepping(parts: tuple[bytes, ...], steps: list[threading.Event]) -> Any:
    """Return a provider that sends each part when it is told to."""

    def serve(peer: Peer, stopped: threading.Event) -> None:
        if not peer.read_request():
            return
        for part, step in zip(parts, steps, strict=True):
            while not step.wait(0.02):
                if stopped.is_set():
                    return
            peer.sock.sendall(part)

    return serve


async def stand_still_before_each(steps: list[threading.Event], peers: list[Peer]) -> None:
    """Tell the provider to go on, and hold the loop until long after its bytes have come."""
    await until_async(lambda: bool(peers) and peers[-1].received > 0)
    for step in steps:
        await asyncio.sleep(0.03)  # in the middle of the wait for the next part
        step.set()
        time.sleep(STILL_S)  # noqa: ASYNC251 - the loop is to stand still


@transports
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("kind", PARTS)
async def test_a_late_loop_changes_no_answer(kind: str, limit: str, transport: str) -> None:
    """Whichever limit it is longer than."""
    parts = PARTS[kind]
    steps = [threading.Event() for _ in parts]
    given = {**dict.fromkeys(LIMITS, LONG_MS), limit: LIMIT_MS}
    if limit == "totalTimeoutMs":  # of all waits together, of which there are six
        given[limit] = LIMIT_MS * len(parts)
    with StubbornServer(stepping(parts, steps)) as server:
        options = fast_options(server.url, transport=transport, **given)
        made = ChatCompletionsAdapter.create(AdapterContext(name="test", options=options))
        await made.open()
        still = asyncio.ensure_future(stand_still_before_each(steps, server.peers))
        try:
            async with asyncio.timeout(60):
                chunks, failure = await read(made)
        finally:
            still.cancel()
            await asyncio.wait([still])
            await made.close()
    assert failure is None, failure
    assert "".join(each.text for each in chunks if isinstance(each, TextDelta)) == "Hello!"
    assert isinstance(chunks[-1], Finish)
    assert chunks[-1].to_dict()["reason"] == {"kind": "stop"}


@transports
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_cut_behind_a_shared_finish_reason_is_a_failure(
    count: int, transport: str, *, is_late: bool
) -> None:
    """Some servers say `stop` in every event, so one with content proves no end."""
    parts = PARTS["a finish reason in every one"][: 1 + count]

    def serve(peer: Peer, stopped: threading.Event) -> None:
        del stopped
        if peer.read_request():
            for part in parts:
                peer.sock.sendall(part)
                time.sleep(0.05)
            peer.sock.close()  # in the middle of a chunked body

    with StubbornServer(serve) as server:
        options = fast_options(server.url, transport=transport)
        made = ChatCompletionsAdapter.create(AdapterContext(name="test", options=options))
        await made.open()
        try:
            reading = asyncio.ensure_future(read(made))
            if is_late:
                await asyncio.sleep(0.02)
                time.sleep(2 * STILL_S)  # noqa: ASYNC251
            async with asyncio.timeout(60):
                _, failure = await reading
        finally:
            await made.close()
    assert failure is not None
    assert failure.code in {"STREAM_CLOSED", "TRANSPORT"}
