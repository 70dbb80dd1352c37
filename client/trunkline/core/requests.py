"""What an application asks for, and who serves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from trunkline_protocol.frames import Open
from trunkline_protocol.ids import CallId, Generation, LeaseId, PoolName, RouteName, StreamKey
from trunkline_protocol.record import record


@record
class CallRequest:
    """What an application asks for.

    Attributes:
        provider: route.
        model: passed through.
        body: the packed `GenerateOptions`.
        recovery: "none" or "policy".
        is_replayable: nothing reaches the application before the end, so that a failed attempt
            may be repeated whatever has arrived.
        lease: the prepared call to dispatch.
        attachments: ids that the body names.
        traceparent: the application's span; empty: none.
        is_detachable: the call goes on when this client leaves.
    """

    provider: RouteName
    model: str
    body: bytes
    recovery: str = "none"
    is_replayable: bool = False
    lease: LeaseId | None = None
    attachments: tuple[str, ...] = ()
    traceparent: str = ""
    is_detachable: bool = False


@record
class ServedBy:
    """The worker that an attempt was given to, and the policy captured with it.

    Attributes:
        token: with which a detachable call can be attached to.
    """

    pool: PoolName
    slot: int
    generation: Generation
    policy: Mapping[str, Any]
    token: bytes | None = field(default=None, repr=False)


def open_frame(
    request: CallRequest,
    call: CallId,
    attempt: int,
    stream_key: StreamKey,
    body: bytes,
    retry_offer: Mapping[str, Any] | None,
) -> Open:
    """Return the `OPEN` of an attempt of which no chunk has arrived; `body` may be gone."""
    return Open(
        call,
        attempt,
        stream_key,
        request.provider,
        request.model,
        recovery=request.recovery,
        detachable=request.is_detachable,
        lease=request.lease,
        retry_offer=retry_offer,
        attachments=request.attachments,
        traceparent=request.traceparent,
        body=body,
    )
