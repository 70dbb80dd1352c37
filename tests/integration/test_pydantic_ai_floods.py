"""A provider that floods an SDK: its own call ends soon, and the loop stays free for the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from typing import Any

import pytest

from tests.integration.test_floods import paced
from tests.support.event_stream import event, frame
from tests.support.library import REASON
from tests.support.library_adapter import adapter, asks, read
from tests.support.recorded import (
    ANTHROPIC,
    CONVERSE,
    GEMINI,
    GROQ,
    MISTRAL,
    RESPONSES,
    Recording,
)
from tests.support.stubborn import Peer, StubbornServer
from tests.support.timing import SLOW

pytest.importorskip("pydantic_ai", reason=REASON)
pytestmark = pytest.mark.integration

KIB = 1024
WORST_GAP_S = 1.0  # of heartbeats and other streams; a worker counts as stuck after 3 s
LIMIT_S = 10.0  # until the call has ended
CODES = {"MALFORMED_RESPONSE", "STREAM_CLOSED", "TIMEOUT", "EMPTY_RESPONSE"}


def sse(payload: Any, name: str = "") -> bytes:
    """Return one event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(payload, separators=(',', ':'))}\n\n".encode()


def typed(kind: str, **fields: Any) -> bytes:
    """Return one event that is named by its type."""
    return sse({"type": kind, **fields}, kind)


_CHAT = sse({"id": "c", "choices": [], "created": 1, "model": "m", "object": "x"})
_EMPTY = sse({"id": "c", "choices": [{"index": 0, "delta": {"content": ""}}], "model": "m"})
_DELTA = {"output_index": 0, "content_index": 0, "item_id": "i", "sequence_number": 1}
FLOODS: dict[str, tuple[Recording, bytes]] = {
    **{
        f"{each.profile}, empty objects": (each, b"data: {}\n\n")
        for each in (ANTHROPIC, GEMINI, GROQ, MISTRAL, RESPONSES)
    },
    **{f"{each.profile}, unknown types": (each, typed("x")) for each in (ANTHROPIC, RESPONSES)},
    "anthropic, pings": (ANTHROPIC, typed("ping")),
    "anthropic, empty texts": (
        ANTHROPIC,
        typed("content_block_delta", index=0, delta={"type": "text_delta", "text": ""}),
    ),
    "anthropic, stops": (ANTHROPIC, typed("content_block_stop", index=0)),
    "google, no parts": (GEMINI, sse({"candidates": [{"content": {"parts": []}}]})),
    "google, no candidates": (GEMINI, sse({"candidates": []})),
    "groq, no choices": (GROQ, _CHAT),
    "groq, empty texts": (GROQ, _EMPTY),
    "mistral, no choices": (MISTRAL, _CHAT),
    "mistral, empty texts": (MISTRAL, _EMPTY),
    "responses, in progress": (RESPONSES, typed("response.in_progress", response={})),
    "responses, empty texts": (
        RESPONSES,
        typed("response.output_text.delta", delta="", logprobs=[], **_DELTA),
    ),
    "converse, nothing": (CONVERSE, frame({":message-type": "event"}, b"{}")),
    "converse, unknown": (CONVERSE, event("x")),
    "converse, empty texts": (
        CONVERSE,
        event("contentBlockDelta", contentBlockIndex=0, delta={"text": ""}),
    ),
    "converse, stops": (CONVERSE, event("contentBlockStop", contentBlockIndex=0)),
    "converse, counts": (CONVERSE, event("metadata", usage={"inputTokens": 1})),
}
"""By name: whose SDK, and the event that is repeated."""
WHOLE = ("responses, empty texts", "converse, empty texts")
"""With the bound as it is; the others would take a minute."""


def flooding(recording: Recording, piece: bytes, sent: list[int]) -> Any:
    """Return a provider that repeats an event until its client has had enough."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {recording.content_type}\r\nconnection: close\r\n\r\n"
    flood = piece * (64 * KIB // len(piece))

    def serve(peer: Peer, stopped: threading.Event) -> None:
        if not peer.read_request():
            return
        peer.sock.sendall(head.encode() + recording.text[0])
        with contextlib.suppress(OSError):
            while not stopped.is_set():
                peer.sock.sendall(flood)
                sent[0] += len(flood)

    return serve


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_of_events_ends_its_own_call(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that carry no content have a bound, and none of them holds the loop for long."""
    if name not in WHOLE:
        monkeypatch.setattr("trunkline_workers.core.quiet.QUIET_EVENTS", 2_000)
    recording, piece = FLOODS[name]
    sent = [0]
    with StubbornServer(flooding(recording, piece, sent)) as server:
        began_s = time.monotonic()
        async with adapter(recording, server) as made, paced() as worst:
            async with asyncio.timeout(60 * SLOW):
                _, failure = await read(made, asks(recording))
            took_s = time.monotonic() - began_s
    assert failure is not None, sent
    assert failure.code in CODES, failure
    assert worst[0] < WORST_GAP_S * SLOW, worst
    assert took_s < LIMIT_S * SLOW, took_s
