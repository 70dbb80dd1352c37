"""From what an application writes to one validated, packed request.

A message may be a `Message`, a plain map, or a text (one user message); ids and sources that a
plain map leaves out are filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from trunkline_protocol.codec import pack_body, unpack_body
from trunkline_protocol.failure import LocalProtocolError, RemoteProtocolError
from trunkline_protocol.frames import Body
from trunkline_protocol.frozen import nests_deeper
from trunkline_protocol.limits import MAX_BODY_BYTES, MAX_BODY_DEPTH
from trunkline_protocol.messages import Message
from trunkline_protocol.options import GenerateOptions, LlmCallConfig

from trunkline import arguments

if TYPE_CHECKING:  # see `queries`
    from trunkline_protocol.models import LlmModelDiscoveryRequest

MessageLike = Message | Mapping[str, Any] | str
"""One message of a conversation as an application may write it."""

_USER_SOURCE: Final = {"kind": "user"}


def options_from(
    options: GenerateOptions | Mapping[str, Any] | None, fields: Mapping[str, Any]
) -> GenerateOptions:
    """Return the request that `options`, or `fields` alone, describe.

    Args:
        options: whole and final; a map may have camelCase or snake_case keys.
        fields: keyword arguments with the names of `GenerateOptions`; only without `options`.

    Raises:
        LocalProtocolError: both or neither given, or a field is missing or wrong; names it.
    """
    if isinstance(options, GenerateOptions):
        _only(fields)
        return options
    if options is not None:
        _only(fields)
        fields = arguments.mapping("options", options)
    if not fields:
        raise LocalProtocolError("options: a request needs provider, model and messages")
    return _built(fields)


def _only(fields: Mapping[str, Any]) -> None:
    if fields:
        names = ", ".join(fields)
        raise LocalProtocolError(f"{names}: give a whole options value or fields, not both")


def _built(fields: Mapping[str, Any]) -> GenerateOptions:
    values: dict[str, Any] = {key: value for key, value in fields.items() if value is not None}
    provider, model = values.get("provider"), values.get("model")
    messages = values.get("messages")
    if isinstance(messages, str):
        messages = (messages,)
    elif isinstance(messages, Mapping | Message) or not isinstance(messages, Sequence):
        raise LocalProtocolError("messages: a text or a list of messages is required")
    values["messages"] = [
        _message(at, item, provider, model)
        for at, item in enumerate(cast("Sequence[object]", messages))
    ]
    try:
        options = GenerateOptions.from_dict(values)
    except ValueError as exc:
        raise LocalProtocolError(str(exc)) from None  # the cause would show the prompt
    if options.model_extra:
        names = ", ".join(sorted(options.model_extra))
        raise LocalProtocolError(f"{names}: not a field of GenerateOptions")
    return options


def _message(at: int, item: object, provider: object, model: object) -> object:
    if isinstance(item, Message):
        return item
    if isinstance(item, str):
        item = {"role": "user", "content": item}
    if not isinstance(item, Mapping):
        raise LocalProtocolError(f"messages.{at}: a message, a map or a text is required")
    fields = dict(cast("Mapping[str, Any]", item))
    if isinstance(fields.get("content"), str):
        fields["content"] = [{"type": "text", "text": fields["content"]}]
    fields.setdefault("id", str(uuid4()))
    if "source" not in fields:
        is_model = fields.get("role") == "assistant"
        source = {"kind": "model", "provider": provider, "model": model}
        fields["source"] = source if is_model else _USER_SOURCE
    return fields


def config_from(config: LlmCallConfig | Mapping[str, Any]) -> LlmCallConfig:
    """Return a call config.

    Raises:
        LocalProtocolError: a field is missing or wrong; names it.
    """
    if isinstance(config, LlmCallConfig):
        return config
    try:
        return LlmCallConfig.from_dict(arguments.mapping("config", config))
    except ValueError as exc:
        raise LocalProtocolError(str(exc)) from None  # one text says it all


def draft_from(draft: LlmModelDiscoveryRequest | Mapping[str, Any]) -> LlmModelDiscoveryRequest:
    """Return what a model discovery is asked.

    Raises:
        LocalProtocolError: a field is wrong; names it and never shows it.
    """
    from trunkline_protocol.models import LlmModelDiscoveryRequest

    if isinstance(draft, LlmModelDiscoveryRequest):
        return draft
    try:
        return LlmModelDiscoveryRequest.from_dict(arguments.mapping("draft", draft))
    except ValueError as exc:
        raise LocalProtocolError(str(exc)) from None  # one text says it all


def packed_argument(op: str, argument: object) -> bytes:
    """Return the body of a question.

    Raises:
        LocalProtocolError: no MessagePack form, too deep or too large; names the key.
    """
    if argument is None:
        return b""
    entries = _entries(argument)
    if nests_deeper(argument, MAX_BODY_DEPTH):
        deep = (key for key in entries if nests_deeper(entries[key], MAX_BODY_DEPTH - 1))
        raise LocalProtocolError(f"{next(deep, op)}: nested deeper than {MAX_BODY_DEPTH} levels")
    try:
        body = pack_body(argument)
    except (TypeError, ValueError, OverflowError):
        bad = next((key for key in entries if not _has_form(entries[key])), op)
        raise LocalProtocolError(f"{bad}: the value has no MessagePack form") from None
    if len(body) > MAX_BODY_BYTES:
        largest = max(entries, key=lambda key: len(pack_body(entries[key])), default=op)
        raise LocalProtocolError(
            f"{largest}: the question has {len(body)} bytes, at most {MAX_BODY_BYTES} are allowed"
        )
    return body


def prepared_lease(op: str, answer: Body) -> bytes | None:
    """Return the lease that an answer to a query grants; `None` for any other answer."""
    if op != "prepareCall":
        return None
    try:
        fields: object = unpack_body(answer)
    except RemoteProtocolError:
        return None
    lease = cast("dict[str, object]", fields).get("lease") if isinstance(fields, dict) else None
    return lease if isinstance(lease, bytes) else None


def _entries(argument: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", argument) if isinstance(argument, dict) else {}


def _has_form(value: object) -> bool:
    try:
        pack_body(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
