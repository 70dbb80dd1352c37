"""What the library raises → one `LlmFailure`, by the law that all adapters share.

The facts of the wire win over the library's view of them. Its exceptions are known by their fields,
not by their types, so nothing of it is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import msgspec
from trunkline_protocol.failure import Code, LlmFailure
from trunkline_protocol.http_failure import in_band_failure

from trunkline_workers.adapters.pydantic_ai.exchange import Exchange

_SHOWN: Final = 200  # bytes of an unusable body, or characters of a text, that the failure quotes
_CAUSES_MAX: Final = 8
_NO_EVENTS: Final = frozenset({b"{", b"[", b"<"})
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


def failure_of(raised: Exception, exchange: Exchange) -> LlmFailure:
    """Describe the end of a call that raised.

    Args:
        raised: by the library or by the SDK under it.
        exchange: of the call.
    """
    if exchange.failure is not None:
        return exchange.failure
    if exchange.requests == 0:
        return _unsent(raised)
    if _is_no_stream(exchange):
        return _unreadable(str(raised), exchange)
    if hasattr(raised, "provider_error_code"):  # the library's own class of provider errors
        return _reported(raised, exchange)
    return _unreadable(repr(raised), exchange)


def cut_short(failure: LlmFailure, exchange: Exchange) -> LlmFailure:
    """Describe a body that ended too early; an error instead of a stream shows as it is."""
    head = exchange.head.lstrip()
    if head[:1] == b"{":
        try:
            tree: object = msgspec.json.decode(head)
        except ValueError:
            return failure
        if isinstance(tree, dict) and "error" in tree:
            return in_band_failure(cast("dict[str, object]", tree), exchange.request_id)
    if _is_no_stream(exchange):
        shown = " ".join(head[:_SHOWN].decode(errors="replace").split())
        text = f"the provider answered with no event stream: {shown}"
        return LlmFailure(text, Code.MALFORMED_RESPONSE, request_id=exchange.request_id)
    return failure


def _is_no_stream(exchange: Exchange) -> bool:
    """Tell whether a body began like JSON or a web page."""
    return exchange.head.lstrip()[:1] in _NO_EVENTS


def _unsent(raised: Exception) -> LlmFailure:
    """Describe a request that the library would not make."""
    is_refused = type(raised).__name__ == "UserError" or isinstance(raised, NotImplementedError)
    code = Code.UNSUPPORTED if is_refused else Code.INVALID_REQUEST
    return LlmFailure(f"the request could not be built: {raised}", code)


def _reported(raised: Exception, exchange: Exchange) -> LlmFailure:
    """Describe an error that came inside a stream which had begun with 200."""
    fields = vars(raised)
    body: object = fields.get("body")
    if isinstance(body, Mapping) and "error" in body:
        return in_band_failure(cast("dict[str, object]", body), exchange.request_id)
    if _is_unreadable(raised):
        return _unreadable(str(raised), exchange)
    inner: Mapping[str, object] = {}
    if isinstance(body, Mapping):
        inner = cast("Mapping[str, object]", body)
    said = {
        "message": str(raised),
        "code": fields.get("provider_error_code"),
        "type": fields.get("provider_error_type"),
        **inner,
    }
    shown = {key: value for key, value in said.items() if value is not None}
    return in_band_failure({"error": shown}, exchange.request_id)


def _is_unreadable(raised: BaseException) -> bool:
    """Tell whether JSON that is none, or of another shape than expected, is behind an error."""
    cause = raised.__cause__
    for _ in range(_CAUSES_MAX):
        if cause is None or isinstance(cause, ValueError):
            return cause is not None
        cause = cause.__cause__
    return False


def _last_error(exchange: Exchange) -> LlmFailure | None:
    """Return the error that the last event on the wire holds, though the SDK expected none."""
    _, found, data = exchange.tail.rpartition(b"data:")
    if not found:
        return None
    try:
        tree: object = msgspec.json.decode(data.partition(b"\n")[0])
    except ValueError:
        return None
    if not isinstance(tree, dict) or not cast("dict[str, object]", tree).get("error"):
        return None
    return in_band_failure(cast("dict[str, object]", tree), exchange.request_id)


def _unreadable(what: str, exchange: Exchange) -> LlmFailure:
    said = _last_error(exchange)
    if said is not None:
        return said
    # The first line: what follows it in texts of pydantic is the content that was read.
    first = what.partition("\n")[0][:_SHOWN]
    text, code = f"the response could not be read: {first}", Code.MALFORMED_RESPONSE
    if exchange.has_ended and not exchange.head.strip():
        text, code = "the provider answered without a body", Code.STREAM_CLOSED
    elif exchange.has_ended and not exchange.tail.endswith(_EVENT_ENDS):
        text, code = "the stream ended in the middle of an event", Code.STREAM_CLOSED
    return cut_short(LlmFailure(text, code, request_id=exchange.request_id), exchange)
