"""Chunks: both forms make the round trip, any array is answered, elision is undone exactly."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import given
from hypothesis import strategies as st
from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.chunks import (
    INDEX_MAX,
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
    chunk_from_dict,
    chunk_to_array,
    chunk_to_dict,
    chunks_from_arrays,
)
from trunkline_protocol.elision import BlockElider, BlockFiller
from trunkline_protocol.failure import LlmFailure, RemoteProtocolError
from trunkline_protocol.grammar import GrammarChecker

indices = st.integers(0, 3) | st.integers(0, INDEX_MAX)
texts = st.text(max_size=5)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | numbers | texts
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
block_types = st.sampled_from(["text", "reasoning", "tool-call", "chart"])
blocks = st.fixed_dictionaries(
    {"type": block_types}, optional={"text": texts, "id": texts, "name": texts, "arguments": texts}
) | st.builds(
    lambda extra, kind: {**extra, "type": kind}, st.dictionaries(texts, json_values), texts
)
counts = st.integers(0, 2**53)
usages = st.builds(TokenUsage, counts, counts, st.none() | counts, st.none() | counts)
failures = st.builds(LlmFailure, texts, texts, st.none() | st.integers(100, 599))
extras = st.dictionaries(texts.filter(lambda key: key not in {"kind", "failure"}), json_values)
reasons = st.builds(
    FinishReason, st.sampled_from(["error", "aborted"]), failures, extras
) | st.builds(
    FinishReason, st.sampled_from(["stop", "max-tokens", "paused"]), st.none() | failures, extras
)
envelopes = st.builds(
    ReplayEnvelope, json_values, st.none() | st.lists(json_values, max_size=3).map(tuple)
)
chunks: st.SearchStrategy[StreamChunk] = st.one_of(
    st.builds(BlockStart, indices, block_types | texts),
    st.builds(TextDelta, indices, texts),
    st.builds(ReasoningDelta, indices, texts),
    st.builds(ToolCallDelta, indices, st.none() | texts, texts, st.none() | texts),
    st.builds(BlockEnd, indices, blocks),
    st.builds(Usage, usages),
    st.builds(Finish, reasons, st.none() | envelopes),
)
streams = st.lists(chunks, max_size=25)


def over_the_wire(arrays: list[Any]) -> Any:
    return msgpack.unpackb(msgpack.packb(arrays), use_list=False, strict_map_key=False)


@given(streams)
def test_both_forms_make_the_round_trip(stream: list[StreamChunk]) -> None:
    assert [chunk_from_dict(chunk_to_dict(chunk)) for chunk in stream] == stream
    assert chunks_from_arrays(over_the_wire([chunk_to_array(each) for each in stream])) == stream


@given(st.lists(st.integers(-1, 8) | json_values, max_size=6) | json_values)
def test_any_array_is_a_chunk_or_refused(array: Any) -> None:
    try:
        (chunk,) = chunks_from_arrays([array])
    except RemoteProtocolError:
        return
    again = list(chunk_to_array(chunk))
    assert chunks_from_arrays([again]) == [chunk]


@given(streams)
def test_filling_undoes_eliding(stream: list[StreamChunk]) -> None:
    elider, filler = BlockElider(), BlockFiller()
    arrays = over_the_wire([chunk_to_array(elider.elide(chunk)) for chunk in stream])
    assert [filler.fill(chunk) for chunk in chunks_from_arrays(arrays)] == stream


@given(streams)
def test_an_elided_stream_assembles_like_the_whole_one(stream: list[StreamChunk]) -> None:
    whole, elided, elider = BlockAssembler(), BlockAssembler(), BlockElider()
    for chunk in stream:
        whole.push(chunk)
        elided.push(elider.elide(chunk))
    assert outcome(whole) == outcome(elided)


def outcome(assembler: BlockAssembler) -> object:
    try:
        blocks_seen: object = [block.to_dict() for block in assembler.blocks()]
    except ValueError:
        blocks_seen = "not to be assembled"
    return blocks_seen, assembler.usage, assembler.finish, assembler.replay_state


class NaiveAssembly:
    """The same fold, written for plainness: the whole stream is read again for every answer."""

    def __init__(self, stream: list[StreamChunk]) -> None:
        self.stream = stream
        self.finish: FinishReason = FinishReason("stop")
        self.replay_state: ReplayEnvelope | None = None
        for chunk in stream:
            if isinstance(chunk, Finish):
                self.finish, self.replay_state = chunk.reason, chunk.replay_state

    def order(self) -> list[int]:
        seen = [chunk.index for chunk in self.stream if not isinstance(chunk, Usage | Finish)]
        return sorted(set(seen), key=seen.index)

    def block(self, index: int) -> dict[str, object] | None:
        own = [c for c in self.stream if not isinstance(c, Usage | Finish) and c.index == index]
        ends = [chunk for chunk in own if isinstance(chunk, BlockEnd)]
        if ends:
            assert ends[0].block is not None
            return dict(ends[0].block)
        kinds = {
            TextDelta: "text",
            ReasoningDelta: "reasoning",
            ToolCallDelta: "tool-call",
        }
        first = own[0]
        kind = first.block_type if isinstance(first, BlockStart) else kinds[type(first)]  # type: ignore[index]
        if kind in {"text", "reasoning"}:
            pieces = [c.text for c in own if isinstance(c, TextDelta | ReasoningDelta)]
            return {"type": kind, "text": "".join(pieces)}
        if kind != "tool-call":
            return None
        calls = [chunk for chunk in own if isinstance(chunk, ToolCallDelta)]
        names = [chunk.name for chunk in calls if chunk.name]
        call_id = calls[-1].id if calls else None
        return {
            "type": "tool-call",
            "id": f"call-{index}" if call_id is None else call_id,
            "name": names[-1] if names else "",
            "arguments": "".join(chunk.arguments_delta for chunk in calls),
        }

    def blocks(self) -> list[dict[str, object]] | None:
        found = [self.block(index) for index in self.order()]
        if None in found:
            return None
        is_cut = self.finish.kind == "max-tokens"
        return [b for b in found if b is not None and not (is_cut and b["type"] == "tool-call")]


@given(streams)
def test_assembly_agrees_with_a_naive_model(stream: list[StreamChunk]) -> None:
    assembler, naive = BlockAssembler(), NaiveAssembly(stream)
    for chunk in stream:
        assembler.push(chunk)
    assert assembler.finish == naive.finish
    expected = naive.blocks()
    kept = [dict(block) for block in assembled_maps(assembler)] if expected is not None else None
    assert kept == expected
    envelope = naive.replay_state
    if envelope is not None and envelope.blocks is not None and expected is not None:
        fits = len(envelope.blocks) == len(naive.order())
        assert (assembler.replay_state is not None) is fits
        if assembler.replay_state is not None:
            assert len(assembler.replay_state.blocks or ()) == len(expected)


def assembled_maps(assembler: BlockAssembler) -> list[Any]:
    """Return the kept blocks before they become models, which refuse some shapes."""
    return list(assembler._kept_blocks())


@given(streams)
def test_the_checker_counts_what_came_before(stream: list[StreamChunk]) -> None:
    checker = GrammarChecker()
    firsts = [checker.push(chunk) for chunk in stream]
    violation = checker.end()
    if violation is None:
        assert isinstance(stream[-1], Finish)
    else:
        good = [each for each in firsts if each is None]
        assert violation.chunk_count == len(good)
