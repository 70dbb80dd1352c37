"""Frames of calls, and the entries of their lists (SPEC.md sections 3 to 6); see `frames`."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from trunkline_protocol import wire_checks as check
from trunkline_protocol.frame_fields import (
    NO_BODY,
    Body,
    Born,
    Call,
    Client,
    Flag,
    Key,
    Lease,
    Map,
    Name,
    Names,
    Number,
    Pool,
    Recovery,
    Route,
    Secret,
    Text,
    Uint,
)
from trunkline_protocol.ids import CallId, RouteName, StreamKey
from trunkline_protocol.record import record


@record
class Open:
    """Client → broker: start (or name again) one attempt. The body is the `GenerateOptions`.

    Attributes:
        attempt: 0 for the first; the broker's `RETRY` names the next.
        recovery: "none" or "policy" (SPEC 6).
        seen: the client has received chunks of this attempt, so it must not be started anew.
        lease: the prepared call to dispatch, if any.
        retry_offer: after a broker restart, the retry state the client remembers (SPEC 6).
        attachments: ids that the body's image blocks name (SPEC 7.1).
        traceparent: span of the application that asks (SPEC 3.1); empty: none.
    """

    KIND: ClassVar[bytes] = b"OPEN"
    call: Call
    attempt: Uint
    stream_key: Key
    provider: Route
    model: Name
    recovery: Recovery = "none"
    seen: Flag = False
    detachable: Flag = False
    lease: Lease | None = None
    retry_offer: Map | None = None
    attachments: Names = ()
    traceparent: Name = ""
    body: Body = NO_BODY


@record
class Accepted:
    """Broker → client: the attempt was given to a worker; facts captured with it."""

    KIND: ClassVar[bytes] = b"ACCEPTED"
    call: Call
    attempt: Uint
    pool: Pool
    slot: Uint
    generation: Born
    window_chunks: Uint
    window_bytes: Uint
    policy: Map
    token: Secret | None = field(default=None, repr=False)


@record
class Queued:
    """Broker → client: the attempt waits for a place; that confirms the `OPEN`."""

    KIND: ClassVar[bytes] = b"QUEUED"
    call: Call
    attempt: Uint
    reason: Name = ""


@record
class Start:
    """Broker → worker: run one attempt, or re-bind it if it is held already (LANE 7).

    Attributes:
        client_pid: of the client's process, if it is on the broker's host; for a later broker.
    """

    KIND: ClassVar[bytes] = b"START"
    call: Call
    attempt: Uint
    client: Client
    stream_key: Key
    provider: Route
    model: Name
    window_chunks: Uint
    window_bytes: Uint
    detachable: Flag = False
    token: Secret | None = field(default=None, repr=False)
    lease: Lease | None = None
    attachments: Names = ()
    traceparent: Name = ""
    client_pid: Uint = 0
    body: Body = NO_BODY


@record
class Window:
    """Broker → worker and client: the window of a running attempt changed (SPEC 4.4)."""

    KIND: ClassVar[bytes] = b"WINDOW"
    call: Call
    attempt: Uint
    window_chunks: Uint
    window_bytes: Uint


@record
class Credit:
    """Client → broker → worker: totals of one attempt (LANE 1, 4)."""

    KIND: ClassVar[bytes] = b"CREDIT"
    call: Call
    attempt: Uint
    received: Uint
    consumed: Uint
    consumed_bytes: Uint


@record
class Resume:
    """Client → broker → worker: send again from `expected` on, before anything new (LANE 3)."""

    KIND: ClassVar[bytes] = b"RESUME"
    call: Call
    attempt: Uint
    expected: Uint


@record
class Restated:
    """One entry of `RESTATE`: all a new broker must know of a call that its client holds."""

    call: CallId
    attempt: int
    stream_key: StreamKey
    provider: RouteName
    received: int
    consumed: int
    consumed_bytes: int
    is_recovered: bool = False  # it asked for the retry policy; a new broker must know


@record
class Restate:
    """Client → broker: positions of quiet calls, or of all calls for a new epoch (LANE 5, 8).

    Attributes:
        queues: what waits in the client, by name: `[depth, high water, bound]`; for people.
    """

    KIND: ClassVar[bytes] = b"RESTATE"
    calls: Annotated[tuple[Restated, ...], check.list_of(Restated)]
    queues: Map | None = None


@record
class Progress:
    """One entry of `SENT`: the number of the next chunk that the worker will send."""

    call: CallId
    attempt: int
    next: int


@record
class Sent:
    """Broker → client: how far the workers of these calls have sent (LANE 5)."""

    KIND: ClassVar[bytes] = b"SENT"
    calls: Annotated[tuple[Progress, ...], check.list_of(Progress)]


@record
class Cancel:
    """Client → broker → worker: stop; repeated until the call is reported ended (LANE 9)."""

    KIND: ClassVar[bytes] = b"CANCEL"
    call: Call
    attempt: Uint


@record
class Ended:
    """Worker → broker → client: the attempt is over; its tail may still be on the lane (LANE 10).

    Attributes:
        last: number of chunks of the attempt, the terminal finish included.
        finish: the finish reason, as a camelCase map.
        usage: token usage map, if the provider told it.
        figures: per-call measurements of the worker (chunks, ttftMs, durationMs, requestId …).
    """

    KIND: ClassVar[bytes] = b"ENDED"
    call: Call
    attempt: Uint
    last: Uint
    finish: Map
    usage: Map | None = None
    figures: Map | None = None


@record
class Failed:
    """Broker → client: nothing more comes for this attempt; it ends with the failure named here.

    Sent where no worker can finish the attempt: no route, refused admission, worker death.
    """

    KIND: ClassVar[bytes] = b"FAILED"
    call: Call
    attempt: Uint
    failure: Map


@record
class Lost:
    """Broker → client: nobody holds this attempt. Unseen: open it again; seen: `TRANSPORT`."""

    KIND: ClassVar[bytes] = b"LOST"
    call: Call
    attempt: Uint


@record
class CallRef:
    """One entry of `DONE`."""

    call: CallId
    attempt: int


@record
class Done:
    """Client → broker → worker: these attempts were received whole; forget them (LANE 10)."""

    KIND: ClassVar[bytes] = b"DONE"
    calls: Annotated[tuple[CallRef, ...], check.list_of(CallRef)]


@record
class Retry:
    """Broker → client: the failed attempt may be retried after `delay_ms` (SPEC 6)."""

    KIND: ClassVar[bytes] = b"RETRY"
    call: Call
    attempt: Uint
    retry_id: Name
    provider: Route
    mode: Name
    policy_key: Text
    retry: Uint
    delay_ms: Number
    failure: Map
    max_retries: Uint | None = None


@record
class RetryStarted:
    """Broker → client: the delay is over; open attempt `attempt` now, or leave it."""

    KIND: ClassVar[bytes] = b"RETRY_STARTED"
    call: Call
    attempt: Uint
    retry_id: Name


@record
class Probe:
    """Client → broker: send this nonce down my lane (LANE 6)."""

    KIND: ClassVar[bytes] = b"PROBE"
    nonce: Uint


@record
class Attach:
    """Client → broker → worker: take over a detached call (LANE 12)."""

    KIND: ClassVar[bytes] = b"ATTACH"
    call: Call
    token: Secret = field(repr=False)
    stream_key: Key
    client: Client | None = None
    window_chunks: Uint = 0
    window_bytes: Uint = 0


@record
class Snapshot:
    """Worker → broker → client: assembled blocks of a detached call, then chunks from `next`."""

    KIND: ClassVar[bytes] = b"SNAPSHOT"
    call: Call
    attempt: Uint
    next: Uint
    body: Body = NO_BODY
