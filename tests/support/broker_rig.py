"""A broker core with a clock that tests move, and peers that remember what they were sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from trunkline_broker.core import events
from trunkline_broker.core.broker import Broker
from trunkline_broker.core.cpu import CpuLook
from trunkline_broker.core.effects import (
    Effect,
    Exit,
    LookAtWorker,
    SendStatus,
    SendToClient,
    SendToWorker,
    Signal,
    Spawn,
)
from trunkline_broker.core.hub import Hub, Timer
from trunkline_broker.core.specs import AliveWorker, BrokerSpec, PoolSpec
from trunkline_protocol import frames
from trunkline_protocol.codec import Direction, decode, encode, pack_body, unpack_body
from trunkline_protocol.ids import (
    CallId,
    ClientId,
    Epoch,
    Generation,
    PoolName,
    QueryId,
    RouteName,
    StreamKey,
)

F = TypeVar("F")
E = TypeVar("E")
VERSION = (1, 0)


def a_pool(name: str = "p", **fields: Any) -> PoolSpec:
    """Return a pool whose routes are its own name unless `providers` says otherwise."""
    fields.setdefault("providers", (name,))
    return PoolSpec(name=PoolName(name), adapter="scripted", **fields)


def adapters(*routes: str, number: int = 1, policy: Mapping[str, Any] | None = None) -> Any:
    """Return the `adapters` of a `REGISTRATIONS` with one adapter."""
    rows = [
        {"info": {"id": route, "name": route.upper()}, **({"policy": policy} if policy else {})}
        for route in routes
    ]
    return ({"adapter": number, "routes": tuple(rows)},)


NORMAL: dict[str, Any] = {
    "mode": "normal",
    "maxRetries": 2,
    "retryableCodes": ["RATE_LIMIT", "SERVER", "TRANSPORT"],
    "initialDelayMs": 1000,
    "maxDelayMs": 8000,
    "jitterRatio": 0,
}


class Rig:
    """One broker core and everything it ever asked for.

    Attributes:
        now_s: the clock.
        effects: effects of the last event.
        look: answers `LookAtWorker`; by default the kernel tells nothing.
        answers_looks: `False`: the shell never answers.
    """

    def __init__(
        self,
        *pools: PoolSpec,
        epoch: int = 1000,
        alive: tuple[AliveWorker, ...] = (),
        young: bool = False,
        **spec: Any,
    ) -> None:
        """Start a broker.

        Args:
            pools: its configuration.
            epoch: its start time.
            alive: its hint file.
            young: without a hint file, leave it in its first seconds.
            spec: other fields of `BrokerSpec`.
        """
        self.now_s = 100.0
        self.effects: list[Effect] = []
        self.answers_looks = True
        self.look: Callable[[Generation], CpuLook | None] = lambda _: None
        spec.setdefault("is_liveness_strict", True)
        self.spec = BrokerSpec(
            pools=pools or (a_pool(),), lane="ipc://lane", workers_lane="ipc://workers", **spec
        )
        self._draws = itertools.count(1)
        self.broker = Broker(self.spec, Epoch(epoch), self._draw)
        self._numbers = itertools.count(1)
        self.tell(events.Started(alive))
        if not alive and not young:
            self.hub.is_young = False
            self.hub.deadlines.clear((Timer.SETTLE, None))

    def restart(self, alive: tuple[AliveWorker, ...]) -> list[Effect]:
        """Put a new broker in the place of this one, which is killed."""
        epoch = Epoch(self.hub.epoch + 1000)
        self.broker = Broker(self.spec, epoch, self._draw)
        return self.tell(events.Started(alive))

    @property
    def hub(self) -> Hub:
        return self.broker._hub

    def _draw(self, size: int) -> bytes:
        return next(self._draws).to_bytes(size, "big")

    def number(self) -> int:
        return next(self._numbers)

    def tell(self, event: events.Event) -> list[Effect]:
        """Hand in one event; frames must survive the wire."""
        self.effects = self.broker.handle(event, self.now_s)
        looks = [e for e in self.effects if isinstance(e, LookAtWorker)]
        for look in looks if self.answers_looks else ():
            answer = events.WorkerLooked(look.generation, self.look(look.generation))
            self.effects += self.broker.handle(answer, self.now_s)
        for effect in self.effects:
            if isinstance(effect, SendToClient):
                parts = encode(effect.frame)
                decode(parts, Direction.BROKER_TO_CLIENT)
            elif isinstance(effect, SendToWorker):
                decode(encode(effect.frame), Direction.BROKER_TO_WORKER)
        return self.effects

    def tick(self, seconds: float = 0.0, lateness_s: float = 0.0) -> list[Effect]:
        """Move the clock straight to a point and tick there once."""
        self.now_s += seconds
        return self.tell(events.Ticked(lateness_s))

    def wait(self, seconds: float) -> list[Effect]:
        """Move the clock from deadline to deadline, as the shell does."""
        end_s = self.now_s + seconds
        seen: list[Effect] = []
        while (due_s := self.broker.next_deadline_s()) is not None and due_s <= end_s:
            self.now_s = max(self.now_s, due_s)
            seen += self.tick()
        self.now_s = end_s
        self.effects = seen
        return seen

    def live(self, seconds: float, *workers: RigWorker) -> list[Effect]:
        """Move the clock while these workers beat every second."""
        end_s = self.now_s + seconds
        seen: list[Effect] = []
        while self.now_s < end_s:
            seen += self.wait(min(1.0, end_s - self.now_s))
            for worker in workers:
                seen += worker.beat()
        self.effects = seen
        return seen

    def of(self, kind: type[E]) -> list[E]:
        """Return the effects of one kind of the last event (or wait)."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def spawned(self) -> list[Spawn]:
        return self.of(Spawn)

    def signals(self) -> list[tuple[Generation, str]]:
        return [(effect.generation, effect.signal) for effect in self.of(Signal)]

    def has_exited(self) -> bool:
        return bool(self.of(Exit))

    def to(self, peer: bytes, kind: type[F]) -> list[F]:
        """Return what the last event sent to a peer, of one kind."""
        sent = [
            effect.frame
            for effect in self.effects
            if isinstance(effect, SendToClient | SendToWorker) and effect.peer == peer
        ]
        return [frame for frame in sent if isinstance(frame, kind)]

    def count(self, name: str) -> int:
        return self.hub.counters.get(name, 0)

    def a_client(self, **fields: Any) -> RigClient:
        """Return a client that has said `HELLO`."""
        client = RigClient(self, self.number(), **fields)
        client.hello()
        return client

    def spawn(self, spawn: Spawn) -> RigWorker:
        """Return the worker of a `Spawn`, which has not registered."""
        worker = RigWorker(
            self, spawn.pool, spawn.slot, spawn.generation, spawn.token.get_secret_value()
        )
        self.tell(events.ProcessSpawned(spawn.pool, spawn.slot, spawn.generation, worker.pid))
        return worker

    def a_worker(self, *routes: str, spawn: Spawn | None = None, **fields: Any) -> RigWorker:
        """Return a ready worker: that of the given `Spawn`, or of the first one ever asked for."""
        if spawn is None:
            hub_worker = next(iter(self.hub.workers))
            spawn = Spawn(
                hub_worker.pool,
                hub_worker.slot,
                hub_worker.generation,
                hub_worker.spec,
                hub_worker.token,
            )
        worker = self.spawn(spawn)
        worker.register()
        worker.ready(*(routes or (spawn.pool,)), **fields)
        return worker

    def check(self) -> None:
        """Check what must hold between any two events."""
        hub = self.hub
        for worker in hub.workers:
            running = [c for c in worker.calls.values() if c.state.value == "running"]
            assert worker.running == len(running)
            assert all(call.worker == worker.generation for call in worker.calls.values())
            assert all(hub.leases[lease] == worker.generation for lease in worker.leases)
        assert len(hub.leases) == sum(len(worker.leases) for worker in hub.workers)
        waiting = 0
        for route, gate in hub.gates:
            running = [c for c in hub.calls if c.state.value == "running" and c.provider == route]
            assert gate.running == len(running)
            waiting += len(gate)
        queued = [call for call in hub.calls if call.state.value == "queued"]
        assert len(queued) == waiting + len(hub.unsettled)
        asked = [question.held_bytes for question in self.broker._questions._waiting.values()]
        bodies = [len(call.waiting.body) for call in queued if call.waiting]
        assert hub.queued_bytes == sum(bodies) + sum(asked)
        for client in hub.clients:
            streams = [c for c in client.calls.values() if c.worker is not None]
            assert len(client.budget) == len(streams)
            assert all(hub.calls.get(key) is call for key, call in client.calls.items())
        for call in hub.calls:
            assert call.client is None or call.id in hub.clients.ensure(call.client).calls
            if call.worker is not None:
                owner = hub.workers.get(call.worker)
                assert owner is not None
                assert owner.calls[call.id] is call


class RigClient:
    """One client and its connection."""

    def __init__(
        self, rig: Rig, number: int, pid: int | None = 0, client: ClientId | None = None
    ) -> None:
        self.rig = rig
        self.id = client or ClientId(number.to_bytes(16, "big"))
        self.peer = b"client-%d" % number
        self.pid = 50_000 + number if pid == 0 else pid

    def say(self, frame: frames.ClientFrame) -> list[Effect]:
        return self.rig.tell(events.ClientFrameReceived(self.peer, frame, self.pid))

    def got(self, kind: type[F]) -> list[F]:
        return self.rig.to(self.peer, kind)

    def hello(self, protocol: tuple[int, int] = VERSION) -> list[Effect]:
        return self.say(frames.Hello(protocol, self.id, self.pid or 1, "rig"))

    def reconnect(self) -> list[Effect]:
        """Come back on a new connection, the old one being closed."""
        self.disconnect()
        self.peer = b"client-%d" % self.rig.number()
        return self.hello()

    def disconnect(self) -> list[Effect]:
        return self.rig.tell(events.PeerDisconnected(events.Side.CLIENT, self.peer))

    def die(self) -> list[Effect]:
        self.disconnect()
        return self.rig.tell(events.ClientExited(self.pid or 0))

    def an_open(self, route: str = "p", **fields: Any) -> frames.Open:
        number = self.rig.number()
        values: dict[str, Any] = {
            "call": CallId(number.to_bytes(16, "big")),
            "attempt": 0,
            "stream_key": StreamKey(number.to_bytes(8, "big")),
            "provider": RouteName(route),
            "model": "m",
            "body": b"body",
            **fields,
        }
        return frames.Open(**values)

    def open(self, route: str = "p", **fields: Any) -> frames.Open:
        frame = self.an_open(route, **fields)
        self.say(frame)
        return frame

    def query(self, op: str, argument: object = None, **fields: Any) -> frames.Query:
        body = b"" if argument is None else pack_body(argument)
        query = QueryId(self.rig.number().to_bytes(16, "big"))
        frame = frames.Query(query, op, body=body, **fields)
        self.say(frame)
        return frame

    def answer(self) -> Any:
        """Return the value or the failure map of the one `REPLY` of the last event."""
        (reply,) = self.got(frames.Reply)
        return reply.failure if reply.failure is not None else unpack_body(reply.body)

    def failure(self) -> Mapping[str, Any]:
        (failed,) = self.got(frames.Failed)
        return failed.failure


class RigWorker:
    """One worker process and its connection."""

    def __init__(
        self, rig: Rig, pool: str, slot: int, generation: Generation, token: bytes = b""
    ) -> None:
        self.rig = rig
        self.pool, self.slot = PoolName(pool), slot
        self.generation = generation
        self.token = token
        self.peer = b"worker-%d" % rig.number()
        self.pid: int | None = 60_000 + rig.number()
        self.request = 0

    def say(self, frame: frames.WorkerFrame) -> list[Effect]:
        return self.rig.tell(events.WorkerFrameReceived(self.peer, frame, self.pid))

    def got(self, kind: type[F]) -> list[F]:
        return self.rig.to(self.peer, kind)

    def register(self, role: str = "starting", **fields: Any) -> list[Effect]:
        values: dict[str, Any] = {
            "protocol": VERSION,
            "pool": self.pool,
            "slot": self.slot,
            "generation": self.generation,
            "pid": self.pid or 1,
            "role": role,
            "token": self.token,
            **fields,
        }
        effects = self.say(frames.Register(**values))
        for registered in self.got(frames.Registered):
            self.generation = registered.generation
        return effects

    def ready(self, *routes: str, **fields: Any) -> list[Effect]:
        return self.commit(adapters(*routes, policy=fields.pop("policy", None)), **fields)

    def commit(self, rows: Any, **fields: Any) -> list[Effect]:
        self.request += 1
        return self.say(frames.Registrations(self.request, rows, **fields))

    def reconnect(self, **fields: Any) -> list[Effect]:
        """Come back on a new connection, the old one being closed."""
        self.rig.tell(events.PeerDisconnected(events.Side.WORKER, self.peer))
        self.peer = b"worker-%d" % self.rig.number()
        return self.register("serving", **fields)

    def end(self, opened: frames.Open, **fields: Any) -> list[Effect]:
        finish = fields.pop("finish", {"kind": "stop"})
        return self.say(frames.Ended(opened.call, opened.attempt, 3, finish, **fields))

    def end_with(self, opened: frames.Open, code: str, **failure: Any) -> list[Effect]:
        failed = {"message": "no", "code": code, **failure}
        return self.end(opened, finish={"kind": "error", "failure": failed})

    def beat(
        self,
        *sent: frames.Progress,
        load: Mapping[str, Any] | None = None,
        held: tuple[frames.Holding, ...] | None = None,
    ) -> list[Effect]:
        return self.say(frames.Heartbeat(tuple(sent), load, held))

    def exit(self, text: str = "signal 9", *tail: str) -> list[Effect]:
        return self.rig.tell(
            events.ProcessExited(self.pool, self.slot, self.generation, text, tail)
        )


def done(*opened: frames.Open) -> frames.Done:
    """Return the `DONE` of these attempts."""
    return frames.Done(tuple(frames.CallRef(frame.call, frame.attempt) for frame in opened))


def held(opened: frames.Open, client: RigClient, **fields: Any) -> frames.HeldCall:
    """Return what a worker says of an attempt it holds."""
    values: dict[str, Any] = {
        "call": opened.call,
        "attempt": opened.attempt,
        "client": client.id,
        "stream_key": opened.stream_key,
        "provider": opened.provider,
        "next": 5,
        "is_ended": False,
        **fields,
    }
    return frames.HeldCall(**values)


def restated(opened: frames.Open, received: int = 4) -> frames.Restate:
    """Return the `RESTATE` of one attempt."""
    entry = frames.Restated(
        opened.call,
        opened.attempt,
        opened.stream_key,
        opened.provider,
        received,
        2,
        20,
        is_recovered=opened.recovery == "policy",
    )
    return frames.Restate((entry,))


def only(items: list[F]) -> F:
    """Return the one item there is."""
    (item,) = items
    return item


def reply_status(rig: Rig) -> SendStatus:
    """Return the one request for a status of the last event."""
    return only(rig.of(SendStatus))


def status_of(rig: Rig) -> dict[str, Any]:
    """Return the status document."""
    return cast("dict[str, Any]", rig.broker.status(rig.now_s))
