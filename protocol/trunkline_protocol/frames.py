"""Control frame kinds: one frozen class each; the type of a field names its check.

The MessagePack key of a field is its name in camelCase; a field with a default may be missing.
This file does not know how bytes look. SPEC.md section 3 explains each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Final

from trunkline_protocol import wire_checks as check
from trunkline_protocol.ids import (
    CallId,
    ClientId,
    Epoch,
    Generation,
    LeaseId,
    PoolName,
    QueryId,
    RouteName,
    StreamKey,
)
from trunkline_protocol.record import record

Version = Annotated[tuple[int, int], check.version]
Uint = Annotated[int, check.uint]
Number = Annotated[float, check.number]
Flag = Annotated[bool, check.boolean]
Name = Annotated[str, check.name]
Text = Annotated[str, check.text]
Secret = Annotated[bytes, check.binary]
Recovery = Annotated[str, check.recovery]
RoleName = Annotated[str, check.role]
Names = Annotated[tuple[str, ...], check.names]
Map = Annotated[Mapping[str, Any], check.mapping]
Maps = Annotated[tuple[Mapping[str, Any], ...], check.mappings]
Client = Annotated[ClientId, check.client_id]
Call = Annotated[CallId, check.call_id]
Key = Annotated[StreamKey, check.stream_key]
Asked = Annotated[QueryId, check.query_id]
Lease = Annotated[LeaseId, check.lease_id]
Leases = Annotated[tuple[LeaseId, ...], check.lease_ids]
Route = Annotated[RouteName, check.route_name]
Pool = Annotated[PoolName, check.pool_name]
Since = Annotated[Epoch, check.epoch]
Born = Annotated[Generation, check.generation]

Body = bytes | memoryview
"""What the receiver alone decodes. A broker passes on a large one as it lies in ZeroMQ's memory."""
_NO_BODY: Final = b""


# --- greeting -------------------------------------------------------------------------------


@record
class Hello:
    """Client → broker: who speaks. Repeated on every connection and for every new epoch."""

    KIND: ClassVar[bytes] = b"HELLO"
    protocol: Version
    client: Client
    pid: Uint
    name: Name = ""
    features: Names = ()


@record
class Welcome:
    """Broker → client: the answer to `HELLO`; names the lane."""

    KIND: ClassVar[bytes] = b"WELCOME"
    protocol: Version
    epoch: Since
    lane: Text
    version: Name = ""
    features: Names = ()
    max_open_calls: Uint = 0
    orphan_timeout_ms: Uint = 0


@record
class Who:
    """Broker → client or worker: this connection has not said `HELLO` / `REGISTER` yet."""

    KIND: ClassVar[bytes] = b"WHO"
    epoch: Since


@record
class Refused:
    """Broker → client or worker: a frame was not accepted; nothing of it took effect.

    Exactly one of `call`, `query` and `request` is set where the refusal belongs to one.
    """

    KIND: ClassVar[bytes] = b"REFUSED"
    code: Name
    message: Text
    call: Call | None = None
    attempt: Uint = 0
    query: Asked | None = None
    request: Uint | None = None


@record
class Bye:
    """Client → broker, worker → broker: I leave; broker → worker: you may leave now."""

    KIND: ClassVar[bytes] = b"BYE"
    reason: Text = ""


@record
class Stopping:
    """Broker → client: no new calls from now on; `final` when the process is about to end."""

    KIND: ClassVar[bytes] = b"STOPPING"
    reason: Text = ""
    restart: Flag = False


# --- a call ---------------------------------------------------------------------------------


@record
class Open:
    """Client → broker: start (or name again) one attempt. The body is the `GenerateOptions`.

    Attributes:
        attempt: 0 for the first; the broker's `RETRY` names the next.
        recovery: "none" or "policy" (SPEC 6).
        seen: the client has received chunks of this attempt, so it must not be started anew.
        lease: the prepared call to dispatch, if any.
        retry_offer: after a broker restart, the retry state the client remembers (SPEC 6.4).
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
    body: Body = _NO_BODY


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
    body: Body = _NO_BODY


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
    body: Body = _NO_BODY


# --- queries --------------------------------------------------------------------------------


@record
class Query:
    """Client → broker (→ worker), worker → broker: one question; its argument is the body.

    Attributes:
        op: what is asked (SPEC 7 lists them).
        provider: route whose worker answers; empty for questions to the broker itself.
        timeout_ms: how long the asker waits; the answerer stops then.
        client: who asks; the broker says it to the worker of a `prepareCall`, nobody else does.
        client_pid: likewise, as in `START`.
    """

    KIND: ClassVar[bytes] = b"QUERY"
    query: Asked
    op: Name
    provider: Name = ""
    timeout_ms: Uint = 0
    client: Client | None = None
    client_pid: Uint = 0
    body: Body = _NO_BODY


@record
class QueryCancel:
    """Client → broker (→ worker): nobody waits for this answer any more."""

    KIND: ClassVar[bytes] = b"QUERY_CANCEL"
    query: Asked


@record
class Reply:
    """Worker → broker → client, broker → worker: the answer; `failure` or a MessagePack body."""

    KIND: ClassVar[bytes] = b"REPLY"
    query: Asked
    failure: Map | None = None
    body: Body = _NO_BODY


@record
class Event:
    """Broker → client: something changed; payload-free (`adapters-updated`)."""

    KIND: ClassVar[bytes] = b"EVENT"
    event: Name


# --- workers --------------------------------------------------------------------------------


@record
class HeldCall:
    """One entry of `REGISTER`: an attempt that the worker holds, running or ended.

    Attributes:
        token: what `ATTACH` must name; empty: the call is not detachable.
        is_detached: nobody is attached; `client` is the last one that was.
    """

    call: CallId
    attempt: int
    client: ClientId
    stream_key: StreamKey
    provider: RouteName
    next: int
    is_ended: bool
    token: bytes = field(default=b"", repr=False)
    is_detached: bool = False


@record
class HeldAttachment:
    """One entry of `REGISTER`: an attachment that an attempt held by the worker names."""

    call: CallId
    attachment: str


@record
class HeldClient:
    """One entry of `REGISTER`: the process of a client whose calls or leases the worker holds."""

    client: ClientId
    pid: int


@record
class HeldLease:
    """One entry of `REGISTER`: whose a prepared call is that the worker holds."""

    lease: LeaseId
    client: ClientId


@record
class Register:
    """Worker → broker: who speaks and what it holds. Repeated for every new epoch.

    Attributes:
        role: "starting", "standby", "serving" or "draining", as the last broker said.
        token: the one-time secret that the broker handed to the process it spawned.
    """

    KIND: ClassVar[bytes] = b"REGISTER"
    protocol: Version
    pool: Pool
    slot: Uint
    generation: Born
    pid: Uint
    role: RoleName
    token: Secret = field(default=b"", repr=False)
    features: Names = ()
    calls: Annotated[tuple[HeldCall, ...], check.list_of(HeldCall)] = ()
    leases: Leases = ()
    attachments: Annotated[tuple[HeldAttachment, ...], check.list_of(HeldAttachment)] = ()
    lease_holders: Annotated[tuple[HeldLease, ...], check.list_of(HeldLease)] = ()
    clients: Annotated[tuple[HeldClient, ...], check.list_of(HeldClient)] = ()


@record
class Registered:
    """Broker → worker: the answer to `REGISTER`; the generation that is now this worker's."""

    KIND: ClassVar[bytes] = b"REGISTERED"
    epoch: Since
    lane: Text
    generation: Born
    orphan_timeout_ms: Uint = 0
    features: Names = ()
    attachments_dir: Text = ""


@record
class Registrations:
    """Worker → broker: everything this worker registers, whole and absolute; the first is READY.

    Attributes:
        request: counts up; the broker answers `COMMITTED` or `REFUSED` with it.
        adapters: `[{"adapter": n, "since": s, "routes": [{"info": {...}, "policy": {...}}]}]`, in
            order. `since` rises when a registration is made or replaced: its keys go to the end
            then, those of registrations with the same `since` keep their place.
        directory: registrations of configurable providers, `[{"since": s, "entries": [...]}]`.
        discovery: settings namespaces whose endpoints this worker can interrogate.
    """

    KIND: ClassVar[bytes] = b"REGISTRATIONS"
    request: Uint
    adapters: Maps
    directory: Maps = ()
    discovery: Names = ()


@record
class Committed:
    """Broker → worker: the registrations of this request are in force."""

    KIND: ClassVar[bytes] = b"COMMITTED"
    request: Uint


@record
class Role:
    """Broker → worker: what it is from now on; "draining" means finish what runs."""

    KIND: ClassVar[bytes] = b"ROLE"
    role: RoleName


@record
class Heartbeat:
    """Worker → broker and back: I am alive; a worker adds what it has sent and its counters."""

    KIND: ClassVar[bytes] = b"HEARTBEAT"
    sent: Annotated[tuple[Progress, ...], check.list_of(Progress)] = ()
    load: Map | None = None


ForwardedFrame = Credit | Resume | Cancel | Done | Attach | Query | QueryCancel
"""What the broker passes on from a client to a worker."""

ClientFrame = Hello | Bye | Open | Restate | Probe | ForwardedFrame
"""What a client may send to the broker."""

ToClientFrame = (
    Welcome
    | Who
    | Refused
    | Stopping
    | Accepted
    | Queued
    | Window
    | Sent
    | Ended
    | Failed
    | Lost
    | Retry
    | RetryStarted
    | Snapshot
    | Reply
    | Event
)
"""What the broker may send to a client."""

WorkerFrame = Register | Registrations | Heartbeat | Ended | Snapshot | Query | Reply | Bye
"""What a worker may send to the broker."""

ToWorkerFrame = (
    Registered
    | Who
    | Refused
    | Committed
    | Role
    | Heartbeat
    | Start
    | Window
    | ForwardedFrame
    | Reply
    | Bye
)
"""What the broker may send to a worker."""

Frame = ClientFrame | ToClientFrame | WorkerFrame | ToWorkerFrame
