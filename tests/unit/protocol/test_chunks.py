"""The stream chunks and their two forms."""

from __future__ import annotations

import pytest
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
    is_token_delta,
)
from trunkline_protocol.failure import RemoteProtocolError

BLOCK = {"type": "text", "text": "x", "citations": [{"a": [1]}]}
# chunk, its map, its array
FORMS: list[tuple[StreamChunk, dict[str, object], list[object]]] = [
    (
        BlockStart(0, "text"),
        {"type": "block-start", "index": 0, "blockType": "text"},
        [0, 0, "text"],
    ),
    (TextDelta(1, "a"), {"type": "text-delta", "index": 1, "text": "a"}, [1, 1, "a"]),
    (
        ReasoningDelta(INDEX_MAX, ""),
        {"type": "reasoning-delta", "index": INDEX_MAX, "text": ""},
        [2, INDEX_MAX, ""],
    ),
    (
        ToolCallDelta(2, "c", "{", "f"),
        {"type": "tool-call-delta", "index": 2, "id": "c", "name": "f", "argumentsDelta": "{"},
        [3, 2, "c", "f", "{"],
    ),
    (
        ToolCallDelta(2, None, "}"),
        {"type": "tool-call-delta", "index": 2, "argumentsDelta": "}"},
        [3, 2, None, None, "}"],
    ),
    (BlockEnd(0, BLOCK), {"type": "block-end", "index": 0, "block": BLOCK}, [4, 0, BLOCK]),
    (
        Usage(TokenUsage(1, 2)),
        {"type": "usage", "usage": {"inputTokens": 1, "outputTokens": 2}},
        [5, {"inputTokens": 1, "outputTokens": 2}],
    ),
    (
        Finish(FinishReason("stop")),
        {"type": "finish", "reason": {"kind": "stop"}},
        [6, {"kind": "stop"}, None],
    ),
    (
        Finish(FinishReason("stop"), ReplayEnvelope({"r": 1}, ("m",))),
        {
            "type": "finish",
            "reason": {"kind": "stop"},
            "replayState": {"response": {"r": 1}, "blocks": ["m"]},
        },
        [6, {"kind": "stop"}, {"response": {"r": 1}, "blocks": ["m"]}],
    ),
]


@pytest.mark.parametrize(("chunk", "data", "array"), FORMS)
def test_both_forms_of_a_chunk(
    chunk: StreamChunk, data: dict[str, object], array: list[object]
) -> None:
    assert chunk_to_dict(chunk) == data
    assert chunk_from_dict({**data, "unknown": 1}) == chunk
    assert list(chunk_to_array(chunk)) == array
    assert chunks_from_arrays([array, tuple(array)]) == [chunk, chunk]


def test_an_elided_block_travels_on_the_lane_only() -> None:
    elided = BlockEnd(3, None)
    assert chunk_to_array(elided) == (4, 3, None)
    assert chunks_from_arrays([[4, 3, None]]) == [elided]
    with pytest.raises(ValueError, match="elided"):
        chunk_to_dict(elided)
    with pytest.raises(ValueError, match=r"block-end\.block"):
        chunk_from_dict({"type": "block-end", "index": 3})


def test_what_the_lane_decodes_as_tuples_arrives_as_lists() -> None:
    (chunk,) = chunks_from_arrays([(4, 0, {"type": "chart", "data": (1, (2,))})])
    assert chunk == BlockEnd(0, {"type": "chart", "data": [1, [2]]})


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({}, "type"),
        ({"type": 5}, "type"),
        ({"type": "rogue"}, "type"),
        ({"type": "text-delta", "text": "x"}, "text-delta.index"),
        ({"type": "text-delta", "index": -1, "text": "x"}, "text-delta.index"),
        ({"type": "text-delta", "index": True, "text": "x"}, "text-delta.index"),
        ({"type": "text-delta", "index": 0.0, "text": "x"}, "text-delta.index"),
        ({"type": "text-delta", "index": INDEX_MAX + 1, "text": "x"}, "text-delta.index"),
        ({"type": "text-delta", "index": 0}, "text-delta.text"),
        ({"type": "block-start", "index": 0}, "block-start.blockType"),
        ({"type": "tool-call-delta", "index": 0, "id": 5, "argumentsDelta": ""}, "delta.id"),
        ({"type": "tool-call-delta", "index": 0, "name": 5, "argumentsDelta": ""}, "delta.name"),
        ({"type": "tool-call-delta", "index": 0, "id": "c"}, "delta.argumentsDelta"),
        ({"type": "tool-call-delta", "index": -1, "argumentsDelta": ""}, "delta.index"),
        ({"type": "block-end", "index": 0, "block": []}, "block-end.block"),
        ({"type": "block-end", "index": 0, "block": {"text": "x"}}, "block-end.block.type"),
        ({"type": "usage", "usage": None}, "usage.usage"),
        ({"type": "usage", "usage": {}}, "usage.inputTokens"),
        ({"type": "finish"}, "finish.reason"),
        ({"type": "finish", "reason": {"kind": "stop"}, "replayState": 5}, "replayState"),
    ],
)
def test_wrong_maps_are_refused_with_type_and_field(data: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        chunk_from_dict(data)


@pytest.mark.parametrize(
    "array",
    [
        [],
        None,
        "x",
        b"\x01\x00\x02",
        {0: 1, 5: 0, "x": 0},
        [7],
        [-1, 0, "x"],
        [True, 0, "x"],
        [1.0, 0, "x"],
        ["1", 0, "x"],
        [1, 0],
        [1, 0, "x", "y"],
        [1, -1, "x"],
        [1, INDEX_MAX + 1, "x"],
        [1, True, "x"],
        [2, 0, b"x"],
        [3, 0, "c", "f"],
        [3, 0, 1, None, ""],
        [4, 0],
        [4, 0, {}],
        [4, 0, []],
        [5, None],
        [6, {"kind": "error"}, None],
        [6, {"kind": "stop"}],
    ],
)
def test_wrong_arrays_are_refused(array: object) -> None:
    with pytest.raises(RemoteProtocolError, match="chunk 1") as caught:
        chunks_from_arrays([[1, 0, "good"], array])
    assert caught.value.code == "MALFORMED_CHUNK"


def test_a_block_too_deep_to_copy_is_refused() -> None:
    deep: object = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(RemoteProtocolError, match="nested deeper"):
        chunks_from_arrays([[4, 0, {"type": "chart", "data": deep}]])


@pytest.mark.parametrize(
    ("chunk", "answer"),
    [
        (TextDelta(0, "x"), True),
        (TextDelta(0, ""), False),
        (ReasoningDelta(0, "x"), True),
        (ToolCallDelta(0, "c", "{"), True),
        (ToolCallDelta(0, "c", ""), False),
        (ToolCallDelta(0, "c", "", ""), True),
        (BlockStart(0, "text"), False),
        (Finish(FinishReason("stop")), False),
        ({"type": "rogue"}, False),
    ],
)
def test_what_carries_output(chunk: object, answer: bool) -> None:
    assert is_token_delta(chunk) is answer
