"""What the core tells the shell to do: one closed union, each frozen.

Effects are performed in the order of the list. None of them has an answer; what comes of one is
an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trunkline_protocol.frames import ToClientFrame, ToWorkerFrame
from trunkline_protocol.ids import ClientId, Generation, PoolName, QueryId

from trunkline_broker.core.specs import PoolSpec


@dataclass(frozen=True, slots=True)
class SendToClient:
    """Send on `control`; a peer that is gone (EHOSTUNREACH) is no error, its frame is counted."""

    peer: bytes
    frame: ToClientFrame


@dataclass(frozen=True, slots=True)
class SendToWorker:
    """Send on `workers/control`; as for clients."""

    peer: bytes
    frame: ToWorkerFrame


@dataclass(frozen=True, slots=True)
class SendStatus:
    """Answer a `status` query: `Broker.status()` with what the shell adds, as a `REPLY`."""

    peer: bytes
    query: QueryId


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """Read the configuration again and report `ConfigReplaced` or `ConfigRejected`.

    Attributes:
        path: file to read instead of the one the broker started with; empty: the same.
    """

    peer: bytes
    query: QueryId
    path: str = ""


@dataclass(frozen=True, slots=True)
class EchoProbe:
    """Send the echo of a probe down the lane of a client, through the sink."""

    client: ClientId
    nonce: int


@dataclass(frozen=True, slots=True)
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
    token: bytes = field(repr=False)
    standby: bool = False


@dataclass(frozen=True, slots=True)
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
    token: bytes = field(default=b"", repr=False)
    is_manual: bool = False


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal the process group of a worker; nothing if it has exited.

    Attributes:
        signal: "TERM" or "KILL".
    """

    pool: PoolName
    slot: int
    generation: Generation
    signal: str


@dataclass(frozen=True, slots=True)
class WatchClient:
    """Report `ClientExited` when this process ends (at once, if it is gone)."""

    pid: int


@dataclass(frozen=True, slots=True)
class UnwatchClient:
    """No client of this process is left."""

    pid: int


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class CheckAttachment:
    """See whether a stored attachment is still there; `AttachmentChecked` follows."""

    peer: bytes
    query: QueryId
    attachment: str
    total: int


@dataclass(frozen=True, slots=True)
class ReadPart:
    """Read a part of a stored attachment for a worker; `PartRead` follows."""

    peer: bytes
    query: QueryId
    attachment: str
    offset: int


@dataclass(frozen=True, slots=True)
class TouchAttachments:
    """Note on disk that these are used now; `AttachmentsGone` follows for what is not there."""

    attachments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveAttachments:
    """Remove these, whole or unfinished; what is gone already is gone."""

    attachments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Count:
    """Add to a counter; the core keeps its own tally of these too (`status()["counters"]`)."""

    name: str
    amount: int = 1


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
    | Signal
    | WatchClient
    | UnwatchClient
    | AttachmentEffect
    | Count
    | Log
    | Exit
)
"""What the core may ask for."""
