"""Frames between workers and broker beside calls and queries; see `frames`."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar

from trunkline_protocol import wire_checks as check
from trunkline_protocol.call_frames import Progress
from trunkline_protocol.frame_fields import (
    Born,
    Leases,
    Map,
    Maps,
    Names,
    Place,
    Pool,
    RoleName,
    Secret,
    Since,
    Uint,
    Version,
)
from trunkline_protocol.ids import CallId, ClientId, LeaseId, RouteName, StreamKey
from trunkline_protocol.record import record


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
    lane: Place
    generation: Born
    orphan_timeout_ms: Uint = 0
    features: Names = ()
    attachments_dir: Place = ""


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
class Holding:
    """One entry of `HEARTBEAT`: an attempt that the worker holds, running or ended."""

    call: CallId
    attempt: int
    is_ended: bool


@record
class Heartbeat:
    """Worker → broker and back: I am alive; a worker adds what it has sent and its counters.

    Attributes:
        sent: streams with unreceived chunks.
        load: figures of the worker, for people.
        held: every attempt that the worker holds; `None`: not told, so nothing follows from it.
    """

    KIND: ClassVar[bytes] = b"HEARTBEAT"
    sent: Annotated[tuple[Progress, ...], check.list_of(Progress)] = ()
    load: Map | None = None
    held: Annotated[tuple[Holding, ...], check.list_of(Holding)] | None = None
