"""The request of one model call and the part of it that is a conversation's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]  # it ships none

from trunkline_protocol.failure import LocalProtocolError, RemoteProtocolError
from trunkline_protocol.frozen import nests_deeper
from trunkline_protocol.limits import MAX_BODY_BYTES, MAX_BODY_DEPTH
from trunkline_protocol.messages import Message
from trunkline_protocol.wire_model import Integer, JsonValue, Number, Text, WireModel

_packb = cast("Callable[..., bytes]", msgpack.packb)
_unpackb = cast("Callable[..., Any]", msgpack.unpackb)
_FIELD_DEPTH: Final = MAX_BODY_DEPTH - 1  # the request itself is one level


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

    def call_config(self) -> LlmCallConfig:
        """Return the part that a prepared call is bound to."""
        return LlmCallConfig(
            provider=self.provider,
            model=self.model,
            reasoning_effort=self.reasoning_effort,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            stop=self.stop,
        )


_CONFIG_KEYS: Final = ("provider", "model", "reasoningEffort", "temperature", "maxTokens", "stop")


def call_config_equals(
    a: LlmCallConfig | Mapping[str, object], b: LlmCallConfig | Mapping[str, object]
) -> bool:
    """Tell whether two configs are the same in every declared field, `stop` item by item.

    A model's `None` is an absent field. In a plain map a key that holds null is not absent.
    """
    left, right = _config_fields(a), _config_fields(b)
    return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)


def _config_fields(config: LlmCallConfig | Mapping[str, object]) -> dict[str, object]:
    fields = config.to_dict() if isinstance(config, LlmCallConfig) else config
    return {key: fields[key] for key in _CONFIG_KEYS if key in fields}


def _same(a: object, b: object) -> bool:
    """Compare as JSON does: a truth value is no number."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def options_to_wire(options: GenerateOptions) -> bytes:
    """Encode a request as the body of `OPEN`: order and content stay exactly as they are.

    Raises:
        LocalProtocolError: too large, too deep, or a value MessagePack has no form for; names the
            field.
    """
    fields = _plain_fields(options)
    try:
        body = _pack(fields)
    except (TypeError, ValueError, OverflowError):
        raise LocalProtocolError(_unserializable(fields)) from None  # the cause shows the value
    if len(body) > MAX_BODY_BYTES:
        sizes = {key: len(_pack(value)) for key, value in fields.items()}
        largest = max(sizes, key=lambda key: sizes[key])
        raise LocalProtocolError(
            f"{largest}: the request has {len(body)} bytes, at most {MAX_BODY_BYTES} are allowed"
        )
    return body


def _plain_fields(options: GenerateOptions) -> dict[str, object]:
    """Return the map of a request, or name the field in it that no worker could walk."""
    try:
        fields = options.to_dict()
    except (ValueError, RecursionError):  # of values that no validation has seen
        raise LocalProtocolError(_too_deep("options")) from None
    for key, value in fields.items():
        if nests_deeper(value, _FIELD_DEPTH):
            items = cast("list[object]", value) if isinstance(value, list) else []
            deep = (n for n, item in enumerate(items) if nests_deeper(item, _FIELD_DEPTH - 1))
            number = next(deep, None)
            raise LocalProtocolError(_too_deep(key if number is None else f"{key}.{number}"))
    return fields


def _too_deep(where: str) -> str:
    return f"{where}: nested deeper than {MAX_BODY_DEPTH} levels"


def _pack(value: object) -> bytes:
    # A lone surrogate is legal in JSON texts of models and must not end a conversation.
    return _packb(value, unicode_errors="surrogatepass")


def _unserializable(fields: Mapping[str, object]) -> str:
    """Name the first field, and the item of a list, that has no MessagePack form."""
    for key, value in fields.items():
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        for number, item in enumerate(items):
            try:
                _pack(item)
            except (TypeError, ValueError, OverflowError) as exc:
                where = f"{key}.{number}" if isinstance(value, list) else key
                return f"{where}: {type(exc).__name__}, the value has no MessagePack form"
    raise AssertionError("every item can be packed, so the whole can")


def options_from_wire(body: bytes) -> GenerateOptions:
    """Decode the body of `OPEN`.

    Raises:
        RemoteProtocolError: no such request, or larger than `MAX_BODY_BYTES`; names the field.
    """
    if len(body) > MAX_BODY_BYTES:
        raise RemoteProtocolError("request too large", "FRAME_TOO_LARGE")
    try:
        fields = _unpackb(body, unicode_errors="surrogatepass", strict_map_key=True)
    # Whatever msgpack raises, the bytes are bad: its own exceptions share no base class.
    except Exception as exc:
        raise RemoteProtocolError("request: not one MessagePack value", "BAD_FRAME") from exc
    if not isinstance(fields, dict):
        raise RemoteProtocolError("request: not a map", "BAD_FRAME")
    try:
        return GenerateOptions.from_dict(cast("dict[str, object]", fields))
    except ValueError as exc:
        raise RemoteProtocolError(f"request: {exc}", "BAD_FRAME") from None
