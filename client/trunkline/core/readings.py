"""Reads control frames as values of the client; a wrong one becomes a failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from trunkline_protocol.failure import Code, LlmFailure, RemoteProtocolError
from trunkline_protocol.finish import FinishReason
from trunkline_protocol.frames import Retry

from trunkline.core.effects import RetryNotice

CANCELLED: Final = LlmFailure("the call was cancelled", Code.ABORTED)
WORKER_LOST: Final = LlmFailure(
    "no worker holds this call any more, and part of it was already received", Code.TRANSPORT
)
TAIL_LOST: Final = LlmFailure("the worker ended before its last chunks arrived", Code.STREAM_CLOSED)
CREDIT_IGNORED: Final = LlmFailure("the worker sends more than it was granted", Code.INVARIANT)


def malformed(exc: RemoteProtocolError) -> LlmFailure:
    """Say that a lane frame held something else than chunks."""
    return LlmFailure(f"the worker sent what is no chunk: {exc}", Code.MALFORMED_RESPONSE)


def finish_of(finish: Mapping[str, Any]) -> FinishReason:
    """Read the finish of `ENDED`."""
    try:
        return FinishReason.from_dict(finish)
    except ValueError as exc:
        message = f"the worker ended with what is no finish: {exc}"
        return FinishReason("error", LlmFailure(message, Code.MALFORMED_RESPONSE))


def withdrawn(finish: Mapping[str, Any]) -> LlmFailure:
    """Return the failure of an `ENDED` that came instead of the offered attempt."""
    return finish_of(finish).failure or LlmFailure("the offered retry was withdrawn", Code.ABORTED)


def failure_from(failure: Mapping[str, Any]) -> LlmFailure:
    """Read the failure of a control frame; a wrong one becomes a failure that says so."""
    try:
        return LlmFailure.from_dict(failure)
    except ValueError:
        return LlmFailure("the broker named a failure without code and message", Code.UNKNOWN)


def notice_of(frame: Retry) -> RetryNotice:
    """Read what the broker says of a retry."""
    return RetryNotice(
        frame.retry_id,
        frame.provider,
        frame.mode,
        frame.policy_key,
        frame.retry,
        frame.max_retries,
        frame.delay_ms,
        failure_from(frame.failure),
        frame.attempt,
    )


def repeated(known: RetryNotice | None, notice: RetryNotice) -> RetryNotice | None:
    """Return what is known now of a retry that a new broker offers again; `None` for another one.

    The new broker knows the delay that is left, but not why the attempt failed.
    """
    if known is None or (known.retry_id, known.retry) != (notice.retry_id, notice.retry):
        return None
    return replace(notice, failure=known.failure)


def offer_of(notice: RetryNotice, left_ms: float) -> dict[str, Any]:
    """Return what a new broker must know to go on with a retry; `left_ms` of its delay is left."""
    return {
        "retryId": notice.retry_id,
        "policyKey": notice.policy_key,
        "retry": notice.retry,
        "delayMs": left_ms,
    }
