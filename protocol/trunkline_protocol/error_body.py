"""What an error body says, whatever its shape: the texts, a status inside it, a delay.

Read are `{"error": {…}}`, `{"error": "text"}`, top-level `message`, `detail` (also FastAPI's list)
and `reason`, any of these in a list of one, JSON followed by other text, and text that is no JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from trunkline_protocol.classify import error_detail
from trunkline_protocol.failure import is_status
from trunkline_protocol.retry_after import duration_ms, text_delay_ms

MESSAGE_MAX_CHARS: Final = 2_000  # for people; a whole HTML page helps nobody
_MESSAGE_KEYS: Final = ("message", "detail", "reason", "error_description")
_MARKUP: Final = re.compile(r"\s*<")


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The facts of one error body.

    Attributes:
        message: for people, bounded; empty if there is none.
        detail: every text, joined for the classifier.
        names: code and type, for a classifier that knows them.
        status: an HTTP status that stands inside the body.
        retry_after_ms: a delay that the body asks for.
        is_validation: FastAPI's way to refuse a request.
    """

    message: str = ""
    detail: str = ""
    names: tuple[str, ...] = ()
    status: int | None = None
    retry_after_ms: float | None = None
    is_validation: bool = False


def parse_error_body(body: bytes | str) -> ErrorBody:
    """Read the body of an error response; any bytes give an answer."""
    text = body if isinstance(body, str) else body.decode("utf-8", "replace")
    text = text.removeprefix("\ufeff").strip()
    try:
        # More text may follow the JSON (seen in the field); NaN and its like are no JSON.
        value, _ = json.JSONDecoder(parse_constant=_no_constant).raw_decode(text)
    except (ValueError, RecursionError):
        return _from_text(text)
    return read_error(value)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _from_text(text: str) -> ErrorBody:
    """Take a body that is no JSON as the message; markup says nothing about the cause."""
    if _MARKUP.match(text):
        return ErrorBody(message=_bounded(text))
    return ErrorBody(
        message=_bounded(text), detail=_bounded(text), retry_after_ms=text_delay_ms(text)
    )


def read_error(value: object) -> ErrorBody:
    """Read a decoded error body, or an error that came inside a stream."""
    if isinstance(value, list) and len(cast("list[object]", value)) == 1:  # Gemini wraps it
        value = cast("list[object]", value)[0]
    if not isinstance(value, Mapping):
        return _from_text(value) if isinstance(value, str) else ErrorBody()
    outer = cast("Mapping[str, object]", value)
    inner = outer.get("error")
    if isinstance(inner, Mapping):
        return _from_fields(cast("Mapping[str, object]", inner), outer)
    if isinstance(inner, str) and inner:
        return _from_fields({**outer, "message": inner}, outer)
    return _from_fields(outer, outer)


def _from_fields(fields: Mapping[str, object], outer: Mapping[str, object]) -> ErrorBody:
    message = _message(fields)
    code, kind = fields.get("code"), fields.get("type") or fields.get("status")
    names = tuple(name for name in (code, kind, fields.get("error_code")) if isinstance(name, str))
    # One level of the error that a gateway passes on, as OpenRouter's metadata.raw.
    nested = fields.get("metadata")
    raw = cast("Mapping[str, object]", nested).get("raw") if isinstance(nested, Mapping) else None
    extra = raw if isinstance(raw, str) else ""
    return ErrorBody(
        message=_bounded(message),
        detail=_bounded(error_detail(_scalar(code), _scalar(kind), message, extra), 4),
        names=names,
        status=_status(fields),
        retry_after_ms=_retry_info_ms(fields) or text_delay_ms(message),
        is_validation="detail" in outer and "error" not in outer,
    )


def _message(fields: Mapping[str, object]) -> str:
    """Find the text for people; what is no text is shown as JSON."""
    for key in _MESSAGE_KEYS:
        value = fields.get(key)
        if isinstance(value, str) and value:
            return value
        if value:
            return _as_text(value)
    return ""


def _as_text(value: object) -> str:
    """Render a message that is no text; FastAPI's list gives its `msg` texts."""
    if isinstance(value, list):
        entries = cast("list[object]", value)
        texts = [
            cast("Mapping[str, object]", each).get("msg") if isinstance(each, Mapping) else each
            for each in entries
        ]
        if all(isinstance(text, str) for text in texts):
            return "; ".join(cast("list[str]", texts))
    return json.dumps(value, ensure_ascii=False)


def _scalar(value: object) -> object:
    """Keep what can stand in a sentence."""
    return value if isinstance(value, str | int | float) else None


def _status(fields: Mapping[str, object]) -> int | None:
    """Find an HTTP status in `code` or `status`, as a number or its digits."""
    for key in ("code", "status"):
        value = fields.get(key)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
            value = int(value)
        if is_status(value):
            return value
    return None


def _retry_info_ms(fields: Mapping[str, object]) -> float | None:
    """Find the `retryDelay` of a google.rpc.RetryInfo among the details."""
    details = fields.get("details")
    if not isinstance(details, list):
        return None
    for each in cast("list[object]", details):
        if isinstance(each, Mapping):
            delay = cast("Mapping[str, object]", each).get("retryDelay")
            if isinstance(delay, str):
                return duration_ms(delay)
    return None


def _bounded(text: str, factor: int = 1) -> str:
    return text[: MESSAGE_MAX_CHARS * factor]
