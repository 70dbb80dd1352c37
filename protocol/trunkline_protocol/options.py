"""The request of one model call and the part of it that is a conversation's configuration."""

from __future__ import annotations

from typing import Literal

from trunkline_protocol.messages import Message
from trunkline_protocol.wire_model import Integer, JsonValue, Number, Text, WireModel


class ToolSchema(WireModel):
    """A tool as the model sees it; `parameters` is a JSON Schema object."""

    name: Text
    description: Text
    parameters: JsonValue


class LlmCallConfig(WireModel):
    """Provider, model, reasoning effort and sampling of one conversation's requests."""

    provider: Text
    model: Text
    reasoning_effort: Text | None = None
    temperature: Number | None = None
    max_tokens: Integer | None = None
    stop: tuple[Text, ...] | None = None


class LlmCallConfigAdapterDefaults(WireModel):
    """Which fields of a config an adapter supplied rather than the caller."""

    reasoning_effort: Literal[True] | None = None
    max_tokens: Literal[True] | None = None


class GenerateOptions(WireModel):
    """One model call, fully assembled.

    Attributes:
        provider: route that serves it.
        model: passed through to the adapter.
        messages: the conversation, exactly as the provider sees it after `system`.
        reasoning_effort: an id that the exact model offers.
        system: the system prompt.
        tools: in the order the model sees them.
        temperature: sampling temperature.
        max_tokens: limit of the output.
        stop: texts that end the generation.
        session_id: identity for request routing, hidden from the model.
        purpose: class of an auxiliary call; ordinary conversation leaves it unset.
    """

    provider: Text
    model: Text
    messages: tuple[Message, ...]
    reasoning_effort: Text | None = None
    system: Text | None = None
    tools: tuple[ToolSchema, ...] | None = None
    temperature: Number | None = None
    max_tokens: Integer | None = None
    stop: tuple[Text, ...] | None = None
    session_id: Text | None = None
    purpose: Literal["compaction", "session-title"] | None = None
