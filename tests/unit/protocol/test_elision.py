"""Block ends without their block, and back."""

from __future__ import annotations

import pytest
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    FinishReason,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    Usage,
)
from trunkline_protocol.elision import BlockElider, BlockFiller
from trunkline_protocol.failure import RemoteProtocolError

CALL = {"type": "tool-call", "id": "c", "name": "f", "arguments": "{}"}


def sent_and_restored(*chunks: StreamChunk) -> tuple[list[StreamChunk], list[StreamChunk]]:
    elider, filler = BlockElider(), BlockFiller()
    sent = [elider.elide(chunk) for chunk in chunks]
    return sent, [filler.fill(chunk) for chunk in sent]


@pytest.mark.parametrize(
    ("chunks", "is_elided"),
    [
        ([TextDelta(0, "a"), TextDelta(0, "b"), BlockEnd(0, {"type": "text", "text": "ab"})], True),
        ([ReasoningDelta(0, "a"), BlockEnd(0, {"type": "reasoning", "text": "a"})], True),
        ([BlockStart(0, "text"), BlockEnd(0, {"type": "text", "text": ""})], True),
        ([ToolCallDelta(0, "c", "{}", "f"), BlockEnd(0, CALL)], True),
        ([TextDelta(0, "a"), BlockEnd(0, {"type": "text", "text": "other"})], False),
        ([TextDelta(0, "a"), BlockEnd(0, {"type": "text", "text": "a", "more": 1})], False),
        ([BlockEnd(0, {"type": "text", "text": ""})], False),
        ([BlockStart(0, "chart"), BlockEnd(0, {"type": "chart"})], False),
    ],
)
def test_only_what_the_deltas_say_is_left_out(
    chunks: list[StreamChunk],
    is_elided: bool,
) -> None:
    sent, restored = sent_and_restored(*chunks)
    assert restored == chunks
    assert sent[-1] == (BlockEnd(0, None) if is_elided else chunks[-1])


def test_a_second_end_and_stragglers_travel_as_they_are() -> None:
    chunks: list[StreamChunk] = [
        TextDelta(0, "a"),
        BlockEnd(0, {"type": "text", "text": "a"}),
        TextDelta(0, "late"),
        ToolCallDelta(0, "c", "late"),
        BlockEnd(0, {"type": "text", "text": "a"}),
        Usage(TokenUsage(1, 1)),
        Finish(FinishReason("stop")),
    ]
    sent, restored = sent_and_restored(*chunks)
    assert restored == chunks
    assert sent[1] == BlockEnd(0, None)
    assert sent[4] is chunks[4]


def test_an_end_that_came_without_its_block_passes_the_elider() -> None:
    elided = BlockEnd(0, None)
    assert BlockElider().elide(elided) is elided


@pytest.mark.parametrize(
    "before",
    [
        [],
        [BlockStart(0, "chart")],
        [TextDelta(0, "a"), BlockEnd(0, {"type": "text", "text": "b"})],
    ],
)
def test_a_block_that_nothing_builds_is_refused(before: list[StreamChunk]) -> None:
    filler = BlockFiller()
    for chunk in before:
        filler.fill(chunk)
    with pytest.raises(RemoteProtocolError, match="left out"):
        filler.fill(BlockEnd(0, None))


def test_the_filler_shows_the_blocks_so_far() -> None:
    filler = BlockFiller()
    filler.fill(TextDelta(3, "a"))
    assert list(filler.partials) == [3]


def test_a_run_of_deltas_goes_straight_to_an_open_block() -> None:
    """Appended by the caller, the pieces count as if each delta had been taken."""
    elider = BlockElider()
    assert elider.open_texts(0) is None
    elider.elide(TextDelta(0, "a"))
    texts = elider.open_texts(0)
    assert texts is not None
    texts.append("b")
    assert elider.elide(BlockEnd(0, {"type": "text", "text": "ab"})) == BlockEnd(0, None)
    assert elider.open_texts(0) is None
