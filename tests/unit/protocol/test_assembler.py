"""Assembly: the chunks of a stream become blocks, usage, finish, replay state, message."""

from __future__ import annotations

import pytest
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
from trunkline_protocol.messages import UserMessageSource

CALL = {"type": "tool-call", "id": "c", "name": "f", "arguments": "{}"}


def assembled(*chunks: StreamChunk) -> BlockAssembler:
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.push(chunk)
    return assembler


def maps(assembler: BlockAssembler) -> list[dict[str, object]]:
    return [block.to_dict() for block in assembler.blocks()]


def test_a_whole_stream() -> None:
    assembler = assembled(
        BlockStart(0, "reasoning"),
        ReasoningDelta(0, "think"),
        BlockEnd(0, {"type": "reasoning", "text": "think"}),
        TextDelta(1, "he"),
        TextDelta(1, "llo"),
        ToolCallDelta(2, "c", "{}", "f"),
        Usage(TokenUsage(1, 2)),
        Finish(FinishReason("tool-calls")),
    )
    assert maps(assembler) == [
        {"type": "reasoning", "text": "think"},
        {"type": "text", "text": "hello"},
        CALL,
    ]
    assert assembler.usage == TokenUsage(1, 2)
    assert assembler.finish == FinishReason("tool-calls")
    assert assembler.replay_state is None


def test_an_empty_stream_stopped() -> None:
    assembler = BlockAssembler()
    assert assembler.blocks() == assembler.interrupted_blocks() == []
    assert assembler.finish == FinishReason("stop")
    assert assembler.usage is None


def test_stragglers_after_an_end_change_nothing() -> None:
    assembler = assembled(
        BlockEnd(0, {"type": "text", "text": "done"}),
        TextDelta(0, "late"),
        ReasoningDelta(0, "late"),
        BlockStart(0, "tool-call"),
        BlockEnd(0, {"type": "text", "text": "other"}),
    )
    assert maps(assembler) == [{"type": "text", "text": "done"}]


def test_an_elided_end_closes_the_block_as_its_deltas_made_it() -> None:
    assembler = assembled(TextDelta(0, "x"), BlockEnd(0, None), TextDelta(0, "late"))
    assert maps(assembler) == [{"type": "text", "text": "x"}]


def test_max_tokens_drops_tool_calls_and_their_replay_entries() -> None:
    assembler = assembled(
        TextDelta(0, "x"),
        BlockEnd(1, CALL),
        Finish(FinishReason("max-tokens"), ReplayEnvelope({"id": 1}, ("a", "b"), {"extra": 1})),
    )
    assert maps(assembler) == [{"type": "text", "text": "x"}]
    assert assembler.replay_state == ReplayEnvelope({"id": 1}, ("a",))


@pytest.mark.parametrize(
    ("envelope", "kept"),
    [
        (None, None),
        (ReplayEnvelope(1), ReplayEnvelope(1)),
        (ReplayEnvelope(1, ("a",), {"e": 1}), ReplayEnvelope(1, ("a",), {"e": 1})),
        (ReplayEnvelope(1, ()), None),
        (ReplayEnvelope(1, ("a", "b")), None),
    ],
)
def test_entries_that_do_not_match_discard_the_envelope(
    envelope: ReplayEnvelope | None, kept: ReplayEnvelope | None
) -> None:
    assembler = assembled(TextDelta(0, "x"), Finish(FinishReason("stop"), envelope))
    assert assembler.replay_state == kept


def test_an_open_block_of_an_unknown_type_can_not_be_assembled() -> None:
    assembler = assembled(TextDelta(0, "x"), BlockStart(1, "video"))
    with pytest.raises(ValueError, match="video"):
        assembler.blocks()
    assert [block.to_dict() for block in assembler.interrupted_blocks()] == [
        {"type": "text", "text": "x"}
    ]


def test_an_interrupted_stream_keeps_text_and_reasoning_that_is_not_blank() -> None:
    assembler = assembled(
        TextDelta(0, " x "),
        ReasoningDelta(1, "\u2003\n"),
        ToolCallDelta(2, "c", "{", "f"),
        BlockEnd(3, {"type": "chart"}),
        ReasoningDelta(4, "\u001c"),
    )
    assert [block.to_dict() for block in assembler.interrupted_blocks()] == [
        {"type": "text", "text": " x "},
        {"type": "reasoning", "text": "\u001c"},
    ]


def test_the_message_has_a_fresh_id_and_the_given_source() -> None:
    assembler = assembled(TextDelta(0, "x"))
    message = assembler.message()
    assert message.role == "assistant"
    assert message.source.to_dict() == {"kind": "plugin", "plugin": "dsh-llm/assembler"}
    assert message.id != assembler.message().id
    assert assembler.message(UserMessageSource()).source.kind == "user"
