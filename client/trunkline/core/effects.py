"""What the client's core wants done; the shell does it and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.frames import Body, ClientFrame
from trunkline_protocol.ids import CallId, QueryId
from trunkline_protocol.record import record


@record
class Send:
    """Send a control frame to the broker; losing it is repaired by the core's own repeats."""

    frame: ClientFrame


@record
class Wake:
    """Wake whoever waits for this call: chunks or its end can be taken."""

    call: CallId


@record
class OpenLane:
    """Make a new lane socket with the same routing id, connected to `endpoint`; close the old."""

    endpoint: str


@record
class BecameReady:
    """The broker has answered and the lane is proven; said again after each restart."""


@record
class Left:
    """The broker has taken everything that was said before the leave."""


@record
class Rejected:
    """The broker will not speak with this client; final."""

    code: str
    message: str


@record
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


@record
class RetryOffered:
    """The attempt failed and will be repeated after a delay."""

    call: CallId
    notice: RetryNotice


@record
class RetryBegan:
    """The delay is over; the next attempt is opened now."""

    call: CallId
    notice: RetryNotice


@record
class Answered:
    """A query is over: with a body, or with a failure."""

    query: QueryId
    body: Body
    failure: LlmFailure | None = None


@record
class Happened:
    """The broker announced something, or an announcement may have been missed."""

    event: str


@record
class Suspected:
    """The broker answers, but three questions about this call were answered by nothing."""

    call: CallId
    state: str


@record
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
    | Suspected
    | Count
)
Effects = Sequence[Effect]
NOTHING: Final[Effects] = ()
