"""Messages and where they came from; all values are deep-frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal
from uuid import uuid4

from pydantic import Discriminator, Tag, model_validator

from trunkline_protocol.chunks import is_token_delta as is_token_delta
from trunkline_protocol.content import ContentBlock, ToolResultBlock
from trunkline_protocol.wire_model import JsonValue, Text, WireModel

# A summary stands in one line of a transcript and in the durable log; its inputs have no length.
CONTEXT_SUMMARY_MAX_UNITS: Final = 120


class ContextSnapshotSection(WireModel):
    """One named contribution to a snapshot, in assembly order."""

    name: Text
    text: Text


class UserMessageSource(WireModel):
    """A person wrote it."""

    kind: Literal["user"] = "user"


class PluginMessageSource(WireModel):
    """A plugin produced it, perhaps in one of the context forms.

    Attributes:
        plugin: name of the producer.
        form: what kind of information it is; other forms than the documented ones pass unchanged.
        sections: required by the form `snapshot`.
        summary: required by the form `notice`, one line.
    """

    kind: Literal["plugin"] = "plugin"
    plugin: Text
    form: Text | None = None
    sections: tuple[ContextSnapshotSection, ...] | None = None
    summary: Text | None = None

    @model_validator(mode="after")
    def _form_has_its_fields(self) -> PluginMessageSource:
        if self.form == "snapshot" and self.sections is None:
            raise ValueError("a source of form snapshot needs sections")
        if self.form == "notice" and self.summary is None:
            raise ValueError("a source of form notice needs a summary")
        return self


class AssistantProvenance(WireModel):
    """Who produced an assistant message.

    Attributes:
        provider: route that served it.
        model: model id that was asked.
        replay_state: lossless-JSON state, private to the adapter that produced it.
    """

    provider: Text
    model: Text
    replay_state: JsonValue = None


class ModelMessageSource(AssistantProvenance):
    """A model produced it."""

    kind: Literal["model"] = "model"


class ToolMessageSource(WireModel):
    """A tool call produced it."""

    kind: Literal["tool"] = "tool"
    call_id: Text


class UnknownMessageSource(WireModel):
    """A source kind this version does not know; its keys are in `model_extra`."""

    kind: Text


_KINDS: Final = frozenset({"user", "plugin", "model", "tool"})


def _tag(value: object) -> str:
    """Choose the model of a source by its `kind`."""
    kind: object = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return kind if isinstance(kind, str) and kind in _KINDS else "unknown"


MessageSource = Annotated[
    Annotated[UserMessageSource, Tag("user")]
    | Annotated[PluginMessageSource, Tag("plugin")]
    | Annotated[ModelMessageSource, Tag("model")]
    | Annotated[ToolMessageSource, Tag("tool")]
    | Annotated[UnknownMessageSource, Tag("unknown")],
    Discriminator(_tag),
]


class Message(WireModel):
    """One identified, immutable turn of a conversation."""

    id: Text
    role: Literal["system", "user", "assistant"]
    content: tuple[ContentBlock, ...]
    source: MessageSource


def _fresh_id() -> str:
    """Draw a message id.

    The one place of the vocabulary that draws randomness: an id is the identity of a message
    across every process, nothing is decided by its value, and a caller that forgot to pass one
    would give two messages the same identity.
    """
    return str(uuid4())


def create_message(
    role: Literal["system", "user", "assistant"],
    content: Sequence[ContentBlock],
    source: MessageSource,
) -> Message:
    """Return a new message with a fresh id."""
    return Message(id=_fresh_id(), role=role, content=tuple(content), source=source)


def create_user_message(content: Sequence[ContentBlock], source: MessageSource) -> Message:
    """Return a new user message with a fresh id."""
    return create_message("user", content, source)


def create_assistant_message(
    content: Sequence[ContentBlock], source: AssistantProvenance
) -> Message:
    """Return a new assistant message with a fresh id, produced by the model that `source` names."""
    named = ModelMessageSource.from_dict({**source.to_dict(), "kind": "model"})
    return create_message("assistant", content, named)


def create_tool_result_message(
    call_id: str, content: Sequence[ContentBlock], *, is_error: bool = False
) -> Message:
    """Return a new user message that answers the tool call `call_id`."""
    block = ToolResultBlock(tool_call_id=call_id, content=tuple(content), is_error=is_error)
    return create_message("user", (block,), ToolMessageSource(call_id=call_id))


def freeze_message(data: Mapping[str, object]) -> Message:
    """Return a detached, deep-frozen message that keeps its identity and its unknown keys.

    Raises:
        ValueError: a field is missing or wrong; the text names it.
    """
    return Message.from_dict(data)


def bound_context_summary(summary: str) -> str:
    """Cut the summary of a `notice` to `CONTEXT_SUMMARY_MAX_UNITS`, ending in an ellipsis then.

    The bound counts UTF-16 units, as the pinned values do; a character outside the basic plane has
    two and is never split.
    """
    encoded = summary.encode("utf-16-le", "surrogatepass")  # two bytes for each unit
    if len(encoded) <= 2 * CONTEXT_SUMMARY_MAX_UNITS:
        return summary
    kept = encoded[: 2 * (CONTEXT_SUMMARY_MAX_UNITS - 1)]  # one unit for the ellipsis
    return kept.decode("utf-16-le", "ignore") + "\u2026"  # half a character at the end goes
