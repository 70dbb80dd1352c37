"""Whole blocks, in order, as early as they are certain."""

from __future__ import annotations

from trunkline.core.block_queue import BlockQueue
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    FinishReason,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    Usage,
)
from trunkline_protocol.failure import LlmFailure

CALL = {"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def given(chunks: list[StreamChunk]) -> list[list[dict[str, object]]]:
    queue = BlockQueue()
    return [[block.to_dict() for block in queue.push(chunk)] for chunk in chunks]


def a_finish(kind: str) -> Finish:
    return Finish(FinishReason(kind, LlmFailure("x", "SERVER") if kind == "error" else None))


def test_a_block_comes_when_it_is_closed() -> None:
    """And the rest, such as blocks of deltas alone, at the finish."""
    chunks: list[StreamChunk] = [
        BlockStart(0, "text"),
        TextDelta(0, "a"),
        BlockEnd(0, text("a")),
        TextDelta(1, "b"),
        Usage(TokenUsage(1, 1)),
        a_finish("stop"),
    ]
    assert given(chunks) == [[], [], [text("a")], [], [], [text("b")]]


def test_a_block_waits_for_those_before_it() -> None:
    """The order is that of the first chunks."""
    chunks: list[StreamChunk] = [
        TextDelta(0, "a"),
        TextDelta(1, "b"),
        BlockEnd(1, text("b")),
        BlockEnd(0, text("a")),
        BlockEnd(0, text("again")),
        a_finish("stop"),
    ]
    assert given(chunks) == [[], [], [], [text("a"), text("b")], [], []]


def test_tool_calls_wait_for_the_finish() -> None:
    """`max-tokens` drops them, with what is behind them kept."""
    chunks: list[StreamChunk] = [
        ToolCallDelta(0, "c", "{}", "n"),
        BlockEnd(0, CALL),
        BlockEnd(1, text("b")),
    ]
    assert given([*chunks, a_finish("tool-calls")])[-1] == [CALL, text("b")]
    assert given([*chunks, a_finish("max-tokens")])[-1] == [text("b")]


def test_a_failed_stream_gives_only_what_was_complete() -> None:
    """Nothing more at its finish; a block end that was not filled in closes nothing."""
    chunks: list[StreamChunk] = [
        BlockEnd(0, text("a")),
        TextDelta(1, "b"),
        BlockEnd(1, None),
        a_finish("error"),
    ]
    assert given(chunks) == [[text("a")], [], [], []]
