"""Messages, their sources and their constructors."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from trunkline_protocol.content import TextBlock
from trunkline_protocol.messages import (
    CONTEXT_SUMMARY_MAX_UNITS,
    AssistantProvenance,
    ContextSnapshotSection,
    Message,
    ModelMessageSource,
    PluginMessageSource,
    ToolMessageSource,
    UnknownMessageSource,
    UserMessageSource,
    bound_context_summary,
    create_assistant_message,
    create_message,
    create_tool_result_message,
    create_user_message,
    freeze_message,
)

SOURCES = {
    "user": (UserMessageSource, {"kind": "user"}),
    "plugin": (PluginMessageSource, {"kind": "plugin", "plugin": "p"}),
    "plugin-catalog": (PluginMessageSource, {"kind": "plugin", "plugin": "p", "form": "catalog"}),
    "plugin-new-form": (PluginMessageSource, {"kind": "plugin", "plugin": "p", "form": "later"}),
    "plugin-snapshot": (
        PluginMessageSource,
        {
            "kind": "plugin",
            "plugin": "p",
            "form": "snapshot",
            "sections": [{"name": "n", "text": "t"}],
        },
    ),
    "plugin-notice": (
        PluginMessageSource,
        {"kind": "plugin", "plugin": "p", "form": "notice", "summary": "s"},
    ),
    "model": (
        ModelMessageSource,
        {"kind": "model", "provider": "p", "model": "m", "replayState": {"response": [1]}},
    ),
    "tool": (ToolMessageSource, {"kind": "tool", "callId": "c"}),
    "unknown": (UnknownMessageSource, {"kind": "timer", "every": 5, "note": None}),
}


def message_map(source: dict[str, object]) -> dict[str, object]:
    return {
        "id": "m1",
        "role": "user",
        "content": [{"type": "text", "text": "x"}],
        "source": source,
    }


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_makes_the_round_trip_unchanged(name: str) -> None:
    kind, source = SOURCES[name]
    message = freeze_message({**message_map(source), "more": {"a": [None]}})
    assert type(message.source) is kind
    assert message.to_dict() == {**message_map(source), "more": {"a": [None]}}
    assert freeze_message(message.to_dict()) == message


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ({}, "kind"),
        ({"kind": "plugin"}, "plugin"),
        ({"kind": "plugin", "plugin": "p", "form": "snapshot"}, "sections"),
        ({"kind": "plugin", "plugin": "p", "form": "notice"}, "summary"),
        ({"kind": "model", "provider": "p"}, "model"),
        ({"kind": "tool"}, "callId"),
    ],
)
def test_a_source_without_its_fields_is_refused(source: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        freeze_message(message_map(source))


@pytest.mark.parametrize(
    ("change", "names"),
    [({"id": 5}, "id"), ({"role": "tool"}, "role"), ({"content": "x"}, "content")],
)
def test_a_wrong_message_is_refused(change: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        freeze_message({**message_map({"kind": "user"}), **change})


def test_constructors_draw_fresh_ids() -> None:
    made = [create_user_message([TextBlock(text="x")], UserMessageSource()) for _ in range(3)]
    assert len({message.id for message in made}) == 3
    assert all(message.role == "user" for message in made)
    assert create_message("system", [], UserMessageSource()).role == "system"


def test_an_assistant_message_names_its_model() -> None:
    provenance = AssistantProvenance(provider="p", model="m", replay_state={"response": 1})
    message = create_assistant_message([], provenance)
    assert message.role == "assistant"
    assert message.source.to_dict() == {
        "kind": "model",
        "provider": "p",
        "model": "m",
        "replayState": {"response": 1},
    }


def test_a_tool_result_message_answers_its_call() -> None:
    message = create_tool_result_message("c", [TextBlock(text="r")], is_error=True)
    assert message.source == ToolMessageSource(call_id="c")
    assert [block.to_dict() for block in message.content] == [
        {
            "type": "tool-result",
            "toolCallId": "c",
            "content": [{"type": "text", "text": "r"}],
            "isError": True,
        }
    ]
    assert create_tool_result_message("c", []).content[0].to_dict()["isError"] is False


def test_messages_are_frozen() -> None:
    message = create_user_message([], UserMessageSource())
    with pytest.raises(ValidationError, match="frozen"):
        message.id = "other"
    with pytest.raises(ValidationError, match="frozen"):
        message.source.kind = "other"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("summary", "bounded"),
    [
        ("", ""),
        ("x" * CONTEXT_SUMMARY_MAX_UNITS, "x" * CONTEXT_SUMMARY_MAX_UNITS),
        ("x" * 121, "x" * 119 + "…"),
        ("\U0001f600" * 60, "\U0001f600" * 60),
        ("\U0001f600" * 61, "\U0001f600" * 59 + "…"),
    ],
    ids=["empty", "fits", "long", "astral-fits", "astral-long"],
)
def test_a_summary_is_bounded_in_utf16_units(summary: str, bounded: str) -> None:
    assert bound_context_summary(summary) == bounded


def test_a_snapshot_is_built_from_its_sections() -> None:
    source = PluginMessageSource(
        plugin="p", form="snapshot", sections=(ContextSnapshotSection(name="n", text="t"),)
    )
    assert Message(id="", role="user", content=(), source=source).id == ""
