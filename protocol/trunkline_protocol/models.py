"""What is known of providers and models: display data, capabilities, directory, discovery."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trunkline_protocol.wire_model import Flag, Integer, Number, Text, WireModel

ModelModality = Literal["text", "image"]


class LlmProviderInfo(WireModel):
    """Display data of one registered route."""

    id: Text
    name: Text


class LlmModelInfo(WireModel):
    """One model an adapter advertises; advisory, never a whitelist.

    Attributes:
        provider: route that owns the entry.
        id: passed as `GenerateOptions.model`.
        name: for selectors.
        description: what tells it from similar models.
        input_modalities: absent: unknown; a missing one is a negative capability.
    """

    provider: Text
    id: Text
    name: Text
    description: Text | None = None
    input_modalities: tuple[ModelModality, ...] | None = None


class LlmModelContext(WireModel):
    """Capacity of one exact route and model, in tokens, request and response together."""

    context_window: Integer


class LlmReasoningEffortInfo(WireModel):
    """One selectable reasoning effort."""

    id: Text
    name: Text
    description: Text | None = None


class LlmModelReasoningInfo(WireModel):
    """The reasoning efforts of one model in preferred order."""

    efforts: tuple[LlmReasoningEffortInfo, ...]
    default_effort: Text | None = None


class LlmResolvedModelInfo(LlmModelInfo):
    """Everything its owner knows of one exact model."""

    context: LlmModelContext | None = None
    default_max_tokens: Integer | None = None
    reasoning: LlmModelReasoningInfo | None = None


class LlmConfigurableProvider(WireModel):
    """A route that a plugin can activate through configuration."""

    provider: Text
    display_name: Text
    settings_ns: Text
    settings_path: tuple[Text, ...]
    declared: Flag | None = None


class LlmModelDiscoveryRequest(WireModel):
    """One interrogation of an endpoint that no configuration has stored yet.

    Attributes:
        provider: route the draft edits, if any.
        base_url: endpoint to ask.
        api: protocol it speaks.
        api_key: for this one interrogation; stored nowhere.
    """

    provider: Text | None = None
    base_url: Text | None = Field(default=None, alias="baseURL")
    api: Text | None = None
    api_key: Text | None = Field(default=None, repr=False)


class LlmDiscoveredModel(WireModel):
    """One model an endpoint reports; most disclose nothing but the id."""

    id: Text
    name: Text | None = None
    context_window: Number | None = None
    max_tokens: Number | None = None
