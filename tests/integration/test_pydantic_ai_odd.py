"""Providers that misbehave, under the pydantic_ai adapter: each end has its code, none hangs."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from trunkline_protocol.chunks import TokenUsage
from trunkline_protocol.failure import Code

from tests.support.calls import until
from tests.support.event_stream import event
from tests.support.library import REASON
from tests.support.library_adapter import adapter, answered, asks, blocks, read, user
from tests.support.raw_http import Answer, RawServer
from tests.support.recorded import (
    ANTHROPIC,
    CONVERSE,
    GEMINI,
    MISTRAL,
    RECORDINGS,
    RESPONSES,
    Recording,
    named_events,
)

pytest.importorskip("pydantic_ai", reason=REASON)
pytestmark = pytest.mark.integration

SIX = [RECORDINGS[n] for n in RECORDINGS if n not in {"bedrock", "xai"}]  # each API once
six = pytest.mark.parametrize("recording", SIX, ids=lambda each: each.profile)


# --- bytes ------------------------------------------------------------------------------------


@six
@pytest.mark.parametrize("form", ["seven bytes a write", "gzip"])
async def test_bytes_in_any_form_are_the_same_answer(recording: Recording, form: str) -> None:
    """Events, frames and characters cut anywhere; compressed though nobody asked for it."""
    parts = list(recording.tools)
    if recording is not CONVERSE:  # whose frames have checksums
        parts = [part.replace(b"there.", "thère 🎉.".encode()) for part in parts]
    whole = b"".join(parts)
    headers = {"content-type": recording.content_type}
    if form == "gzip":
        whole = gzip.compress(whole)
        headers["content-encoding"] = "gzip"
    pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    async with (
        RawServer(Answer(parts), Answer(pieces, headers=headers)) as server,
        adapter(recording, server) as made,
    ):
        expected, _ = await read(made, asks(recording))
        assembler, failure = await read(made, asks(recording))
    assert failure is None
    texts = [each.get("text") for each in blocks(assembler)]
    assert ("Hello there." if recording is CONVERSE else "Hello thère 🎉.") in texts
    *shown, call = blocks(assembler)
    assert shown == blocks(expected)[:-1]
    assert call["arguments"] == recording.arguments
    assert assembler.usage == expected.usage


@six
async def test_a_stream_cut_in_the_middle_of_an_event(recording: Recording) -> None:
    """An orderly end of the connection makes it no other case."""
    *before, last = recording.text[: recording.begun]
    async with (
        RawServer(Answer([*before, last[: len(last) // 2]])) as server,
        adapter(recording, server) as made,
    ):
        _, failure = await read(made, asks(recording))
    assert failure is not None
    assert failure.code == Code.STREAM_CLOSED


@six
@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b"{}", b"[1]"], ids=["page", "{}", "[]"])
async def test_another_kind_of_body_is_malformed(recording: Recording, body: bytes) -> None:
    """With status 200, as gateways and captive portals answer."""
    headers = {"content-type": "text/html"}
    async with (
        RawServer(Answer((body,), headers=headers)) as server,
        adapter(recording, server) as made,
    ):
        _, failure = await read(made, asks(recording))
    assert failure is not None
    assert failure.code == Code.MALFORMED_RESPONSE
    assert body.decode() in failure.message


@pytest.mark.parametrize("recording", [ANTHROPIC, GEMINI, MISTRAL], ids=lambda each: each.profile)
async def test_keep_alives_are_no_progress(recording: Recording) -> None:
    """Comments and pings are taken without an error, and end at the progress limit."""
    ping = b'event: ping\ndata: {"type": "ping"}\n\n' if recording is ANTHROPIC else b": queued\n\n"
    answer = Answer([recording.text[0], *[ping] * 60], interval_s=0.05)
    async with (
        RawServer(answer) as server,
        adapter(recording, server, progressTimeoutMs=400) as made,
    ):
        async with asyncio.timeout(5):
            _, failure = await read(made, asks(recording))
    assert failure is not None
    assert failure.code == Code.TIMEOUT
    assert "progress" in failure.message


@six
async def test_an_event_without_an_end_is_cut_off(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the SDKs keep of one event has a bound, and nobody else waits for it."""
    # Made before the bound is changed: it has bounds of its own that follow from this one.
    importlib.import_module("trunkline_workers.adapters.pydantic_ai.exchange")
    for module in ("sse", "adapters.pydantic_ai.frames"):
        monkeypatch.setattr(f"trunkline_workers.{module}.MAX_EVENT_BYTES", 64 * 1024)
    endless = [b"data: " + b"x" * 1000 + b"\n"] * 100
    if recording is CONVERSE:
        endless = [event("contentBlockDelta", delta={"text": "x" * 100_000})]
    answer = Answer([recording.text[0], *endless], end="open")
    async with RawServer(answer) as server, adapter(recording, server) as made:
        _, failure = await read(made, asks(recording))
        await asyncio.wait_for(server.exchanges[0].closed.wait(), 1.0)
    assert failure is not None
    assert failure.code == Code.MALFORMED_RESPONSE
    assert "an event is larger" in failure.message or "a frame of" in failure.message


# --- calls and counts -------------------------------------------------------------------------


def a_claude(*events: Mapping[str, Any], output_tokens: int = 42) -> list[bytes]:
    """Return Anthropic's events around some in the middle."""
    head, *_, stopping, stop = (json.loads(e.split(b"data: ")[1]) for e in ANTHROPIC.tools)
    stopping["usage"]["output_tokens"] = output_tokens
    return named_events(head, *events, stopping, stop)


def block_events(kind: str, index: int, **fields: Any) -> dict[str, Any]:
    return {"type": f"content_block_{kind}", "index": index, **fields}


def _pieces(start: Any, piece: Any, stop: Any) -> Iterator[Any]:
    """Yield two calls that run into each other: both begin, then piece by piece in turn."""
    yield from (start(0, "a"), start(1, "b"))
    for text in ('{"n":', "1}"):
        yield from (piece(0, text), piece(1, text))
    yield from (stop(0), stop(1))


def interleaved_anthropic() -> Sequence[bytes]:
    def start(index: int, name: str) -> dict[str, Any]:
        call = {"type": "tool_use", "id": name, "name": name, "input": {}}
        return block_events("start", index, content_block=call)

    def piece(index: int, text: str) -> dict[str, Any]:
        delta = {"type": "input_json_delta", "partial_json": text}
        return block_events("delta", index, delta=delta)

    return a_claude(*_pieces(start, piece, lambda index: block_events("stop", index)))


def interleaved_converse() -> Sequence[bytes]:
    def start(index: int, name: str) -> bytes:
        call = {"toolUse": {"toolUseId": name, "name": name}}
        return event("contentBlockStart", contentBlockIndex=index, start=call)

    def piece(index: int, text: str) -> bytes:
        delta = {"toolUse": {"input": text}}
        return event("contentBlockDelta", contentBlockIndex=index, delta=delta)

    def stop(index: int) -> bytes:
        return event("contentBlockStop", contentBlockIndex=index)

    end = event("messageStop", stopReason="tool_use")
    return [event("messageStart", role="assistant"), *_pieces(start, piece, stop), end]


def interleaved_responses() -> Sequence[bytes]:
    def item(kind: str, index: int, **fields: Any) -> dict[str, Any]:
        name = "ab"[index]
        call = {"id": f"fc_{name}", "type": "function_call", "call_id": name, "name": name}
        return {
            "type": f"response.output_item.{kind}",
            "output_index": index,
            "item": {**call, **fields},
        }

    def start(index: int, _: str) -> dict[str, Any]:
        return item("added", index, status="in_progress", arguments="")

    def piece(index: int, text: str) -> dict[str, Any]:
        where = {"item_id": f"fc_{'ab'[index]}", "output_index": index, "delta": text}
        return {"type": "response.function_call_arguments.delta", **where}

    def stop(index: int) -> dict[str, Any]:
        return item("done", index, status="completed", arguments='{"n":1}')

    first, *_, last = (json.loads(e.split(b"data: ")[1]) for e in RESPONSES.text)
    whole = [first, *_pieces(start, piece, stop), last]
    return named_events(*({**each, "sequence_number": n} for n, each in enumerate(whole)))


@pytest.mark.parametrize(
    ("recording", "body"),
    [
        (ANTHROPIC, interleaved_anthropic()),
        (CONVERSE, interleaved_converse()),
        (RESPONSES, interleaved_responses()),
    ],
    ids=["anthropic", "bedrock-converse", "openai-responses"],
)
async def test_calls_that_run_into_each_other(recording: Recording, body: Sequence[bytes]) -> None:
    """No call ends, and is run, before its arguments are there."""
    async with RawServer(Answer(body)) as server, adapter(recording, server) as made:
        assembler, failure = await read(made, asks(recording))
    assert failure is None
    calls = [(each["id"], each["arguments"]) for each in blocks(assembler)]
    assert calls == [("a", '{"n":1}'), ("b", '{"n":1}')]
    assert assembler.finish.kind == "tool-calls"


HI = (
    block_events("start", 0, content_block={"type": "text", "text": ""}),
    block_events("delta", 0, delta={"type": "text_delta", "text": "Hi."}),
    block_events("stop", 0),
)


async def test_counts_that_are_nobody_s_are_left_out() -> None:
    """The answer stays good; no process has to carry a number of a hundred bits."""
    body = a_claude(*HI, output_tokens=2**100)
    async with RawServer(Answer(body)) as server, adapter(ANTHROPIC, server) as made:
        assembler, failure = await read(made, asks(ANTHROPIC))
    assert failure is None
    assert assembler.usage is None


async def test_what_was_counted_before_a_failure_is_told() -> None:
    """It was paid for."""
    answer = Answer(ANTHROPIC.text[: ANTHROPIC.begun], end="reset")
    async with RawServer(answer) as server, adapter(ANTHROPIC, server) as made:
        assembler, failure = await read(made, asks(ANTHROPIC))
    assert failure is not None
    assert failure.code == Code.TRANSPORT
    assert assembler.usage == TokenUsage(10, 1, cache_read_tokens=7, cache_write_tokens=3)


# --- what comes back --------------------------------------------------------------------------


def _nested(levels: int) -> object:
    value: object = "leaf"
    for _ in range(levels):
        value = {"a": [value]}
    return value


def _entries(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry["fields"] for entry in state["blocks"] if entry]


def _deep(state: dict[str, Any]) -> None:
    for each in (state["response"]["fields"], *_entries(state)):
        each["provider_details"] = _nested(50)


def _other_types(state: dict[str, Any]) -> None:
    state["response"]["fields"] = {"model_name": 17, "provider_url": [1], "provider_details": "x"}


def _more_fields(state: dict[str, Any]) -> None:
    state["response"]["fields"].update(parts=["x"], usage=7, timestamp="never")


def _half_characters(state: dict[str, Any]) -> None:
    for each in _entries(state):
        each.update(signature="\ud800", id="\udfff")


def _odd_details(state: dict[str, Any]) -> None:
    odd = {"raw_content": 5, "thought_signature": [1], "finish_reason": {}, "phase": 9}
    for each in _entries(state):
        each["provider_details"] = odd


@pytest.mark.parametrize(
    "recording", [ANTHROPIC, CONVERSE, GEMINI, RESPONSES], ids=lambda each: each.profile
)
@pytest.mark.parametrize(
    "spoil",
    [_deep, _other_types, _more_fields, _half_characters, _odd_details],
    ids=lambda each: each.__name__.strip("_"),
)
async def test_hostile_replay_state_fails_no_request(recording: Recording, spoil: Any) -> None:
    """Whatever was made of the state: the content goes out, in one request."""
    async with RawServer(Answer(recording.tools)) as server, adapter(recording, server) as made:
        first, _ = await read(made, asks(recording))
        message = json.loads(json.dumps(answered(recording, first)))
        spoil(message["source"]["replayState"])
        result = {"type": "tool-result", "toolCallId": blocks(first)[-1]["id"], "content": []}
        history = [user("Hello."), message, {**user(""), "content": [result]}]
        _, failure = await read(made, asks(recording, *history))
    assert failure is None
    assert len(server.exchanges) == 2
    assert b"Hello there." in server.exchanges[1].body


async def test_half_a_character_in_a_text_ends_no_conversation() -> None:
    """Models utter it, JSON can say it, no request can: it is replaced."""
    async with RawServer(Answer(ANTHROPIC.text)) as server, adapter(ANTHROPIC, server) as made:
        _, failure = await read(made, asks(ANTHROPIC, user("a\ud83c b"), system="\udfff"))
    assert failure is None
    assert json.loads(server.exchanges[0].body)["system"] == "\ufffd"


# --- cancel -----------------------------------------------------------------------------------


@pytest.fixture
def deaf_server() -> Iterator[RawServer]:
    """Yield a server whose queue of connections is full: nobody gets through to it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = [socket.socket() for _ in range(4)]
    for each in waiting:
        each.setblocking(False)
        each.connect_ex(listener.getsockname())

    class Deaf(RawServer):
        @property
        def url(self) -> str:
            return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield Deaf()
    for each in (*waiting, listener):
        each.close()


@six
async def test_a_cancel_while_connecting(recording: Recording, deaf_server: RawServer) -> None:
    """The call is over at once, and its slot is free."""
    async with adapter(recording, deaf_server, connectTimeoutMs=5000) as made:
        task = asyncio.ensure_future(read(made, asks(recording)))
        await until(lambda: made.connections_in_use == 1)
        task.cancel()
        await asyncio.wait([task], timeout=1.0)
        assert task.cancelled()
        await until(lambda: made.connections_in_use == 0)
