"""The worker processes: one machine each, and who they are by generation and connection.

| state | means | may become |
|---|---|---|
| STARTING | spawned; its registrations have not come | every other one |
| STANDBY | ready and owns nothing | SERVING, DRAINING, STOPPING |
| SERVING | gets new calls | DRAINING, STOPPING |
| DRAINING | finishes what it holds | STOPPING |
| STOPPING | was told to leave; killed at its deadline | nothing else |

All transitions are `Worker.enter`. It does not know slots, routes or why a worker changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from trunkline_protocol.ids import CallId, Generation, LeaseId, PoolName, QueryId
from trunkline_protocol.secret import SecretBytes

from trunkline_broker.core.calls import Call
from trunkline_broker.core.cpu import CpuLook
from trunkline_broker.core.registry import EMPTY_OFFER, Offer
from trunkline_broker.core.specs import PoolSpec


class WorkerState(Enum):
    """See the table above."""

    STARTING = "starting"
    STANDBY = "standby"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"


_LEGAL: Final = {
    WorkerState.STARTING: {
        WorkerState.STANDBY,
        WorkerState.SERVING,
        WorkerState.DRAINING,
        WorkerState.STOPPING,
    },
    WorkerState.STANDBY: {WorkerState.SERVING, WorkerState.DRAINING, WorkerState.STOPPING},
    WorkerState.SERVING: {WorkerState.DRAINING, WorkerState.STOPPING},
    WorkerState.DRAINING: {WorkerState.STOPPING},
    WorkerState.STOPPING: set[WorkerState](),
}


@dataclass(slots=True)
class Doubt:
    """A silence of a worker that has lasted for most of its lease.

    Attributes:
        heard_s: `Worker.heard_s` when it began; another value there ends it.
        look: the last look at the process, if the kernel told anything.
        is_asked: a look was asked for and has not been answered.
        starved_s: seconds that were given back so far.
    """

    heard_s: float
    look: CpuLook | None = None
    is_asked: bool = False
    starved_s: float = 0.0


@dataclass(slots=True, eq=False)
class Worker:
    """One worker process.

    Attributes:
        generation: names it; never reused.
        spec: its pool as it was configured when it was started.
        token: what it proves itself with; empty for one that this broker did not start.
        is_standby: started to take the place of another one.
        is_child: spawned or adopted on this host: signals reach it and its exit is reported.
        is_manual: not started by any broker.
        was_serving: an older broker had it serve; decides who wins a slot.
        is_exit_asked: it is meant to leave, so nothing is started for it.
        is_killed: KILL was sent.
        request: number of the registrations that are in force; -1: none.
        calls: attempts it runs, and ended ones whose tail it still keeps.
        running: attempts it runs.
        leases: prepared calls it holds.
        queries: questions it was asked.
        queries_high_water: the most there ever were at once.
        heard_s: last frame from it, plus what its lease was extended by since.
        doubt: set while it has been silent for most of its lease.
        unheard_bytes: of requests that were handed to it since.
        unheard_high_water: the most there ever were.
        trial: the suspect call whose turn it is; nothing else begins in the worker meanwhile.
        trouble: why it is being stopped or was refused; part of the report of its exit.
    """

    generation: Generation
    spec: PoolSpec
    slot: int
    token: SecretBytes
    started_s: float
    is_standby: bool = False
    is_child: bool = True
    is_manual: bool = False
    was_serving: bool = False
    state: WorkerState = WorkerState.STARTING
    peer: bytes | None = None
    pid: int | None = None
    is_remote: bool = False
    is_exit_asked: bool = False
    is_killed: bool = False
    request: int = -1
    offer: Offer = EMPTY_OFFER
    calls: dict[CallId, Call] = field(default_factory=dict[CallId, Call])
    running: int = 0
    leases: set[LeaseId] = field(default_factory=set[LeaseId])
    queries: set[QueryId] = field(default_factory=set[QueryId])
    queries_high_water: int = 0
    heard_s: float = 0.0
    doubt: Doubt | None = None
    unheard_bytes: int = 0
    unheard_high_water: int = 0
    load: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trial: CallId | None = None
    trouble: str = ""

    @property
    def pool(self) -> PoolName:
        """Name of its pool."""
        return self.spec.name

    def enter(self, state: WorkerState) -> None:
        """Change the state; the table above says which changes exist."""
        if state not in _LEGAL[self.state]:
            raise AssertionError(f"a worker goes from {self.state} to {state}")
        self.state = state

    def hand(self, size_bytes: int) -> None:
        """Count a request that is sent to it: it lies in our memory until it is read."""
        self.unheard_bytes += size_bytes
        self.unheard_high_water = max(self.unheard_high_water, self.unheard_bytes)

    def is_ready(self) -> bool:
        """Tell whether its first registrations were accepted."""
        return self.request >= 0

    def is_drained(self) -> bool:
        """Tell whether it holds nothing that anybody still needs."""
        return not self.calls and not self.leases


class Workers:
    """All workers by generation and by connection."""

    __slots__ = ("_by_generation", "_by_peer", "high_water")

    def __init__(self) -> None:
        self.high_water = 0  # the most there ever were
        self._by_generation: dict[Generation, Worker] = {}
        self._by_peer: dict[bytes, Worker] = {}

    def __len__(self) -> int:
        """Return the number of workers."""
        return len(self._by_generation)

    def __iter__(self) -> Iterator[Worker]:
        """Iterate over the workers in order of start."""
        return iter(self._by_generation.values())

    def get(self, generation: Generation | None) -> Worker | None:
        """Return a worker by generation."""
        return None if generation is None else self._by_generation.get(generation)

    def at(self, peer: bytes) -> Worker | None:
        """Return the worker that registered on a connection."""
        return self._by_peer.get(peer)

    def add(self, worker: Worker) -> None:
        """Hold a new worker."""
        self._by_generation[worker.generation] = worker
        self.high_water = max(self.high_water, len(self._by_generation))

    def bind(self, worker: Worker, peer: bytes) -> None:
        """Bind a worker to the connection on which it registered; the older one is forgotten."""
        previous = self._by_peer.get(peer)
        if previous is not None and previous is not worker:
            previous.peer = None
        if worker.peer is not None and worker.peer != peer:
            del self._by_peer[worker.peer]
        worker.peer = peer
        self._by_peer[peer] = worker

    def disconnect(self, peer: bytes) -> Worker | None:
        """Take note that a connection closed; return whose it was."""
        worker = self._by_peer.pop(peer, None)
        if worker is not None:
            worker.peer = None
        return worker

    def remove(self, worker: Worker) -> None:
        """Forget a worker."""
        del self._by_generation[worker.generation]
        if worker.peer is not None:
            del self._by_peer[worker.peer]
            worker.peer = None
