"""The message of a stream, from what its reader has taken: the same as the assembler's."""

from __future__ import annotations

import pytest
from trunkline.core.assembly import Assembly
from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    FinishReason,
    ReasoningDelta,
    ReplayEnvelope,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    Usage,
)
from trunkline_protocol.failure import LlmFailure, RemoteProtocolError

USAGE = Usage(TokenUsage(1, 2))
CLOSED: list[StreamChunk] = [
    BlockStart(0, "reasoning"),
    ReasoningDelta(0, "hm"),
    BlockEnd(0, {"type": "reasoning", "text": "hm"}),
    BlockStart(1, "text"),
    TextDelta(1, "yes"),
    BlockEnd(1, {"type": "text", "text": "yes"}),
]
OPEN: list[StreamChunk] = [
    ReasoningDelta(0, "so"),
    TextDelta(1, "no"),
    ToolCallDelta(2, "c", '{"a":', "look"),
    ToolCallDelta(2, "c", "1}"),
    ToolCallDelta(3, None, "{}"),
]


def a_finish(kind: str, replay: ReplayEnvelope | None = None) -> Finish:
    failure = LlmFailure("x", "SERVER") if kind in {"error", "aborted"} else None
    return Finish(FinishReason(kind, failure), replay)


@pytest.mark.parametrize("chunks", [CLOSED, OPEN, [*CLOSED, *OPEN]], ids=["closed", "open", "both"])
@pytest.mark.parametrize("kind", ["stop", "max-tokens", "error"])
def test_blocks_are_the_assemblers(chunks: list[StreamChunk], kind: str) -> None:
    """Open and closed blocks, dropped tool calls, what may be kept of a failed stream."""
    assembly, assembler = Assembly(), BlockAssembler()
    for chunk in [*chunks, USAGE, a_finish(kind)]:
        assembly.follow([chunk])
        assembler.push(chunk)
    wanted = assembler.interrupted_blocks() if kind == "error" else assembler.blocks()
    assert assembly.blocks() == wanted
    assert assembly.interrupted_blocks() == assembler.interrupted_blocks()
    assert assembly.usage == USAGE.usage
    assert assembly.finish == a_finish(kind)


def test_left_out_blocks_are_filled_in() -> None:
    """The reader sees the block end as the adapter emitted it."""
    assembly = Assembly()
    chunks: list[StreamChunk] = [TextDelta(0, "a"), TextDelta(0, "b"), BlockEnd(0, None)]
    assert assembly.follow(chunks)[-1] == BlockEnd(0, {"type": "text", "text": "ab"})
    with pytest.raises(RemoteProtocolError):
        assembly.follow([BlockEnd(7, None)])


def test_nothing_behind_a_finish_is_followed() -> None:
    """The finish is the last that comes out."""
    chunks: list[StreamChunk] = [TextDelta(0, "a"), a_finish("stop"), TextDelta(0, "b")]
    assert Assembly().follow(chunks) == chunks[:2]


def test_the_message_names_who_produced_it() -> None:
    """With the replay envelope pruned in step with the blocks."""
    assembly = Assembly()
    replay = ReplayEnvelope({"id": 1}, ("r", "t", "c", "d"))
    assembly.follow([*OPEN, a_finish("max-tokens", replay)])
    message = assembly.message("p", "m").to_dict()
    assert message["role"] == "assistant"
    assert message["source"] == {
        "provider": "p",
        "model": "m",
        "replayState": {"response": {"id": 1}, "blocks": ["r", "t"]},
        "kind": "model",
    }
    assert message["content"] == [
        {"type": "reasoning", "text": "so"},
        {"type": "text", "text": "no"},
    ]


def test_a_message_of_an_unfinished_stream() -> None:
    """What was read so far, without replay state."""
    assembly = Assembly()
    assembly.follow([TextDelta(0, "so far")])
    message = assembly.message("p", "m").to_dict()
    assert message["content"] == [{"type": "text", "text": "so far"}]
    assert message["source"] == {"provider": "p", "model": "m", "kind": "model"}


def test_an_open_block_that_deltas_cannot_build() -> None:
    """As in the assembler."""
    assembly = Assembly()
    assembly.follow([BlockStart(0, "chart"), a_finish("stop")])
    with pytest.raises(ValueError, match="chart"):
        assembly.blocks()
