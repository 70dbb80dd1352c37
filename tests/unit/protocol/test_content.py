"""Content blocks: known ones are checked, unknown ones pass."""

from __future__ import annotations

import pytest
from trunkline_protocol.content import (
    ImageAttachment,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UnknownBlock,
    block_from_dict,
    block_to_dict,
)

IMAGE = {
    "type": "image",
    "attachment": {
        "attachmentId": "sha256:" + "a" * 64,
        "mediaType": "image/png",
        "bytes": 3,
        "width": 1,
        "height": 2,
        "name": "x.png",
    },
}
BLOCKS = {
    "text": (TextBlock, {"type": "text", "text": "x"}),
    "text-with-more": (TextBlock, {"type": "text", "text": "x", "citations": [{"a": 1}]}),
    "reasoning": (ReasoningBlock, {"type": "reasoning", "text": "x"}),
    "image": (ImageBlock, IMAGE),
    "tool-call": (
        ToolCallBlock,
        {"type": "tool-call", "id": "c", "name": "f", "arguments": '{"a":1.0}'},
    ),
    "tool-result": (
        ToolResultBlock,
        {
            "type": "tool-result",
            "toolCallId": "c",
            "content": [IMAGE, {"type": "tool-result", "toolCallId": "d", "content": []}],
            "isError": False,
        },
    ),
    "unknown": (UnknownBlock, {"type": "chart", "data": [1, {"x": None}], "title": None}),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_makes_the_round_trip_unchanged(name: str) -> None:
    kind, data = BLOCKS[name]
    block = block_from_dict(data)
    assert type(block) is kind
    assert block_to_dict(block) == data
    assert block_from_dict(block.to_dict()) == block


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({}, "type"),
        ({"type": 5}, "type"),
        ({"type": "text"}, "text.text"),
        ({"type": "image", "attachment": {"attachmentId": "a"}}, "mediaType"),
        ({"type": "tool-result", "toolCallId": "c", "content": [{"type": "text"}]}, "content.0"),
        ({"type": "tool-result", "toolCallId": "c", "content": ["x"]}, "content.0"),
        ({"type": "tool-call", "id": "c", "name": "f", "arguments": {"a": 1}}, "arguments"),
    ],
)
def test_a_known_block_with_a_wrong_shape_is_refused(data: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names.replace(".", r"\.")):
        block_from_dict(data)


def test_endless_nesting_is_an_error_and_no_crash() -> None:
    block: dict[str, object] = {"type": "text", "text": "x"}
    for _ in range(2_000):
        block = {"type": "tool-result", "toolCallId": "c", "content": [block]}
    with pytest.raises(ValueError, match="content"):
        block_from_dict(block)


def test_blocks_are_built_by_their_python_names() -> None:
    attachment = ImageAttachment(
        attachment_id="sha256:x", media_type="image/png", bytes=1, width=1, height=1
    )
    assert "name" not in ImageBlock(attachment=attachment).attachment.to_dict()
    result = ToolResultBlock(tool_call_id="c", content=(TextBlock(text="x"),))
    assert result.to_dict() == {
        "type": "tool-result",
        "toolCallId": "c",
        "content": [{"type": "text", "text": "x"}],
    }
