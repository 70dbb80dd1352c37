"""Facts that the shell reports to the core: one closed union, each frozen.

Nothing here says what follows from a fact; `broker.py` decides that.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from trunkline_protocol.frames import ClientFrame, WorkerFrame
from trunkline_protocol.ids import Generation, PoolName, QueryId
from trunkline_protocol.record import record

from trunkline_broker.core.cpu import CpuLook
from trunkline_broker.core.specs import AccessSpec, AliveWorker, PoolSpec, StoredAttachment


class Side(Enum):
    """Which of the two control sockets."""

    CLIENT = "client"
    WORKER = "worker"


@record
class Started:
    """The sockets are bound; the first event of a broker.

    Attributes:
        alive: workers of the hint file whose processes live; empty after a clean stop.
        attachments: what the store holds, the longest unused first.
    """

    alive: tuple[AliveWorker, ...] = ()
    attachments: tuple[StoredAttachment, ...] = ()


@record
class ClientFrameReceived:
    """A decoded frame arrived on `control`.

    Attributes:
        peer: routing id of the connection.
        pid: process at the other end by SO_PEERCRED; `None` over TCP, and for processes that this
            one does not see (another container).
        user: name of the key that a connection over TCP was made with, empty without one; `None`:
            it came over the local socket.
    """

    peer: bytes
    frame: ClientFrame
    pid: int | None = None
    user: str | None = None


@record
class WorkerFrameReceived:
    """A decoded frame arrived on `workers/control`; fields as for clients.

    Attributes:
        is_guest: from a process of another user of this host.
    """

    peer: bytes
    frame: WorkerFrame
    pid: int | None = None
    user: str | None = None
    is_guest: bool = False


@record
class FrameRejected:
    """Bytes that are no frame; code, text and `about` are those of `RemoteProtocolError`."""

    side: Side
    peer: bytes
    code: str
    message: str
    about: Mapping[str, Any] | None = None


@record
class PeerDisconnected:
    """A control connection closed.

    Attributes:
        is_stuck: it is open, but nothing has been read from it for so long that it is given up.
    """

    side: Side
    peer: bytes
    is_stuck: bool = False


@record
class ClientExited:
    """A process that `WatchClient` named is gone."""

    pid: int


@record
class ProcessSpawned:
    """`Spawn` succeeded."""

    pool: PoolName
    slot: int
    generation: Generation
    pid: int


@record
class SpawnFailed:
    """`Spawn` did not make a process; nothing has to be reaped."""

    pool: PoolName
    slot: int
    generation: Generation
    reason: str


@record
class ProcessExited:
    """A worker process (spawned or adopted) is gone and reaped.

    Attributes:
        exit_text: "status 1", "signal 9", or "unknown status" for an adopted one.
        output_tail: its last lines of output, redacted, oldest first; for people.
    """

    pool: PoolName
    slot: int
    generation: Generation
    exit_text: str
    output_tail: tuple[str, ...] = ()


@record
class WorkerLooked:
    """The answer to `LookAtWorker`.

    Attributes:
        look: `None`: the process is gone, or the kernel does not tell.
    """

    generation: Generation
    look: CpuLook | None


@record
class StrayLaneFrames:
    """The sink received frames that clients sent up the lane."""

    count: int


@record
class Ticked:
    """The time of `next_deadline_s()` has come, or the shell woke for another reason.

    Attributes:
        lateness_s: how much later than asked the tick comes, at least 0. Sockets were drained
            before it, so frames that arrived meanwhile count.
    """

    lateness_s: float = 0.0


@record
class StopRequested:
    """SIGTERM, SIGINT (`restart=False`) or SIGUSR2 (`restart=True`: exit now, touch no worker).

    Attributes:
        drain_s: time for running calls; ignored for a restart. A second request stops at once.
    """

    restart: bool = False
    drain_s: float = 0.0


@record
class ConfigReplaced:
    """The configuration was read again; pools that did not change are left alone.

    Attributes:
        access: what clients on other hosts may do from now on; `None`: what they might before.
        peer: client whose `reload` query caused it; answered when all is in force.
        query: that query.
        restart: keys of `[broker]` that are others now, which only another broker obeys.
    """

    pools: tuple[PoolSpec, ...]
    peer: bytes | None = None
    query: QueryId | None = None
    access: Mapping[str, AccessSpec] | None = None
    restart: tuple[str, ...] = ()


@record
class ConfigRejected:
    """The configuration that `LoadConfig` asked for is wrong; nothing changes."""

    peer: bytes
    query: QueryId
    reason: str


@record
class PartStored:
    """`StorePart` was done.

    Attributes:
        received: bytes that are there now; not what was expected if somebody changed the file.
        is_stored: the attachment is whole and checked.
    """

    peer: bytes
    query: QueryId
    attachment: str
    received: int
    is_stored: bool


@record
class PartRefused:
    """`StorePart` failed, or what it completed does not fit; nothing of the upload is left."""

    peer: bytes
    query: QueryId
    attachment: str
    code: str
    message: str


@record
class AttachmentChecked:
    """The answer to `CheckAttachment`."""

    peer: bytes
    query: QueryId
    attachment: str
    is_there: bool


@record
class AttachmentsGone:
    """Files that somebody else has removed from the store."""

    attachments: tuple[str, ...]


@record
class PartRead:
    """The answer to `ReadPart`.

    Attributes:
        total: size of the whole.
        data: `None`: it is not there.
    """

    peer: bytes
    query: QueryId
    attachment: str
    total: int
    data: bytes | None


AttachmentEvent = PartStored | PartRefused | AttachmentChecked | AttachmentsGone | PartRead
"""What comes of the effects on the attachment store."""

Event = (
    Started
    | ClientFrameReceived
    | WorkerFrameReceived
    | FrameRejected
    | PeerDisconnected
    | ClientExited
    | ProcessSpawned
    | SpawnFailed
    | ProcessExited
    | WorkerLooked
    | StrayLaneFrames
    | Ticked
    | StopRequested
    | ConfigReplaced
    | ConfigRejected
    | AttachmentEvent
)
"""What the shell may tell the core."""
