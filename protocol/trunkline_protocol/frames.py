"""Control frame kinds: one frozen class each; the type of a field names its check.

The MessagePack key of a field is its name in camelCase; a field with a default may be missing.
This file does not know how bytes look. SPEC.md section 3 explains each kind.
"""

from __future__ import annotations

from typing import ClassVar

from trunkline_protocol.call_frames import (
    Accepted,
    Attach,
    CallRef,
    Cancel,
    Credit,
    Done,
    Ended,
    Failed,
    Lost,
    Open,
    Probe,
    Progress,
    Queued,
    Restate,
    Restated,
    Resume,
    Retry,
    RetryStarted,
    Sent,
    Snapshot,
    Start,
    Window,
)
from trunkline_protocol.frame_fields import (
    NO_BODY,
    Asked,
    Body,
    Call,
    Client,
    Flag,
    Label,
    Map,
    Name,
    Names,
    Place,
    Since,
    Text,
    Uint,
    Version,
)
from trunkline_protocol.record import record
from trunkline_protocol.worker_frames import (
    Committed,
    Heartbeat,
    HeldAttachment,
    HeldCall,
    HeldClient,
    HeldLease,
    Holding,
    Register,
    Registered,
    Registrations,
    Role,
)

__all__ = [
    "Accepted",
    "Attach",
    "Body",
    "Bye",
    "CallRef",
    "Cancel",
    "ClientFrame",
    "Committed",
    "Credit",
    "Done",
    "Ended",
    "Event",
    "Failed",
    "ForwardedFrame",
    "Frame",
    "Heartbeat",
    "HeldAttachment",
    "HeldCall",
    "HeldClient",
    "HeldLease",
    "Hello",
    "Holding",
    "Lost",
    "Open",
    "Probe",
    "Progress",
    "Query",
    "QueryCancel",
    "Queued",
    "Refused",
    "Register",
    "Registered",
    "Registrations",
    "Reply",
    "Restate",
    "Restated",
    "Resume",
    "Retry",
    "RetryStarted",
    "Role",
    "Sent",
    "Snapshot",
    "Start",
    "Stopping",
    "ToClientFrame",
    "ToWorkerFrame",
    "Welcome",
    "Who",
    "Window",
    "WorkerFrame",
]


# --- greeting -------------------------------------------------------------------------------


@record
class Hello:
    """Client → broker: who speaks. Repeated on every connection and for every new epoch."""

    KIND: ClassVar[bytes] = b"HELLO"
    protocol: Version
    client: Client
    pid: Uint
    name: Label = ""
    features: Names = ()


@record
class Welcome:
    """Broker → client: the answer to `HELLO`; names the lane."""

    KIND: ClassVar[bytes] = b"WELCOME"
    protocol: Version
    epoch: Since
    lane: Place
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
    """Broker → client: no new calls from now on; with `restart`, another broker takes over."""

    KIND: ClassVar[bytes] = b"STOPPING"
    reason: Text = ""
    restart: Flag = False


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
    body: Body = NO_BODY


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
    body: Body = NO_BODY


@record
class Event:
    """Broker → client: something changed; payload-free (`adapters-updated`)."""

    KIND: ClassVar[bytes] = b"EVENT"
    event: Name


# --- who may send what ----------------------------------------------------------------------

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
