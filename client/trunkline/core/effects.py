"""What the client's core wants done; the shell does it and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.frames import ClientFrame
from trunkline_protocol.ids import CallId, QueryId


@dataclass(frozen=True, slots=True)
class Send:
    """Send a control frame to the broker; losing it is repaired by the core's own repeats."""

    frame: ClientFrame


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake whoever waits for this call: chunks or its end can be taken."""

    call: CallId


@dataclass(frozen=True, slots=True)
class OpenLane:
    """Make a new lane socket with the same routing id, connected to `endpoint`; close the old."""

    endpoint: str


@dataclass(frozen=True, slots=True)
class BecameReady:
    """The broker has answered and the lane is proven; said again after each restart."""


@dataclass(frozen=True, slots=True)
class Left:
    """The broker has taken everything that was said before the leave."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The broker will not speak with this client; final."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class RetryNotice:
    """A retry that the broker offers for a failed attempt.

    Attributes:
        retry_id: names this retry in logs of both sides.
        provider: route whose attempt failed.
        mode: "normal" or "always".
        policy_key: identifies the policy captured with the failed attempt.
        retry: 1 for the first retry.
        max_retries: `None` in mode "always".
        delay_ms: from the offer to the start.
        failure: why the attempt failed.
        attempt: number of the attempt that is offered.
    """

    retry_id: str
    provider: str
    mode: str
    policy_key: str
    retry: int
    max_retries: int | None
    delay_ms: float
    failure: LlmFailure
    attempt: int


@dataclass(frozen=True, slots=True)
class RetryOffered:
    """The attempt failed and will be repeated after a delay."""

    call: CallId
    notice: RetryNotice


@dataclass(frozen=True, slots=True)
class RetryBegan:
    """The delay is over; the next attempt is opened now."""

    call: CallId
    notice: RetryNotice


@dataclass(frozen=True, slots=True)
class Answered:
    """A query is over: with a body, or with a failure."""

    query: QueryId
    body: bytes
    failure: LlmFailure | None = None


@dataclass(frozen=True, slots=True)
class Happened:
    """The broker announced something, or an announcement may have been missed."""

    event: str


@dataclass(frozen=True, slots=True)
class Count:
    """Count something that was dropped or refused."""

    name: str


Effect = (
    Send
    | Wake
    | OpenLane
    | BecameReady
    | Left
    | Rejected
    | RetryOffered
    | RetryBegan
    | Answered
    | Happened
    | Count
)
Effects = Sequence[Effect]
NOTHING: Final[Effects] = ()
