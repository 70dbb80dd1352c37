"""One block while its deltas arrive."""

from __future__ import annotations

import pytest
from trunkline_protocol.chunks import ToolCallDelta
from trunkline_protocol.partial_block import PartialBlock


def test_text_and_reasoning_join_their_deltas() -> None:
    for kind in ("text", "reasoning"):
        block = PartialBlock(kind)
        block.add_text("a")
        block.add_text("b")
        assert block.assembled(0) == {"type": kind, "text": "ab"}


def test_a_tool_call_keeps_the_last_id_and_the_last_name_with_a_letter() -> None:
    block = PartialBlock("tool-call")
    block.add_tool_call(ToolCallDelta(4, "first", "{", "f"))
    block.add_tool_call(ToolCallDelta(4, "second", "}", ""))
    assert block.assembled(4) == {
        "type": "tool-call",
        "id": "second",
        "name": "f",
        "arguments": "{}",
    }
    block.add_tool_call(ToolCallDelta(4, None, ""))
    assert block.assembled(4)["id"] == "call-4"


def test_deltas_of_another_kind_do_not_mix() -> None:
    call = PartialBlock("tool-call")
    call.add_text("text")
    assert call.assembled(0)["arguments"] == ""
    text = PartialBlock("text")
    text.add_tool_call(ToolCallDelta(0, "c", "{}"))
    assert text.assembled(0)["text"] == ""


def test_the_first_end_is_final() -> None:
    block = PartialBlock("text")
    block.add_text("x")
    closing = {"type": "reasoning", "text": "r"}
    block.close(closing)
    block.close({"type": "text", "text": "late"})
    block.add_text("late")
    block.add_tool_call(ToolCallDelta(0, "c", "late"))
    assert block.assembled(0) is closing
    assert block.final_type == "reasoning"
    assert block.texts == block.arguments == []


def test_an_open_block_of_another_type_has_nothing_to_assemble() -> None:
    block = PartialBlock("video")
    assert not block.can_assemble
    assert block.final_type == "video"
    with pytest.raises(ValueError, match="video"):
        block.assembled(0)
