"""The record of a detachable attempt assembles to what was said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from trunkline_protocol.assembler import BlockAssembler
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
    chunks_from_arrays,
)
from trunkline_protocol.elision import BlockElider, BlockFiller
from trunkline_workers.core.record import Record

INDEX = st.integers(min_value=0, max_value=2)
TEXT = st.text(alphabet="ab ", max_size=3)
CHUNKS = st.one_of(
    st.builds(TextDelta, INDEX, TEXT),
    st.builds(ReasoningDelta, INDEX, TEXT),
    st.builds(
        ToolCallDelta, INDEX, st.sampled_from(["x", "y"]), TEXT, st.sampled_from([None, "n", "m"])
    ),
    st.builds(BlockStart, INDEX, st.sampled_from(["text", "reasoning", "tool-call"])),
    st.builds(BlockEnd, INDEX, st.builds(lambda text: {"type": "text", "text": text}, TEXT)),
    st.builds(lambda count: Usage(TokenUsage(count, count)), st.integers(0, 9)),
)


def assembled(chunks: list[StreamChunk]) -> tuple[object, ...]:
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.push(chunk)
    return assembler.blocks(), assembler.usage, assembler.finish


@given(st.lists(CHUNKS, max_size=30))
def test_it_leads_to_the_same_blocks(said: list[StreamChunk]) -> None:
    """Whatever is said, in whatever order, with block ends left out as on the lane."""
    said = [*said, Finish(FinishReason("stop"))]
    elider, filler, record = BlockElider(), BlockFiller(), Record()
    record.add([elider.elide(chunk).to_array() for chunk in said])
    played = [filler.fill(chunk) for chunk in chunks_from_arrays(record.arrays())]
    assert assembled(played) == assembled(said)


def test_a_long_text_is_one_chunk() -> None:
    """And its size is known, within a little."""
    record = Record()
    for _ in range(10):
        record.add([TextDelta(0, "x" * 100).to_array()] * 10)
    assert len(record.arrays()) == 1
    assert 10_000 < record.size_bytes < 11_000
