"""The fake provider does what its script says, and says what is wrong with a script."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.chunks import BlockStart, Finish, TextDelta
from trunkline_protocol.content import ReasoningBlock, TextBlock, ToolCallBlock
from trunkline_protocol.failure import LlmError
from trunkline_protocol.grammar import GrammarChecker
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter
from trunkline_workers.adapters.scripted.content import piece, whole
from trunkline_workers.adapters.scripted.script import (
    ScriptError,
    script_from_map,
    script_in_text,
)

from tests.support.calls import a_request


async def played(script: dict[str, Any], **options: Any) -> list[Any]:
    adapter = ScriptedAdapter(options)
    request = a_request(json.dumps({"script": script}))
    return [item async for item in adapter.stream(request)]


def flat(items: list[Any]) -> list[Any]:
    return [chunk for item in items for chunk in (item if isinstance(item, list) else [item])]


def assembled(items: list[Any]) -> BlockAssembler:
    assembler, grammar = BlockAssembler(), GrammarChecker()
    for chunk in flat(items):
        assembler.push(chunk)
        grammar.push(chunk)
    assert grammar.end() is None
    return assembler


async def test_an_ordinary_response_is_numbered_text() -> None:
    (block,) = assembled(await played({})).blocks()
    assert isinstance(block, TextBlock)
    assert block.text == whole(16, 40)
    assert block.text == script_from_map({}).whole_text


@pytest.mark.parametrize("chars", [1, 3, 40, 200_000])
def test_pieces_have_their_length_and_number(chars: int) -> None:
    texts = [piece(number, chars, seed=3) for number in range(3)]
    assert [len(text) for text in texts] == [chars] * 3
    assert texts[2].startswith("2 "[:chars])


@pytest.mark.parametrize(
    "script",
    [
        {"chunks": 100, "batch": 7, "seed": 5},
        {"chunks": 33, "batch": 16, "is_constant": True, "chunk_chars": 9},
        {"chunks": 5, "is_constant": True, "reasoning_chunks": 1},
        {"text": "hello world", "chunk_chars": 3},
    ],
)
async def test_the_text_is_what_the_script_promises(script: dict[str, Any]) -> None:
    blocks = assembled(await played(script)).blocks()
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    assert text == script_from_map(script).whole_text
    assert len(script_from_map(script).text_sha256) == 64


async def test_batches_are_handed_over_as_lists() -> None:
    items = await played({"chunks": 8, "batch": 4})
    assert all(isinstance(item, list) for item in items)
    assert len(items) == 3


async def test_reasoning_tools_usage_finish_and_replay_state() -> None:
    arguments = '{"city": "Oslo"}'
    assembler = assembled(
        await played(
            {
                "chunks": 0,
                "reasoning_chunks": 2,
                "chunk_chars": 5,
                "tool_calls": [{"id": "c1", "name": "weather", "arguments": arguments}],
                "usage": {"inputTokens": 3, "outputTokens": 4},
                "replay_state": {"response": {"id": 1}},
            }
        )
    )
    reasoning, call = assembler.blocks()
    assert isinstance(reasoning, ReasoningBlock)
    assert isinstance(call, ToolCallBlock)
    assert call.arguments == arguments
    assert assembler.finish.kind == "tool-calls"
    assert assembler.usage is not None
    assert assembler.usage.input_tokens == 3
    assert assembler.replay_state is not None


@pytest.mark.parametrize(
    ("finish", "kind"), [("max-tokens", "max-tokens"), ({"kind": "odd", "x": 1}, "odd")]
)
async def test_the_finish_is_what_the_script_says(finish: Any, kind: str) -> None:
    assert assembled(await played({"finish": finish})).finish.kind == kind


async def test_nothing_but_chunks_where_usage_and_finish_are_off() -> None:
    items = flat(await played({"chunks": 1, "usage": False, "finish": False}))
    assert [type(item).__name__ for item in items] == ["BlockStart", "TextDelta", "BlockEnd"]


async def test_steps_at_a_chunk_after_the_finish_and_instead_of_all() -> None:
    items = await played(
        {"chunks": 2, "at": {"2": {"garbage": 5}}, "after": [{"chunk": _delta("late")}]}
    )
    assert items[2] == 5
    assert isinstance(items[-2], Finish)
    assert items[-1] == TextDelta(0, "late")
    items = await played({"steps": [{"chunks": [_delta("a")]}, {"huge_block": 9}, {"end": True}]})
    assert items[0] == [TextDelta(0, "a")]
    assert isinstance(items[1][0], BlockStart)


def _delta(text: str) -> dict[str, Any]:
    return {"type": "text-delta", "index": 0, "text": text}


async def test_raised_errors() -> None:
    with pytest.raises(LlmError) as caught:
        await played({"at": {"0": {"raise": {"code": "RATE_LIMIT", "status": 429}}}})
    assert (caught.value.code, caught.value.failure.status) == ("RATE_LIMIT", 429)
    for name in ("ValueError", "SystemExit", "UnicodeDecodeError"):
        with pytest.raises(BaseException, match="odd") as raised:
            await played({"steps": [{"raise": {"exception": name, "message": "odd"}}]})
        assert type(raised.value).__name__ == name


async def test_a_stall_lasts_until_it_is_cancelled(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    adapter = ScriptedAdapter({"journal": str(journal)})
    request = a_request('{"script": {"steps": [{"stall": true}]}}', session_id="s1")
    stream = adapter.stream(request)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "cancelled"]
    assert events[0]["sessionId"] == "s1"


async def test_a_closed_stream_is_in_the_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    adapter = ScriptedAdapter({"journal": str(journal), "scripts": {"m": {"chunks": 1}}})
    stream: Any = adapter.stream(a_request())
    await anext(stream)
    await stream.aclose()
    _ = [item async for item in adapter.stream(a_request())]
    events = [json.loads(line)["event"] for line in journal.read_text().splitlines()]
    assert events == ["start", "closed", "start", "played"]


async def test_deafness_ends_by_itself() -> None:
    adapter = ScriptedAdapter()
    stream: Any = adapter.stream(a_request('{"script": {"steps": [{"deaf_ms": 30}]}}'))
    waiting = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await waiting is None


def test_which_script_a_call_plays() -> None:
    adapter = ScriptedAdapter({"script": {"chunks": 1}, "scripts": {"m": {"chunks": 2}}})
    assert adapter.script_for(a_request()).chunks == 2
    assert adapter.script_for(a_request(model="other")).chunks == 1
    assert adapter.script_for(a_request('{"script": {"chunks": 3}}')).chunks == 3
    assert adapter.script_for(a_request(messages=())).chunks == 2


def test_ordinary_text_is_no_script() -> None:
    for text in ("hello", "{ not json", '{"script": 1, "more": 2}', "{}", "[]"):
        assert script_in_text(text) is None


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ([], "a script must be a map"),
        ({"odd": 1}, "unknown key 'odd'; allowed: text, chunks"),
        ({"chunks": -1}, "script.chunks: a whole number"),
        ({"batch": 0}, "script.batch: a whole number above 0"),
        ({"text": 5}, "script.text"),
        ({"is_constant": 1}, "script.is_constant"),
        ({"pace_ms": "fast"}, "script.pace_ms"),
        ({"usage": 5}, "script.usage"),
        ({"tool_calls": [{"id": "x"}]}, "script.tool_calls"),
        ({"steps": {}}, "script.steps: a list"),
        ({"steps": [{}]}, "one key"),
        ({"steps": [{"dance": 1}]}, "unknown step 'dance'; allowed: chunk"),
        ({"steps": [{"chunk": {"type": "odd"}}]}, "script.steps: chunk"),
        ({"steps": [{"signal": "HUP"}]}, "KILL"),
        ({"at": {"0": {"raise": {"exception": "eval"}}}}, "exception must be one of"),
    ],
)
def test_a_wrong_script_is_refused_by_key(script: Any, text: str) -> None:
    with pytest.raises(ScriptError) as caught:
        script_from_map(script)
    assert text in str(caught.value)


def test_a_wrong_script_in_a_request_is_an_invalid_request() -> None:
    with pytest.raises(LlmError) as caught:
        ScriptedAdapter().script_for(a_request('{"script": {"odd": 1}}'))
    assert caught.value.code == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "options", [{"odd": 1}, {"scripts": 5}, {"script": {"odd": 1}}, {"retryPolicy": {"mode": "x"}}]
)
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"odd|scripts|retryPolicy"):
        ScriptedAdapter.create(AdapterContext("p", options=options))


async def test_catalog_and_models() -> None:
    adapter = ScriptedAdapter(
        {"scripts": {"fast": {}}, "models": {"big": {"context": {"contextWindow": 9}}}}
    )
    assert [model.id for model in await adapter.list_models("p")] == ["scripted", "fast", "big"]
    info = await adapter.resolve_model("p", "big")
    assert info.context is not None
    assert (info.id, info.context.context_window) == ("big", 9)
    assert (await adapter.resolve_model("p", "any")).name == "any"
    assert adapter.default_providers() == ("scripted",)


async def test_a_broken_version_can_not_open() -> None:
    with pytest.raises(LlmError, match="broken"):
        await ScriptedAdapter({"open_error": "broken"}).open()
    await ScriptedAdapter({"open_delay_ms": 1}).open()
