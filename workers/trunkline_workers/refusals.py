"""What a provider answers instead of a stream, as a failure without the key in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from trunkline_protocol.failure import LlmError, LlmFailure
from trunkline_protocol.http_failure import http_failure
from trunkline_protocol.redact import redact
from trunkline_protocol.secret import SecretStr

from trunkline_workers.http import HttpResponse

_BODY_BYTES: Final = 256 * 1024


async def refusal(response: HttpResponse) -> LlmFailure:
    """Describe a response that is not 2xx; a body that can't be read never hides the status."""
    return refused(response, await refusal_body(response))


async def refusal_body(response: HttpResponse) -> bytes:
    """Return the beginning of the body of such a response, as far as it can be read."""
    return await response.read_some(_BODY_BYTES)


def refused(response: HttpResponse, body: bytes) -> LlmFailure:
    """Describe a response that is not 2xx whose body was read."""
    now_ms = datetime.now(UTC).timestamp() * 1000
    return http_failure(response.status, response.headers, body, now_ms)


def without_key(exc: LlmError, key: SecretStr | None) -> LlmError:
    """Return the same failure with no key in its text.

    A new error without a cause: the chain of the old one may quote the provider's text.
    """
    failure = exc.failure
    keys = () if key is None else (key.get_secret_value(),)
    request_id = failure.request_id
    return LlmError(
        LlmFailure(
            message=redact(failure.message, keys),
            code=redact(failure.code, keys),
            status=failure.status,
            provider_retry_after_ms=failure.provider_retry_after_ms,
            request_id=request_id if request_id is None else redact(request_id, keys),
        )
    )
