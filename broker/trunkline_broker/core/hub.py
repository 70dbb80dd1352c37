"""What the parts of the broker share: the machines, the clock of names, the list of effects.

The machines hold no references to each other; the flows (`openings.py`, `endings.py` …) compose
them through this. A flow that another one must hear of leaves a fact here, and `broker.py` passes
it on before the event is over.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from trunkline_protocol import limits
from trunkline_protocol.frames import Event, Restated, ToClientFrame, ToWorkerFrame, Window
from trunkline_protocol.ids import CallId, ClientId, Epoch, Generation, LeaseId, RouteName

from trunkline_broker.core.admission import Gates
from trunkline_broker.core.calls import Call, Calls
from trunkline_broker.core.clients import Client, Clients
from trunkline_broker.core.deadlines import Deadlines
from trunkline_broker.core.effects import Count, Effect, Log, SendToClient, SendToWorker
from trunkline_broker.core.registry import Registry
from trunkline_broker.core.specs import BrokerSpec
from trunkline_broker.core.supervision import Pools
from trunkline_broker.core.suspicion import Suspicion
from trunkline_broker.core.workers import Worker, Workers

_JITTER_BYTES: Final = 6
_JITTER_UNIT: Final = 256**_JITTER_BYTES


class Timer(Enum):
    """What a deadline is for; the second part of its name says whose."""

    __hash__ = object.__hash__  # that of `Enum` is written in Python; a call asks five times

    START = "worker not ready"
    LEASE = "worker silent"
    DRAIN = "worker drains too long"
    KILL = "worker told to leave is still there"
    RESTART = "slot may start again"
    QUEUE = "call waits too long"
    BACKOFF = "delay of a retry"
    OFFER = "client does not open the offered attempt"
    RETENTION = "ended call nobody fetches"
    PAUSE = "route paused by its provider"
    PREPARED = "prepared call nobody dispatches"
    QUERY = "query unanswered"
    CLIENT = "client without connection or process"
    SETTLE = "workers of the older broker"
    STOP = "drain of the broker"
    DETACHED = "running call that nobody attaches to"
    TRIAL = "turn of a suspect request"
    LOOK = "comparison of what is held with what is named"


@dataclass(frozen=True, slots=True)
class WorkerServed:
    """A worker began to serve; what it replaced drains."""

    worker: Worker
    replaced: Worker | None
    alive_calls: int
    routes_lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone, or can't become ready.

    Attributes:
        reason: for people, with the last lines of output.
    """

    worker: Worker
    reason: str


Fact = WorkerServed | WorkerLost
TimerName = tuple[Timer, Hashable]


class Hub:
    """The machines of one broker.

    Attributes:
        access: what clients on other hosts may do, by name of their key; as last configured.
        leases: prepared calls and who holds them.
        lease_clients: whose they are, as far as that is known.
        unsettled: calls that wait until it is known what the workers of an older broker hold.
        claims: what clients say they hold, until then.
        claims_high_water, unsettled_high_water: the most there ever were of both.
        awaited: workers that have not told what they hold.
        is_settling: workers are awaited, so nothing can be decided yet.
        is_young: no worker is awaited, since no hint file names one; some may come all the same.
            Fresh calls begin, but what clients say they hold waits.
        queued_bytes: bodies in all queues.
        freed: routes on which a place may have become free.
        is_look_due: everything that waits must be compared with what it waits for.
        is_topology_new: queries that wait must be looked at.
        drained: draining workers that let something go.
        facts: what other flows must hear of.
        now_s: when the event came that is being handled.
        out: effects of that event.
    """

    def __init__(self, spec: BrokerSpec, epoch: Epoch, draw: Callable[[int], bytes]) -> None:
        """Make empty machines; `draw(n)` returns n random bytes drawn by the shell's source."""
        self.spec = spec
        self.access = spec.access
        self.epoch = epoch
        self.draw = draw
        self.clients = Clients()
        self.calls = Calls(limits.MAX_ENDED_CALLS)
        self.gates = Gates()
        self.suspicion = Suspicion()
        self.registry = Registry()
        self.pools = Pools()
        self.workers = Workers()
        self.deadlines: Deadlines[TimerName] = Deadlines()
        self.leases: dict[LeaseId, Generation] = {}
        self.lease_clients: dict[LeaseId, ClientId] = {}
        self.unsettled: dict[CallId, Call] = {}
        self.claims: dict[CallId, tuple[ClientId, Restated]] = {}
        self.awaited: set[Generation] = set()
        self.claims_high_water = self.unsettled_high_water = 0
        self.is_settling = False
        self.is_young = False
        self.is_draining = False
        self.queued_bytes = 0
        self.queued_bytes_high_water = 0
        self.freed: set[RouteName] = set()
        self.is_topology_new = self.is_look_due = False
        self.drained: list[Worker] = []
        self.facts: list[Fact] = []
        self.counters: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self.now_s = 0.0
        self.out: list[Effect] = []
        self._generation = 0

    def hold_lease(
        self, worker: Worker, lease: LeaseId, until_s: float, client: Client | None
    ) -> None:
        """Take note that a worker holds a prepared call alive until a deadline.

        It is the first client's that is named; `None`: it is not known whose it is.
        """
        self.leases[lease] = worker.generation
        worker.leases.add(lease)
        self.deadlines.set((Timer.PREPARED, lease), until_s)
        if client is not None and lease not in self.lease_clients:
            self.lease_clients[lease] = client.id
            client.leases.add(lease)

    def drop_lease(self, lease: LeaseId) -> None:
        """Take note that a prepared call was used, released or has run out."""
        worker = self.workers.get(self.leases.pop(lease, None))
        client = self.clients.get(self.lease_clients.pop(lease, None))
        self.deadlines.clear((Timer.PREPARED, lease))
        if client is not None:
            client.leases.discard(lease)
        if worker is not None:
            worker.leases.discard(lease)
            self.drained.append(worker)

    def take_bytes(self, count: int) -> bool:
        """Count a body that waits; `False` and no change if too much waits already."""
        if self.queued_bytes + count > self.spec.queue_bytes:
            return False
        self.queued_bytes += count
        self.queued_bytes_high_water = max(self.queued_bytes_high_water, self.queued_bytes)
        return True

    def next_generation(self) -> Generation:
        """Return a generation that was never given out."""
        self._generation += 1
        return Generation(self.epoch, self._generation)

    def jitter(self) -> float:
        """Return a sample in [0, 1)."""
        return int.from_bytes(self.draw(_JITTER_BYTES), "big") / _JITTER_UNIT

    def end_pauses(self, routes: Iterable[RouteName]) -> None:
        """End the pauses that providers wished for: an operator has changed what serves."""
        for route in routes:
            if self.gates.is_paused(route, self.now_s):
                self.gates.at(route).end_pause()
                self.deadlines.clear((Timer.PAUSE, route))
                self.freed.add(route)
                self.count("pauses_ended")

    def to_client(self, client: Client | None, frame: ToClientFrame) -> None:
        """Send to a client; one without a connection asks again when it is back."""
        if client is not None and client.peer is not None:
            self.out.append(SendToClient(client.peer, frame))

    def to_worker(self, worker: Worker, frame: ToWorkerFrame) -> None:
        """Send to a worker; one without a connection tells what it holds when it is back."""
        if worker.peer is not None:
            self.out.append(SendToWorker(worker.peer, frame))

    def to_all_clients(self, frame: ToClientFrame) -> None:
        """Send to every client."""
        for client in self.clients:
            self.to_client(client, frame)

    def may_be_held(self) -> bool:
        """Tell whether a call that is unknown here may yet be named by a worker."""
        return self.is_settling or self.is_young

    def has_more(self) -> bool:
        """Tell whether something was left for other flows."""
        return bool(
            self.facts
            or self.freed
            or self.drained
            or self.is_topology_new
            or self.is_look_due
            or self.is_settling
            or self.is_draining
        )

    def on_topology(self) -> None:
        """Look again at everything that waits: who serves what has changed."""
        self.freed.update(self.gates.waiting())
        self.is_topology_new = True

    def announce_adapters(self) -> None:
        """Tell every client that the topology changed; once per commit point."""
        self.to_all_clients(Event("adapters-updated"))

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + amount
        self.out.append(Count(name, amount))

    def count_refused(self, code: str) -> None:
        """Count a refusal by its code."""
        self.refused[code] = self.refused.get(code, 0) + 1
        self.count("refused")

    def stuck(self, what: str, fields: Mapping[str, object]) -> None:
        """Report that something waits for an event that cannot come; the caller repairs it.

        Raises:
            AssertionError: the broker was started to end at such a defect, as tests do.
        """
        self.count("liveness")
        self.log("error", "liveness", {"what": what, **fields})
        if self.spec.is_liveness_strict:
            raise AssertionError(f"{what}: {dict(fields)}")

    def log(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        """Ask for a log line."""
        self.out.append(Log(level, event, fields))

    def worker_fields(self, worker: Worker) -> dict[str, object]:
        """Return what a log line says of a worker."""
        return {
            "pool": worker.pool,
            "slot": worker.slot,
            "generation": list(worker.generation),
            "pid": worker.pid,
        }

    def open_stream(self, client: Client, call: Call) -> None:
        """Count a stream of a client; its others may get smaller windows."""
        self._send_windows(client, client.budget.open(call.id))

    def close_stream(self, client: Client, call: Call) -> None:
        """Count a stream of a client no more; its others may get larger windows."""
        self._send_windows(client, client.budget.close(call.id))

    def _send_windows(self, client: Client, changed: list[CallId]) -> None:
        for call_id in changed:
            call = client.calls[call_id]
            if call.ended is None:
                self.send_window(client, call)

    def send_window(self, client: Client, call: Call) -> None:
        """Tell worker and client of a running attempt its window."""
        chunks, size = client.budget.window(call.id)
        frame = Window(call.id, call.attempt, chunks, size)
        worker = self.workers.get(call.worker)
        if worker is not None:
            self.to_worker(worker, frame)
        self.to_client(client, frame)
