"""A response that is not 2xx, or an error inside a stream, → one `LlmFailure`.

One classifier serves both (`classify`); a body that can't be read never hides the status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trunkline_protocol.classify import has_reset_signal, http_error_code, in_band_error_code
from trunkline_protocol.codes import Code
from trunkline_protocol.error_body import ErrorBody, parse_error_body, read_error
from trunkline_protocol.failure import LlmFailure, is_status
from trunkline_protocol.limits import MAX_PAUSE_S
from trunkline_protocol.retry_after import header_delay_ms, rate_limit_reset_ms

_MOST_MS: Final = int(MAX_PAUSE_S * 1000)
# The first header that is there decides, even if it is empty.
_REQUEST_ID_HEADERS: Final = (
    "x-request-id",
    "x-deepseek-request-id",
    "request-id",  # Anthropic
    "x-amzn-requestid",
    "apim-request-id",  # Azure
)


def http_failure(
    status: int, headers: Mapping[str, str], body: bytes | str, now_ms: float
) -> LlmFailure:
    """Describe a response that is not 2xx.

    Args:
        status: of the response.
        headers: in any case of letters.
        body: as received, or the part of it that was read.
        now_ms: wall clock, milliseconds since 1970. A `Retry-After` that is a date is measured
            from the response's own `Date`, and from this clock only where there is none.

    Returns:
        The failure; `code` comes from the status unless the body says more. A wait of more than
        `MAX_PAUSE_S` is cut to that, and the message says what was asked for.
    """
    lowered = {name.lower(): value for name, value in headers.items()}
    error = parse_error_body(body)
    delay_ms = header_delay_ms(lowered, now_ms) or error.retry_after_ms
    code = _http_code(status, error, will_reset=delay_ms is not None)
    if delay_ms is None and code == Code.RATE_LIMIT:
        delay_ms = rate_limit_reset_ms(lowered, now_ms)
    return LlmFailure(
        message=_with_wait(error.message or f"the provider answered HTTP {status}", delay_ms),
        code=code,
        status=status if is_status(status) else None,
        provider_retry_after_ms=_bounded_ms(delay_ms),
        request_id=request_id(lowered),
    )


def _http_code(status: int, error: ErrorBody, *, will_reset: bool) -> str:
    if status == 422 and error.is_validation:
        return Code.INVALID_REQUEST
    return http_error_code(status, error.detail, will_reset=will_reset)


def request_id(headers: Mapping[str, str]) -> str | None:
    """Find the provider's id of a request; names in lower case."""
    for name in _REQUEST_ID_HEADERS:
        if name in headers:
            return headers[name] or None
    return None


def in_band_failure(payload: object, request_id: str | None = None) -> LlmFailure:
    """Describe an error that came inside a stream that had begun with 200.

    Args:
        payload: the decoded event, with its `error`.
        request_id: of the response.

    Returns:
        The failure; a status that stands inside the error counts like one of HTTP.
    """
    error = read_error(payload)
    if error.status is None:
        code = in_band_error_code(error.detail, *error.names)
    else:
        will_reset = error.retry_after_ms is not None or has_reset_signal(error.detail)
        code = http_error_code(error.status, error.detail, will_reset=will_reset)
    return LlmFailure(
        message=_with_wait(
            error.message or "the provider ended the stream with an error", error.retry_after_ms
        ),
        code=code,
        status=error.status,
        provider_retry_after_ms=_bounded_ms(error.retry_after_ms),
        request_id=request_id or None,
    )


def _bounded_ms(delay_ms: float | None) -> float | None:
    return None if delay_ms is None else min(delay_ms, _MOST_MS)


def _with_wait(message: str, delay_ms: float | None) -> str:
    """Say what a provider asked for where that is longer than anybody waits."""
    if delay_ms is None or delay_ms <= _MOST_MS:
        return message
    return f"{message} (the provider asked to wait {delay_ms / 1000:.10g} s; {MAX_PAUSE_S:g} count)"
