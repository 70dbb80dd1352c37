"""The whole broker core under random events, against a model of what clients and workers know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trunkline_broker.core.effects import Effect, SendToClient, SendToWorker, Signal, Spawn
from trunkline_broker.core.specs import AliveWorker
from trunkline_protocol import frames
from trunkline_protocol.ids import CallId, Generation
from trunkline_protocol.secret import SecretBytes

from tests.support.broker_rig import (
    NORMAL,
    Rig,
    RigClient,
    RigWorker,
    a_pool,
    done,
    held,
    restated,
)

INDEX = st.integers(0, 1000)


class _Seen:
    """What one client knows of one of its calls.

    Attributes:
        state: opening, open, tail, backoff, offered or over.
    """

    def __init__(self, client: RigClient, frame: frames.Open) -> None:
        self.client = client
        self.frame = frame
        self.state = "opening"


class BrokerMachine(RuleBasedStateMachine):
    """Clients and workers that keep to the protocol, dying and reconnecting at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[RigClient] = []
        self.workers: dict[Generation, RigWorker] = {}
        self.fresh: list[Spawn] = []  # asked for, not registered
        self.running: dict[Generation, dict[CallId, frames.Start]] = {}
        self.calls: dict[CallId, _Seen] = {}
        self.starts: dict[tuple[CallId, int], int] = {}
        self.tails: set[tuple[CallId, int]] = set()
        self.roles: dict[Generation, str] = {}

    @initialize()
    def begin(self) -> None:
        self.rig = Rig(
            a_pool("p", replicas=2, concurrency=2, queue_size=3, drain_s=20.0),
            a_pool("q", providers=("q", "r"), queue_timeout_s=5.0),
        )
        self._learn(self.rig.effects)
        while self.fresh:
            self._come(self.fresh.pop())
        for _ in range(2):
            self.connect()

    # --- what the peers learn ---------------------------------------------------------------

    def _learn(self, effects: list[Effect]) -> None:
        by_peer = {worker.peer: worker for worker in self.workers.values()}
        for effect in effects:
            match effect:
                case Spawn():
                    self.fresh.append(effect)
                case SendToWorker(peer, frame) if peer in by_peer:
                    self._worker_learns(by_peer[peer], frame)
                case SendToClient(_, frame):
                    self._client_learns(frame)
                case Signal(signal="KILL") if effect.generation in self.workers:
                    pass
                case _:
                    pass

    def _worker_learns(self, worker: RigWorker, frame: Any) -> None:
        mine = self.running.setdefault(worker.generation, {})
        match frame:
            case frames.Start():
                key = (frame.call, frame.attempt)
                self.starts[key] = self.starts.get(key, 0) + 1
                assert self.starts[key] == 1, "an attempt was started twice"
                mine[frame.call] = frame
            case frames.Done():
                for ref in frame.calls:
                    if ref.call in mine and mine[ref.call].attempt == ref.attempt:
                        del mine[ref.call]
            case frames.Role():
                self.roles[worker.generation] = frame.role
            case _:
                pass

    def _client_learns(self, frame: Any) -> None:
        seen = self.calls.get(getattr(frame, "call", CallId(b"")))
        if seen is None or seen.state == "over":
            return
        match frame:
            case frames.Accepted() if seen.state in {"opening", "offered"}:
                seen.state = "open"
            case frames.Ended():
                seen.state = "over" if frame.finish["kind"] == "aborted" else "tail"
            case frames.Failed():
                seen.state = "over"
            case frames.Lost():
                self.starts.pop((frame.call, frame.attempt), None)
                seen.state = "over"
            case frames.Retry():
                seen.state = "backoff"
                seen.frame = seen.client.an_open(
                    seen.frame.provider, call=frame.call, attempt=frame.attempt, recovery="policy"
                )
            case frames.RetryStarted():
                seen.state = "offered"
            case _:
                pass

    def _of(self, *states: str) -> list[_Seen]:
        return [
            seen
            for seen in self.calls.values()
            if seen.state in states and seen.client in self.clients
        ]

    # --- clients ----------------------------------------------------------------------------

    @precondition(lambda self: len(self.clients) < 4)
    @rule()
    def connect(self) -> None:
        if len(self.clients) < 4:
            client = RigClient(self.rig, self.rig.number())
            self._learn(client.hello())
            self.clients.append(client)

    @precondition(lambda self: bool(self.clients))
    @rule(index=INDEX, route=st.sampled_from(["p", "q", "r", "x"]), retries=st.booleans())
    def open(self, index: int, route: str, *, retries: bool) -> None:
        if self.clients:
            client = self.clients[index % len(self.clients)]
            frame = client.an_open(route, recovery="policy" if retries else "none")
            self.calls[frame.call] = _Seen(client, frame)
            self._learn(client.say(frame))

    @precondition(lambda self: bool(self.clients))
    @rule(index=INDEX, route=st.sampled_from(["p", "p", "q"]))
    def open_with_recovery(self, index: int, route: str) -> None:
        self.open(index, route, retries=True)

    @precondition(lambda self: bool(self._of("offered")))
    @rule(index=INDEX)
    def open_retry(self, index: int) -> None:
        found = self._of("offered")
        seen = found[index % len(found)]
        self._learn(seen.client.say(seen.frame))

    @precondition(lambda self: bool(self._of("opening", "open", "tail", "offered")))
    @rule(index=INDEX)
    def open_again(self, index: int) -> None:
        """Repeat an OPEN whose confirmation is late; no client does that to a new broker."""
        found = self._of("opening", "open", "tail", "offered")
        seen = found[index % len(found)]
        if seen.state in {"opening", "offered"} or self.rig.hub.calls.get(seen.frame.call):
            self._learn(seen.client.say(seen.frame))

    @precondition(lambda self: bool(self._of("opening", "open", "tail", "backoff", "offered")))
    @rule(index=INDEX)
    def cancel(self, index: int) -> None:
        found = self._of("opening", "open", "tail", "backoff", "offered")
        if found:
            seen = found[index % len(found)]
            cancel = frames.Cancel(seen.frame.call, seen.frame.attempt)
            self._learn(seen.client.say(cancel))

    @precondition(lambda self: bool(self._of("tail", "open")))
    @rule(index=INDEX)
    def take_all(self, index: int) -> None:
        found = self._of("tail", "open")
        if found:
            seen = found[index % len(found)]
            self._learn(seen.client.say(done(seen.frame)))
            seen.state = "over"  # it has the finish of the lane; the worker's ENDED may be behind

    @precondition(lambda self: bool(self._of("open", "tail")))
    @rule(index=INDEX)
    def restate(self, index: int) -> None:
        found = self._of("open", "tail")
        if found:
            seen = found[index % len(found)]
            self._learn(seen.client.say(restated(seen.frame)))

    @precondition(lambda self: bool(self.clients))
    @rule(index=INDEX)
    def client_reconnects(self, index: int) -> None:
        if self.clients:
            client = self.clients[index % len(self.clients)]
            client.disconnect()
            client.peer = b"client-%d" % self.rig.number()
            self._learn(client.hello())

    @precondition(lambda self: bool(self.clients))
    @rule(index=INDEX)
    def client_dies(self, index: int) -> None:
        if self.clients:
            client = self.clients.pop(index % len(self.clients))
            self._learn(client.disconnect())
            self._learn(client.die())

    @precondition(lambda self: bool(self.clients))
    @rule(index=INDEX, op=st.sampled_from(["listModels", "listProviders", "swap"]))
    def ask(self, index: int, op: str) -> None:
        if self.clients:
            client = self.clients[index % len(self.clients)]
            client.query(op, {"pool": "p"}, provider="q")
            self._learn(self.rig.effects)

    # --- workers ----------------------------------------------------------------------------

    @precondition(lambda self: bool(self.fresh))
    @rule(index=INDEX)
    def worker_comes(self, index: int) -> None:
        if self.fresh:
            self._come(self.fresh.pop(index % len(self.fresh)))

    def _come(self, spawn: Spawn) -> None:
        worker = self.rig.spawn(spawn)
        self.workers[spawn.generation] = worker
        self._learn(worker.register())
        self._learn(worker.ready(*spawn.spec.providers, policy=NORMAL))

    @precondition(lambda self: bool(self._running()))
    @rule(index=INDEX, code=st.sampled_from(["", "SERVER", "RATE_LIMIT", "AUTH"]))
    def worker_ends(self, index: int, code: str) -> None:
        found = [(worker, start) for worker, start in self._running()]
        if found:
            worker, start = found[index % len(found)]
            if code == "RATE_LIMIT":
                failure = {"message": "", "code": code, "providerRetryAfterMs": 2000.0}
                finish: dict[str, Any] = {"kind": "error", "failure": failure}
            elif code:
                finish = {"kind": "error", "failure": {"message": "", "code": code}}
            else:
                finish = {"kind": "stop"}
            self.tails.add((start.call, start.attempt))
            self._learn(worker.say(frames.Ended(start.call, start.attempt, 2, finish)))

    def _running(self) -> list[tuple[RigWorker, frames.Start]]:
        return [
            (self.workers[generation], start)
            for generation, starts in self.running.items()
            if generation in self.workers
            for start in starts.values()
            if (start.call, start.attempt) not in self.tails
        ]

    @precondition(lambda self: bool(self.workers))
    @rule(index=INDEX)
    def worker_dies(self, index: int) -> None:
        if self.workers:
            generation = list(self.workers)[index % len(self.workers)]
            worker = self.workers.pop(generation)
            self.running.pop(generation, None)
            self._learn(worker.exit())

    @precondition(lambda self: bool(self.workers))
    @rule(index=INDEX)
    def worker_reconnects(self, index: int) -> None:
        if self.workers:
            worker = list(self.workers.values())[index % len(self.workers)]
            mine = self.running.get(worker.generation, {})
            entries = tuple(
                held(
                    self.calls[call].frame,
                    self.calls[call].client,
                    attempt=start.attempt,
                    is_ended=(call, start.attempt) in self.tails,
                )
                for call, start in mine.items()
            )
            self._learn(worker.reconnect(calls=entries))
            self._learn(worker.ready(*self._routes(worker), policy=NORMAL))

    def _routes(self, worker: RigWorker) -> tuple[str, ...]:
        return ("p",) if worker.pool == "p" else ("q", "r")

    @rule()
    def beat(self) -> None:
        for worker in list(self.workers.values()):
            self._learn(worker.beat())

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.5, 10.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        """Workers beat meanwhile; a broker that told one to leave hears of its exit."""
        end_s = self.rig.now_s + seconds
        while self.rig.now_s < end_s:
            for worker in list(self.workers.values()):
                self._learn(worker.beat())
            self._learn(self.rig.wait(min(1.0, end_s - self.rig.now_s)))
            for effect in self.rig.of(Signal):
                if effect.generation in self.workers:
                    worker = self.workers.pop(effect.generation)
                    self.running.pop(effect.generation, None)
                    self._learn(worker.exit("signal 15"))

    # --- the broker -------------------------------------------------------------------------

    @rule(seed=st.randoms(use_true_random=False), forgotten=st.booleans())
    def broker_is_killed(self, seed: Random, *, forgotten: bool) -> None:
        """A new one learns everything from workers and clients, in any order.

        Args:
            seed: order of arrival.
            forgotten: the hint file is lost.
        """
        self.fresh.clear()
        alive = tuple(
            AliveWorker(
                worker.pool,
                worker.slot,
                worker.generation,
                worker.pid or 1,
                SecretBytes(worker.token),
            )
            for worker in self.workers.values()
        )
        self._learn(self.rig.restart(() if forgotten else alive))
        arrivals: list[Callable[[], None]] = [
            partial(self._register_again, worker) for worker in self.workers.values()
        ]
        arrivals += [partial(self._greet_again, client) for client in self.clients]
        seed.shuffle(arrivals)
        for arrive in arrivals:
            arrive()
            self.rig.check()

    def _register_again(self, worker: RigWorker) -> None:
        worker.peer = b"worker-%d" % self.rig.number()
        mine = self.running.get(worker.generation, {})
        entries = [
            frames.HeldCall(
                call,
                start.attempt,
                start.client,
                start.stream_key,
                start.provider,
                4,
                is_ended=(call, start.attempt) in self.tails,
            )
            for call, start in mine.items()
        ]
        token = worker.token if len(self.rig.hub.workers) else b""
        role = self.roles.get(worker.generation, "serving")
        self._learn(worker.register(role, calls=tuple(entries), token=token or worker.token))
        self._learn(worker.ready(*self._routes(worker), policy=NORMAL))

    def _greet_again(self, client: RigClient) -> None:
        client.peer = b"client-%d" % self.rig.number()
        self._learn(client.hello())
        for seen in list(self.calls.values()):
            if seen.client is not client:
                continue
            if seen.state in {"open", "tail"}:
                self._learn(client.say(restated(seen.frame)))
            elif seen.state in {"opening", "offered"}:
                self._learn(client.say(seen.frame))
            elif seen.state == "backoff":
                offer = {
                    "retryId": "i",
                    "policyKey": "k",
                    "retry": seen.frame.attempt,
                    "delayMs": 300.0,
                }
                self._learn(client.say(replace(seen.frame, retry_offer=offer)))

    # --- what must hold ---------------------------------------------------------------------

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "rig"):
            self.rig.check()

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        for client in list(self.clients):
            self._learn(client.disconnect())
            self._learn(client.die())
        for worker, start in self._running():
            aborted = {"kind": "aborted", "failure": {"message": "", "code": "ABORTED"}}
            self._learn(worker.say(frames.Ended(start.call, start.attempt, 0, aborted)))
        self.time_passes(60.0)
        hub = self.rig.hub
        self.rig.check()
        assert not len(hub.calls)
        assert not len(hub.clients)
        assert not hub.queued_bytes
        assert not hub.leases
        assert all(not gate.running and not len(gate.queue) for _, gate in hub.gates)


TestBroker = BrokerMachine.TestCase
TestBroker.settings = settings(stateful_step_count=70)
