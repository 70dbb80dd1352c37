"""What a chat-completions provider sends, as types; decoding that never fails on an extra.

Nearly every payload takes the typed msgspec path. Whatever does not fit the types (content as a
list of parts, an index that is text, a number where text belongs) is decoded untyped and read into
the same types by `read_untyped`, so the translator sees one shape. This file knows no blocks and
keeps no state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, NoReturn, cast

import msgspec

from trunkline_workers.core.values import has_more_values

MAX_DEPTH: Final = 64  # nesting kept of a payload that is too deep for the decoder
VALUES_MAX: Final = 100_000  # of one payload; they take a tenth of a second
_TOKENS_MAX: Final = 4 * VALUES_MAX  # a key, a value and its brackets
_MESSAGE_SHOWN: Final = 200  # characters of a bad payload that an error quotes


class MalformedPayloadError(ValueError):
    """A payload is no JSON object, or not one of this API."""


class WholeArguments(str):
    """Tool arguments that came as a JSON value instead of text, as compact JSON."""

    __slots__ = ()


class ToolFunction(msgspec.Struct, gc=False):
    """Name and a piece of the arguments of a tool call."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct, gc=False):
    """A piece of a tool call; providers leave out or repeat each of the fields."""

    index: int | None = None
    id: str | None = None
    function: ToolFunction | None = None
    extra_content: object = None


class Delta(msgspec.Struct, gc=False):
    """What one chunk adds; the reasoning comes under one of three names."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_details: object = None
    function_call: object = None
    usage: dict[str, object] | None = None


class Choice(msgspec.Struct, gc=False):
    """One choice of a chunk."""

    delta: Delta | None = None
    finish_reason: str | None = None
    usage: dict[str, object] | None = None
    error: object = None
    message: object = None
    text: object = None
    is_whole: bool = False  # `delta` holds the whole answer and no piece of it


class Chunk(msgspec.Struct, gc=False):
    """One payload; `error` is what the provider calls an error, whatever its shape."""

    choices: list[Choice] | None = None
    usage: dict[str, object] | None = None
    error: object = None
    x_groq: object = None


_typed: Final = msgspec.json.Decoder(Chunk).decode


def decode(payload: bytes, *, lenient: bool = True) -> Chunk:
    """Decode one payload.

    Args:
        payload: the data of one event.
        lenient: also read the shapes outside the documented API: content parts, refusals, a
            `message` in place of a `delta`.

    Raises:
        MalformedPayloadError: no JSON, a value that can't be a chunk, or too many values.
    """
    if len(payload) > VALUES_MAX and has_more_values(payload, VALUES_MAX):
        raise MalformedPayloadError(f"a payload of more than {VALUES_MAX} values")
    try:
        chunk = _typed(payload)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return read_untyped(decode_untyped(payload, lenient=lenient), lenient=lenient)
    choices = chunk.choices
    if choices is None:
        if chunk.usage is None or chunk.error is not None:
            return read_untyped(decode_untyped(payload, lenient=lenient), lenient=lenient)
    elif lenient and choices and _is_odd(choices[0]):
        return read_untyped(decode_untyped(payload, lenient=True), lenient=True)
    return chunk


def _is_odd(choice: Choice) -> bool:
    """Tell whether a choice needs the untyped reader although it fits the types."""
    delta = choice.delta
    if delta is None:
        return choice.message is not None or choice.text is not None
    return delta.function_call is not None


# --- the untyped reader -----------------------------------------------------------------------


def _no_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is no JSON")


_strict: Final = json.JSONDecoder(parse_constant=_no_constant).decode
# Python's servers write NaN and Infinity into logprobs.
_lenient: Final = json.JSONDecoder(parse_constant=lambda _: None, strict=False).decode


def decode_untyped(payload: bytes, *, lenient: bool = False) -> object:
    """Decode a payload to plain values.

    Lone surrogates in escapes are kept; bytes that are no UTF-8 become U+FFFD, as everywhere on
    the web.

    Args:
        payload: the data of one event.
        lenient: NaN and its like become null, and texts may hold control characters.

    Raises:
        MalformedPayloadError: not JSON.
    """
    loads: Callable[[str], object] = _lenient if lenient else _strict
    try:
        text = payload.decode(errors="replace")
        try:
            return loads(text)
        except RecursionError:
            return loads(_shallow(text))
    except (ValueError, RecursionError) as exc:
        shown = payload[:_MESSAGE_SHOWN].decode(errors="replace")
        raise MalformedPayloadError(f"not a JSON payload: {shown}") from exc


_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def _shallow(text: str) -> str:
    """Replace what is nested deeper than `MAX_DEPTH` by null; linear in the text."""
    out: list[str] = []
    depth, kept_to = 0, 0
    for count, token in enumerate(_TOKEN.finditer(text)):
        if count > _TOKENS_MAX or depth < 0:
            raise ValueError("too many texts and brackets")
        mark = token[0]
        if mark in "[{":
            depth += 1
            if depth == MAX_DEPTH:
                out += (text[kept_to : token.start()], "null")
        elif mark in "]}":
            if depth == MAX_DEPTH:
                kept_to = token.end()
            depth -= 1
    if depth:
        raise ValueError("brackets are not closed")
    return "".join((*out, text[kept_to:]))


def read_untyped(value: object, *, lenient: bool = True) -> Chunk:
    """Read a decoded value as a chunk, taking every shape that is known to occur.

    Raises:
        MalformedPayloadError: the value can't be a chunk.
    """
    if not isinstance(value, dict):
        return Chunk(error=_listed_error(value))
    data = cast("dict[str, object]", value)
    choices, error = data.get("choices"), find_error(data)
    chunk = Chunk(usage=_map(data.get("usage")), error=error, x_groq=data.get("x_groq"))
    if choices is None:
        return chunk
    if not isinstance(choices, list):
        raise MalformedPayloadError(f"choices: a list is required, not {_kind(choices)}")
    chunk.choices = [_choice(item, lenient=lenient) for item in cast("list[object]", choices)]
    return chunk


def _listed_error(value: object) -> object:
    """Return the error in a list of one, as Gemini sends it.

    Raises:
        MalformedPayloadError: it is anything else.
    """
    if isinstance(value, list) and value:
        item = cast("list[object]", value)[0]
        if isinstance(item, dict) and (error := find_error(cast("dict[str, object]", item))):
            return error
    kind = _kind(cast("object", value))
    raise MalformedPayloadError(f"a JSON object is required, not {kind}")


_SIGNS: Final = ("code", "error_code", "status_code", "statusCode")


def find_error(data: dict[str, object]) -> object:
    """Return what a payload says went wrong, or `None`.

    Besides `error` itself: vLLM's `{"object": "error", "message": …}`, FastAPI's `detail`,
    MiniMax's `base_resp`, and a `message` with a code in a payload that has neither choices nor
    usage.
    """
    error = data.get("error")
    if error:
        return error
    if data.get("object") == "error" or data.get("type") == "error":
        return data
    if data.get("choices") is not None or data.get("usage") is not None:
        return None
    if data.get("detail") or data.get("errors"):
        return data
    base = data.get("base_resp")
    if isinstance(base, dict) and (code := cast("dict[str, object]", base).get("status_code")):
        return {"code": code, "message": cast("dict[str, object]", base).get("status_msg")}
    return data if data.get("message") and any(data.get(key) for key in _SIGNS) else None


def _choice(value: object, *, lenient: bool) -> Choice:
    if not isinstance(value, dict):
        raise MalformedPayloadError(f"choices: an object is required, not {_kind(value)}")
    data = cast("dict[str, object]", value)
    raw = data.get("delta")
    is_whole = lenient and not raw and bool(data.get("message"))
    if lenient and not raw:
        raw = data.get("message") or _legacy_text(data)
    delta = None if raw is None else _delta(raw, lenient=lenient)
    return Choice(
        delta=delta,
        finish_reason=_finish_reason(data.get("finish_reason")),
        usage=_map(data.get("usage")),
        error=data.get("error"),
        is_whole=is_whole,
    )


def _legacy_text(data: dict[str, object]) -> object:
    """Return the `text` of a completions choice as a delta."""
    text = data.get("text")
    return {"content": text} if isinstance(text, str) else None


def _finish_reason(value: object) -> str | None:
    """Read a finish reason; SGLang sends an object with a `type`."""
    if isinstance(value, dict):
        value = cast("dict[str, object]", value).get("type")
    return value if isinstance(value, str) else None


def _delta(value: object, *, lenient: bool) -> Delta:
    if not isinstance(value, dict):
        raise MalformedPayloadError(f"delta: an object is required, not {_kind(value)}")
    data = cast("dict[str, object]", value)
    delta = Delta(
        content=_text(data.get("content")),
        reasoning_content=_text(data.get("reasoning_content")),
        reasoning=_text(data.get("reasoning")),
        reasoning_text=_text(data.get("reasoning_text")),
        refusal=_text(data.get("refusal")),
        tool_calls=_tool_calls(data.get("tool_calls")),
        reasoning_details=data.get("reasoning_details"),
        usage=_map(data.get("usage")),
    )
    if lenient:
        if not isinstance(data.get("content"), str):
            _read_parts(data.get("content"), delta)
        if isinstance(data.get("function_call"), dict) and not delta.tool_calls:
            delta.tool_calls = [ToolCall(index=0, function=_function(data["function_call"]))]
    return delta


def _read_parts(content: object, delta: Delta) -> None:
    """Read content that is a list of typed parts (Mistral's thinking, references)."""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in cast("list[object]", content if isinstance(content, list) else [content]):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            item = cast("dict[str, object]", part)
            thought = item.get("thinking", item.get("reasoning"))
            if thought is None:
                texts.append(_part_text(item.get("text", item.get("refusal"))))
            else:
                thoughts.append(_part_text(thought))
    delta.content = "".join(texts) or None
    if thoughts:
        delta.reasoning_content = (delta.reasoning_content or "") + "".join(thoughts)


def _part_text(value: object) -> str:
    """Return the text of a part: itself, or its own parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_part_text, cast("list[object]", value)))
    if isinstance(value, dict):
        item = cast("dict[str, object]", value)
        return _part_text(item.get("text", item.get("value")))
    return ""


def _tool_calls(value: object) -> list[ToolCall] | None:
    if value is None:
        return None
    if isinstance(value, dict):
        return [_tool_call(cast("object", value))]
    if not isinstance(value, list):
        raise MalformedPayloadError(f"tool_calls: a list is required, not {_kind(value)}")
    return [_tool_call(item) for item in cast("list[object]", value)]


def _tool_call(value: object) -> ToolCall:
    if not isinstance(value, dict):
        raise MalformedPayloadError(f"tool_calls: an object is required, not {_kind(value)}")
    data = cast("dict[str, object]", value)
    call_id = data.get("id")
    return ToolCall(
        index=_index(data.get("index")),
        id=str(call_id) if type(call_id) is int else _text(call_id),
        function=_function(data.get("function")),
        extra_content=data.get("extra_content"),
    )


def _function(value: object) -> ToolFunction | None:
    if not isinstance(value, dict):
        return None
    data = cast("dict[str, object]", value)
    arguments = data.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        text = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
        arguments = WholeArguments(text)
    return ToolFunction(name=_text(data.get("name")), arguments=arguments)


def _index(value: object) -> int | None:
    """Read a wire index: a whole number, perhaps as text or float."""
    if isinstance(value, str) and value.isdecimal() and len(value) < MAX_DEPTH:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _map(value: object) -> dict[str, object] | None:
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _kind(value: object) -> str:
    """Name the JSON type of a value."""
    return "null" if value is None else type(value).__name__
