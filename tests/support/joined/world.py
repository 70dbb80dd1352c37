"""One broker, its worker, its clients and their links in simulated time.

Every control frame passes the codec. The broker may die and come back, each link may break on its
own, and a client may die. `problems` holds what must not happen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from trunkline.core.mux import Mux
from trunkline_broker.core import effects as do
from trunkline_broker.core import events as said
from trunkline_broker.core.broker import Broker
from trunkline_broker.core.specs import AliveWorker, BrokerSpec, PoolSpec
from trunkline_protocol.codec import Direction, decode, encode, encode_probed
from trunkline_protocol.frames import ClientFrame, WorkerFrame
from trunkline_protocol.ids import ClientId, Epoch
from trunkline_workers.core.calls import WorkerCalls
from trunkline_workers.core.effects import SendLane

from tests.support.broker_rig import a_pool
from tests.support.joined.client import ClientShell
from tests.support.joined.net import Clock, Pipe
from tests.support.joined.worker import WorkerShell

POOLS = ("wide", "tight")  # the second runs three calls at once
_LOOK_EVERY_TURNS = 16

Party = ClientShell | WorkerShell
Lose = Callable[[str, object, Party], bool]
"""Decides whether a frame is lost: its way (of a `Direction`, or a lane), itself, its party."""
CLIENT_LANE = "lane to client"
WORKER_LANE = "lane from worker"


def lose_nothing(way: str, frame: object, party: Party) -> bool:
    """Lose no frame."""
    del way, frame, party
    return False


class World:
    """Everything of one history.

    Args:
        seed: of all that is random.
        max_delay_s: of a frame on a link.
        calls_type: the worker's table; another one to see that its fault is noticed.
        mux_type: the client's core.
        lose: decides whether a frame is lost.
        is_strict: whether a broker that finds a call waiting for nothing fails, or repairs it.
        queue_timeout_s: longest wait for a place.
    """

    def __init__(
        self,
        seed: int,
        max_delay_s: float = 0.001,
        calls_type: type[WorkerCalls] = WorkerCalls,
        mux_type: type[Mux] = Mux,
        lose: Lose = lose_nothing,
        *,
        is_strict: bool = True,
        queue_timeout_s: float = 3600.0,
    ) -> None:
        self.rng = Random(seed)  # noqa: S311  reproducible, not secret
        self.clock = Clock()
        self.clock.after_turn = self._after_turn
        self.problems: list[str] = []
        self.workers: list[WorkerShell] = []
        self.clients: list[ClientShell] = []
        self.is_up = False
        self.lose = lose
        self.late_turns = self.rng.choice((1, 3, 10))  # of pullers and readers that are woken
        self._max_delay_s = max_delay_s
        self._calls_type = calls_type
        self._mux_type = mux_type
        self._numbers = 100
        self._epoch = 10**9
        self._watched: set[int] = set()
        self._events: list[said.Event] = []
        self._is_pumping = False
        self._due_s = float("inf")
        pools = tuple(self._pool(name, queue_timeout_s) for name in POOLS)
        self.is_strict = is_strict
        self.spec = BrokerSpec(
            pools=pools,
            lane="ipc://lane",
            workers_lane="ipc://workers",
            is_liveness_strict=is_strict,
        )
        self.start_broker()

    def _pool(self, name: str, queue_timeout_s: float) -> PoolSpec:
        concurrency = 3 if name == "tight" else None
        return a_pool(name, concurrency=concurrency, queue_timeout_s=queue_timeout_s)

    # --- for the parties -----------------------------------------------------------------------

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def pipe(self) -> Pipe:
        return Pipe(self.clock, self.rng, self._max_delay_s)

    def problem(self, what: str) -> None:
        self.problems.append(f"{self.clock.now_s - 1000:.4f} s: {what}")

    def a_client(self) -> ClientShell:
        client = ClientShell(self, self._mux_type)
        self.clients.append(client)
        client.connect()
        return client

    @property
    def hub(self) -> Any:
        return self.broker._hub

    # --- the broker ----------------------------------------------------------------------------

    def start_broker(self) -> None:
        """Begin a broker; what lived under the last one connects again."""
        self._epoch += 1000
        self.broker = Broker(self.spec, Epoch(self._epoch), self.rng.randbytes)
        self.is_up = True
        self._due_s = float("inf")
        self._watched = set()
        alive = tuple(
            AliveWorker(w.order.pool, w.order.slot, w.order.generation, w.pid, w.order.token)
            for w in self.workers
            if w.is_alive
        )
        self.tell(said.Started(alive))
        for party in (*self.workers, *self.clients):
            for connect in (party.connect, party.connect_lane):
                self.clock.after(self.rng.random() * 0.1, connect)

    def kill_broker(self, down_s: float) -> None:
        """Kill the broker; another one comes after `down_s`."""
        if not self.is_up:
            return
        self.is_up = False
        for worker in self.workers:
            worker.disconnect((worker.to_broker, worker.from_broker, worker.lane))
        for client in self.clients:
            client.lane.close()
            client.disconnect()
        self.clock.after(down_s, self.start_broker)

    def tell(self, event: said.Event) -> None:
        """Hand an event to the broker and perform what follows."""
        if not self.is_up:
            return
        self._events.append(event)
        if self._is_pumping:
            return
        self._is_pumping = True
        broker = self.broker
        while self._events and broker is self.broker:
            for effect in broker.handle(self._events.pop(0), self.clock.now_s):
                self._perform(effect)
        self._is_pumping = False
        self._arm()

    def _arm(self) -> None:
        due_s = self.broker.next_deadline_s()
        if due_s is not None and due_s < self._due_s:
            self._due_s = due_s
            broker = self.broker
            self.clock.at(due_s, lambda: self._tick(broker, due_s))

    def _tick(self, broker: Broker, due_s: float) -> None:
        if broker is self.broker and due_s == self._due_s:
            self._due_s = float("inf")
            self.tell(said.Ticked())

    def _perform(self, effect: do.Effect) -> None:
        match effect:
            case do.SendToClient():
                self._to_client(effect)
            case do.SendToWorker():
                self._to_worker(effect)
            case do.EchoProbe():
                self._to_lane(effect.client, encode_probed(effect.nonce))
            case do.Spawn():
                self.clock.after(0.01, lambda: self._spawn(effect))
            case do.Signal() | do.Adopt():
                self._to_process(effect)
            case do.LookAtWorker():
                self.tell(said.WorkerLooked(effect.generation, None))
            case do.WatchClient():
                self._watched.add(effect.pid)
                self._report_exits()
            case do.UnwatchClient():
                self._watched.discard(effect.pid)
            case _:
                pass

    # --- processes -----------------------------------------------------------------------------

    def _spawn(self, order: do.Spawn) -> None:
        worker = WorkerShell(self, order, self._calls_type)
        self.workers.append(worker)
        self.tell(said.ProcessSpawned(order.pool, order.slot, order.generation, worker.pid))
        worker.connect()

    def _to_process(self, effect: do.Signal | do.Adopt) -> None:
        for worker in self.workers:
            if worker.order.generation == effect.generation:
                if isinstance(effect, do.Signal):
                    self.kill(worker, f"signal {effect.signal}")
                elif not worker.is_alive:
                    self._report_exit(worker, "unknown status")

    def kill(self, worker: WorkerShell, reason: str) -> None:
        """End a worker process."""
        if worker.is_alive:
            worker.is_alive = False
            worker.disconnect((worker.to_broker, worker.from_broker, worker.lane))
            self._report_exit(worker, reason)

    def _report_exit(self, worker: WorkerShell, reason: str) -> None:
        order = worker.order
        exited = said.ProcessExited(order.pool, order.slot, order.generation, reason)
        self.clock.after(0.001, lambda: self.tell(exited))

    def kill_client(self, client: ClientShell) -> None:
        """End a client process."""
        client.is_alive = False
        client.lane.close()
        self.cut_client(client, back_s=None)
        self._report_exits()

    def _report_exits(self) -> None:
        for client in self.clients:
            if not client.is_alive and client.pid in self._watched:
                self._watched.discard(client.pid)
                gone = said.ClientExited(client.pid)
                self.clock.after(0.001, lambda gone=gone: self.tell(gone))

    # --- links that break ----------------------------------------------------------------------

    def cut_client(self, client: ClientShell, back_s: float | None) -> None:
        """Break the control connection of a client."""
        if client.to_broker.is_up:
            peer = client.peer
            client.disconnect()
            gone = said.PeerDisconnected(said.Side.CLIENT, peer)
            self.clock.after(self.rng.random() * 0.02, lambda: self.tell(gone))
        if back_s is not None:
            self.clock.after(back_s, client.connect)

    def cut_worker(self, worker: WorkerShell, back_s: float) -> None:
        """Break the control connection of a worker."""
        if worker.to_broker.is_up:
            peer = worker.peer
            worker.disconnect((worker.to_broker, worker.from_broker))
            gone = said.PeerDisconnected(said.Side.WORKER, peer)
            self.clock.after(self.rng.random() * 0.02, lambda: self.tell(gone))
        self.clock.after(back_s, worker.connect)

    def cut_lane(self, party: Party, back_s: float) -> None:
        """Break the lane of a client or a worker."""
        party.lane.close()
        self.clock.after(back_s, party.connect_lane)

    # --- frames --------------------------------------------------------------------------------

    def on_client_says(self, client: ClientShell, frame: ClientFrame) -> None:
        """Carry a control frame of a client."""
        way = Direction.CLIENT_TO_BROKER
        if self.lose(way.value, frame, client):
            return
        got = decode(encode(frame), way)
        event = said.ClientFrameReceived(client.peer, got, client.pid)  # type: ignore[arg-type]
        client.to_broker.send(lambda: self.tell(event))

    def on_worker_says(self, worker: WorkerShell, frame: WorkerFrame) -> None:
        """Carry a control frame of a worker."""
        way = Direction.WORKER_TO_BROKER
        if self.lose(way.value, frame, worker):
            return
        got = decode(encode(frame), way)
        event = said.WorkerFrameReceived(worker.peer, got, worker.pid)  # type: ignore[arg-type]
        worker.to_broker.send(lambda: self.tell(event))

    def on_worker_lane(self, worker: WorkerShell, effect: SendLane) -> None:
        """Carry a lane frame through the broker to a client."""
        if not self.lose(WORKER_LANE, effect.frame, worker):
            worker.lane.send(lambda: self._to_lane(effect.client, effect.frame))

    def _to_lane(self, client_id: ClientId, frame: bytes) -> None:
        for client in self.clients:
            if client.id == client_id and not self.lose(CLIENT_LANE, frame, client):
                client.lane.send(partial(client.get_lane, frame))

    def _to_client(self, effect: do.SendToClient) -> None:
        way = Direction.BROKER_TO_CLIENT
        frame: Any = decode(encode(effect.frame), way)
        for client in self.clients:
            if client.peer == effect.peer and not self.lose(way.value, frame, client):
                client.from_broker.send(partial(client.get, frame))

    def _to_worker(self, effect: do.SendToWorker) -> None:
        way = Direction.BROKER_TO_WORKER
        frame: Any = decode(encode(effect.frame), way)
        for worker in self.workers:
            if worker.peer == effect.peer and not self.lose(way.value, frame, worker):
                worker.from_broker.send(partial(worker.get, frame))

    # --- what must not be ----------------------------------------------------------------------

    def _after_turn(self) -> None:
        if self.clock.turns % _LOOK_EVERY_TURNS == 0:
            self.look()

    def look(self) -> None:
        """See that nobody sleeps who could work."""
        for worker in self.workers:
            if worker.is_alive:
                self._look_at_worker(worker)
        for client in self.clients:
            for reader in client.every_reader if client.is_alive else ():
                if reader.is_asleep and (reader.stream.intake.has_waiting or reader.stream.is_over):
                    self.problem("a reader sleeps on chunks")
                    reader.is_asleep = False
        if self.is_up and not self._is_pumping:
            for route in self.hub.gates.waiting():
                if self.broker._openings.is_startable(route, self.clock.now_s):
                    self.problem(f"a call waits on route {route}, and could start")

    def _look_at_worker(self, worker: WorkerShell) -> None:
        for key, found in worker.core.calls.unfinished():
            puller = worker.pullers.get(key)
            if puller is None:
                self.problem("an attempt runs without a puller")
            elif puller.is_asleep and found.room > 0:
                self.problem(f"a puller sleeps on room for {found.room} chunks")
                puller.is_asleep = False  # said once
                self.clock.after(0.0, lambda: None)
