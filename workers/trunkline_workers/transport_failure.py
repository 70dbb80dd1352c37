"""Describes what went wrong between a worker and a provider as a failure, with no URL or header.

It knows the exceptions of httpx and aiohttp by their types, and how one package wraps the other's.
"""

from __future__ import annotations

import ssl
from typing import Final

import aiohttp
import httpx
from trunkline_protocol.failure import Code, LlmFailure

_CAUSES_MAX: Final = 8


def transport_failure(exc: Exception) -> LlmFailure:
    """Describe an exception of httpx, or of the socket under it."""
    # httpx-aiohttp reports a connection that broke as ConnectTimeout, so the cause decides.
    cause = exc.__cause__
    is_timeout = not isinstance(cause, aiohttp.ClientError) or isinstance(cause, TimeoutError)
    if (refused := _certificate_error(exc)) is not None:
        return _untrusted(refused)
    if isinstance(exc, httpx.PoolTimeout):
        return LlmFailure("no free connection in this worker", Code.TRANSPORT)
    if isinstance(exc, httpx.TimeoutException) and is_timeout:
        return LlmFailure("the connection to the provider timed out", Code.TIMEOUT)
    if isinstance(exc, httpx.DecodingError):
        return LlmFailure("the answer could not be decompressed", Code.MALFORMED_RESPONSE)
    if isinstance(exc, httpx.UnsupportedProtocol | httpx.InvalidURL | httpx.LocalProtocolError):
        return LlmFailure(f"the request cannot be sent: {exc}", Code.INVALID_REQUEST)
    if isinstance(exc, ValueError) and not isinstance(exc, OSError):
        return LlmFailure(f"the request cannot be sent: {exc}", Code.INVALID_REQUEST)
    # aiohttp's own text of an answer that is no HTTP holds the URL.
    is_answer = isinstance(exc, aiohttp.ClientResponseError)
    kind, said = type(exc).__name__, " ".join((exc.message if is_answer else str(exc)).split())
    return LlmFailure(
        f"the connection to the provider failed: {said or kind} ({kind})", Code.TRANSPORT
    )


def _certificate_error(exc: BaseException) -> ssl.SSLCertVerificationError | None:
    """Return the refusal of a certificate that is behind an exception, if one is."""
    seen: BaseException | None = exc
    for _ in range(_CAUSES_MAX):
        if isinstance(seen, aiohttp.ClientConnectorCertificateError):
            seen = seen.certificate_error  # the outer one is of the same type and has no details
        if seen is None or isinstance(seen, ssl.SSLCertVerificationError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _untrusted(exc: ssl.SSLCertVerificationError) -> LlmFailure:
    """Describe a certificate that this worker does not trust; asking again changes nothing."""
    why = " ".join(str(exc.verify_message).split()) or "no reason given"
    text = (
        f"the provider's TLS certificate is not trusted ({why}); if it is right, name a file with"
        " its authority in SSL_CERT_FILE, and SSL_CERT_FILE in the worker's `env` list"
    )
    return LlmFailure(text, Code.INVALID_ADAPTER)
