"""What the core tells the shell to do: one closed union, each frozen.

Effects are performed in the order of the list. None of them has an answer; what comes of one is
an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from trunkline_protocol.frames import ToClientFrame, ToWorkerFrame
from trunkline_protocol.ids import CallId, ClientId, Generation, PoolName, QueryId
from trunkline_protocol.record import record
from trunkline_protocol.secret import NO_TOKEN, SecretBytes

from trunkline_broker.core.specs import PoolSpec


@record
class SendToClient:
    """Send on `control`; a peer that is gone (EHOSTUNREACH) is no error, its frame is counted."""

    peer: bytes
    frame: ToClientFrame


@record
class SendToWorker:
    """Send on `workers/control`; as for clients."""

    peer: bytes
    frame: ToWorkerFrame


@record
class SendStatus:
    """Answer a `status` query: `Broker.status()` with what the shell adds, as a `REPLY`."""

    peer: bytes
    query: QueryId


@record
class LoadConfig:
    """Read the configuration again and report `ConfigReplaced` or `ConfigRejected`.

    Attributes:
        path: file to read instead of the one the broker started with; empty: the same.
    """

    peer: bytes
    query: QueryId
    path: str = ""


@record
class EchoProbe:
    """Send the echo of a probe down the lane of a client, through the sink."""

    client: ClientId
    nonce: int


@record
class Spawn:
    """Start a worker process; `ProcessSpawned` or `SpawnFailed` follows.

    The shell also writes living processes to the hint file: spawned and adopted, until exited.

    Attributes:
        spec: its pool as it is now configured.
        token: secret that the process proves itself with.
        standby: it will own nothing until the cutover.
    """

    pool: PoolName
    slot: int
    generation: Generation
    spec: PoolSpec
    token: SecretBytes
    standby: bool = False


@record
class Adopt:
    """Watch a process on this host that this broker did not start, as if it had.

    If it is gone already, `ProcessExited` follows. Repeated for a known generation: no-op.

    Attributes:
        token: for the hint file.
        is_manual: for the hint file; it is never signalled.
    """

    pool: PoolName
    slot: int
    generation: Generation
    pid: int
    token: SecretBytes = NO_TOKEN
    is_manual: bool = False


@record
class NoteUnseen:
    """Name a worker in the hint file whose process is on another host, or out of sight."""

    pool: PoolName
    slot: int
    generation: Generation


@record
class Forget:
    """Watch and name a worker no more that no broker started; nothing if it is unknown."""

    pool: PoolName
    slot: int
    generation: Generation


@record
class Signal:
    """Signal the process group of a worker; nothing if it has exited.

    Attributes:
        signal: "TERM" or "KILL".
    """

    pool: PoolName
    slot: int
    generation: Generation
    signal: str


@record
class LookAtWorker:
    """Read how much CPU a worker got; `WorkerLooked` follows before any other event.

    Attributes:
        pid: its process on this host, above 0.
    """

    generation: Generation
    pid: int


@record
class WatchClient:
    """Report `ClientExited` when this process ends (at once, if it is gone)."""

    pid: int


@record
class UnwatchClient:
    """No client of this process is left."""

    pid: int


@record
class StorePart:
    """Write a part of an upload; `PartStored` or `PartRefused` follows.

    The part that reaches `total` ends it: hash and media type are checked, then it is stored. At
    offset 0 whatever was there of it goes. After a failure nothing of the upload is left.

    Attributes:
        peer: who asked; comes back with the event, as `query` does.
    """

    peer: bytes
    query: QueryId
    attachment: str
    media_type: str
    total: int
    offset: int
    data: bytes = field(repr=False)


@record
class CheckAttachment:
    """See whether a stored attachment is still there; `AttachmentChecked` follows."""

    peer: bytes
    query: QueryId
    attachment: str
    total: int


@record
class ReadPart:
    """Read a part of a stored attachment for a worker; `PartRead` follows."""

    peer: bytes
    query: QueryId
    attachment: str
    offset: int


@record
class TouchAttachments:
    """Note on disk that these are used now; `AttachmentsGone` follows for what is not there."""

    attachments: tuple[str, ...]


@record
class RemoveAttachments:
    """Remove these, whole or unfinished; what is gone already is gone."""

    attachments: tuple[str, ...]


@record
class AttemptEnded:
    """An attempt is over; whoever counts, logs or traces may take note. Said once per attempt.

    Also of one that never ran (refused, cancelled while it waited): it has no worker then.

    Attributes:
        client: the name that the client gave itself.
        outcome: "ended" (whatever its finish), "cancelled", "failed" by the broker or the death of
            its worker, or "retried": another attempt follows, the call is not over.
        kind: of the finish; "error" where there was none.
        code: of the failure, if there was one.
        message: of the failure, for people; may quote the provider, never a prompt.
        usage: token counts, if known.
        figures: what the worker measured (chunks, ttftMs, durationMs, requestId, model).
        waited_s: from the `OPEN` to a worker; `None`: an older broker knew.
        lasted_s: from there to the end; `None`: never ran, or an older broker knew.
        age_s: from the first `OPEN` of the call to now; `None`: an older broker knew.
        is_late: the worker may have told an older broker of this end already.
    """

    call: CallId
    attempt: int
    client: str
    provider: str
    model: str
    outcome: str
    kind: str
    code: str = ""
    message: str = ""
    pool: str = ""
    slot: int = 0
    pid: int | None = None
    usage: Mapping[str, Any] | None = None
    figures: Mapping[str, Any] | None = None
    waited_s: float | None = None
    lasted_s: float | None = None
    age_s: float | None = None
    traceparent: str = ""
    is_late: bool = False


@record
class NoteLoad:
    """A worker told its totals since its start, as it does with each heartbeat."""

    pool: PoolName
    slot: int
    generation: Generation
    load: Mapping[str, Any]


@record
class Count:
    """Add to a counter; the core keeps its own tally of these too (`status()["counters"]`)."""

    name: str
    amount: int = 1


@record
class Log:
    """Write one structured line.

    Attributes:
        level: "debug", "info", "warning" or "error".
        event: what happened, snake_case.
        fields: never prompts, keys or bodies.
    """

    level: str
    event: str
    fields: Mapping[str, object]


@record
class Exit:
    """Close the sockets and end the process with this status."""

    code: int = 0


AttachmentEffect = StorePart | CheckAttachment | ReadPart | TouchAttachments | RemoveAttachments
"""Performed one after the other, off the loop."""

Effect = (
    SendToClient
    | SendToWorker
    | SendStatus
    | LoadConfig
    | EchoProbe
    | Spawn
    | Adopt
    | NoteUnseen
    | Forget
    | Signal
    | LookAtWorker
    | WatchClient
    | UnwatchClient
    | AttachmentEffect
    | AttemptEnded
    | NoteLoad
    | Count
    | Log
    | Exit
)
"""What the core may ask for."""
