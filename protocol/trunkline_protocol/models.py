"""What is known of providers and models: display data, capabilities, directory, discovery."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trunkline_protocol.wire_model import WireModel

ModelModality = Literal["text", "image"]


class LlmProviderInfo(WireModel):
    """Display data of one registered route."""

    id: str
    name: str


class LlmModelInfo(WireModel):
    """One model an adapter advertises; advisory, never a whitelist.

    Attributes:
        provider: route that owns the entry.
        id: passed as `GenerateOptions.model`.
        name: for selectors.
        description: what tells it from similar models.
        input_modalities: absent: unknown; a missing one is a negative capability.
    """

    provider: str
    id: str
    name: str
    description: str | None = None
    input_modalities: tuple[ModelModality, ...] | None = None


class LlmModelContext(WireModel):
    """Capacity of one exact route and model, in tokens, request and response together."""

    context_window: int


class LlmReasoningEffortInfo(WireModel):
    """One selectable reasoning effort."""

    id: str
    name: str
    description: str | None = None


class LlmModelReasoningInfo(WireModel):
    """The reasoning efforts of one model in preferred order."""

    efforts: tuple[LlmReasoningEffortInfo, ...]
    default_effort: str | None = None


class LlmResolvedModelInfo(LlmModelInfo):
    """Everything its owner knows of one exact model."""

    context: LlmModelContext | None = None
    default_max_tokens: int | None = None
    reasoning: LlmModelReasoningInfo | None = None


class LlmConfigurableProvider(WireModel):
    """A route that a plugin can activate through configuration."""

    provider: str
    display_name: str
    settings_ns: str
    settings_path: tuple[str, ...]
    declared: bool | None = None


class LlmModelDiscoveryRequest(WireModel):
    """One interrogation of an endpoint that no configuration has stored yet.

    Attributes:
        provider: route the draft edits, if any.
        base_url: endpoint to ask.
        api: protocol it speaks.
        api_key: for this one interrogation; stored nowhere.
    """

    provider: str | None = None
    base_url: str | None = Field(default=None, alias="baseURL")
    api: str | None = None
    api_key: str | None = Field(default=None, repr=False)


class LlmDiscoveredModel(WireModel):
    """One model an endpoint reports; most disclose nothing but the id."""

    id: str
    name: str | None = None
    context_window: int | None = None
    max_tokens: int | None = None
