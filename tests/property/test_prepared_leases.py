"""Prepared calls: a worker's leases and the broker's notes of them, against a dictionary."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trunkline_broker.core.effects import Spawn
from trunkline_broker.core.specs import RestartSpec
from trunkline_protocol import frames
from trunkline_protocol.codec import pack_body, unpack_body
from trunkline_protocol.ids import Generation, LeaseId
from trunkline_workers.core.leases import LEASE_FOR_S, Leases

from tests.support.broker_rig import Rig, RigWorker, a_pool, done

INDEX = st.integers(0, 1000)
LEASE_MS: Final = int(LEASE_FOR_S * 1000)
INVALID: Final = "INVALID_PREPARED_CALL"


class Lease(NamedTuple):
    """One prepared call as the model has it."""

    id: LeaseId
    generation: Generation
    until_s: float


class LeaseMachine(RuleBasedStateMachine):
    """Preparing, dispatching, renewing, releasing, swapping, dying, and time that passes."""

    @initialize()
    def begin(self) -> None:
        self.rig = Rig(a_pool("p", restart=RestartSpec(intensity=1000), drain_s=1000.0))
        self.workers: dict[Generation, RigWorker] = {}
        self.leases: dict[Generation, Leases[str]] = {}
        self.current = self._come(self.rig.spawned()[0])
        self.client = self.rig.a_client()
        self.model: dict[LeaseId, Lease] = {}
        self.gone: list[LeaseId] = [LeaseId(b"never".ljust(16))]
        self.drawn = 0

    def _come(self, spawn: Spawn) -> Generation:
        worker = self.rig.spawn(spawn)
        worker.register()
        worker.ready("p")
        self.workers[worker.generation] = worker
        self.leases[worker.generation] = Leases()
        return worker.generation

    def _pass(self, seconds: float) -> list[Any]:
        """Let time pass in the broker and in the workers, which stay in touch."""
        effects = self.rig.live(seconds, *self.workers.values())
        for leases in self.leases.values():
            leases.on_tick(self.rig.now_s)
        for lease in [each for each in self.model.values() if each.until_s <= self.rig.now_s]:
            self._forget(lease.id)
        return effects

    def _forget(self, lease: LeaseId) -> None:
        if self.model.pop(lease, None) is not None:
            self.gone.append(lease)

    # --- questions about leases ------------------------------------------------------------------

    @rule()
    def prepare(self) -> None:
        query = self.client.query("prepareCall", {}, provider="p")
        (asked,) = [w for w in self.workers.values() if w.got(frames.Query)]
        assert asked.generation == self.current  # never one that drains
        self.drawn += 1
        lease = LeaseId(self.drawn.to_bytes(16, "big"))
        assert self.leases[asked.generation].grant(lease, "call", self.rig.now_s)
        body = pack_body({"lease": lease, "leaseMs": LEASE_MS})
        asked.say(frames.Reply(query.query, None, body))
        self.model[lease] = Lease(lease, asked.generation, self.rig.now_s + LEASE_FOR_S)

    def _any(self, at: int) -> LeaseId:
        known = [*self.model, *self.gone[-4:]]
        return known[at % len(known)]

    @rule(at=INDEX)
    def renew(self, at: int) -> None:
        lease = self._any(at)
        held = self.model.get(lease)
        query = self.client.query("renewCall", {"lease": lease})
        if held is None:
            assert self.client.answer()["code"] == INVALID
            return
        worker = self.workers[held.generation]
        assert [frame.query for frame in worker.got(frames.Query)] == [query.query]
        assert self.leases[held.generation].renew(lease, self.rig.now_s)
        body = pack_body({"lease": lease, "leaseMs": LEASE_MS})
        worker.say(frames.Reply(query.query, None, body))
        assert unpack_body(self.client.got(frames.Reply)[0].body)["leaseMs"] == LEASE_MS
        self.model[lease] = held._replace(until_s=self.rig.now_s + LEASE_FOR_S)

    @rule(at=INDEX)
    def release(self, at: int) -> None:
        lease = self._any(at)
        held = self.model.get(lease)
        query = self.client.query("releaseCall", {"lease": lease})
        if held is None:
            assert self.client.answer()["code"] == INVALID
            return
        worker = self.workers[held.generation]
        self.leases[held.generation].release(lease)
        worker.say(frames.Reply(query.query))
        self._forget(lease)
        self._bury()

    @rule(at=INDEX, is_other_route=st.booleans())
    def dispatch(self, at: int, is_other_route: bool) -> None:
        """The worker that holds it gets it, once; everything else is a clear failure."""
        lease = self._any(at)
        held = self.model.get(lease)
        opened = self.client.open("x" if is_other_route else "p", lease=lease)
        if held is None or is_other_route:
            assert self.client.failure()["code"] == INVALID
            return
        worker = self.workers[held.generation]
        (start,) = worker.got(frames.Start)
        assert start.lease == lease
        assert self.leases[held.generation].take(lease, self.rig.now_s) == "call"
        (accepted,) = self.client.got(frames.Accepted)
        assert accepted.generation == held.generation
        self._forget(lease)
        worker.end(opened)
        self.client.say(done(opened))
        self._bury()

    # --- what happens to workers -----------------------------------------------------------------

    @rule()
    def swap(self) -> None:
        """The new worker takes over; the old one stays as long as it holds prepared calls."""
        self.client.query("swap", {"pool": "p"})
        spawned = self.rig.spawned()
        if not spawned:  # the last one is not over
            return
        self.current = self._come(spawned[0])
        self._bury()

    def _bury(self) -> None:
        """Let workers exit that were told that they may."""
        for generation, worker in list(self.workers.items()):
            holds = any(lease.generation == generation for lease in self.model.values())
            known = self.rig.hub.workers.get(generation)
            is_leaving = known is None or known.state.value == "stopping"
            assert not (is_leaving and holds)
            if is_leaving:
                worker.exit("exit 0")
                del self.workers[generation], self.leases[generation]

    @precondition(lambda self: len(self.workers) == 1)
    @rule()
    def die(self) -> None:
        """Its leases die with it."""
        worker = self.workers.pop(self.current)
        del self.leases[self.current]
        worker.exit()
        for lease in list(self.model):
            self._forget(lease)
        spawned = self.rig.spawned()
        while not spawned:
            spawned = [e for e in self._pass(1) if isinstance(e, Spawn)]
        self.current = self._come(spawned[0])

    @rule(seconds=st.sampled_from((0.5, 10.0, 29.5, 60.0)))
    def wait(self, seconds: float) -> None:
        self._pass(seconds)
        self._bury()

    @invariant()
    def both_sides_hold_what_the_model_holds(self) -> None:
        assert set(self.rig.hub.leases) == set(self.model)
        for generation, leases in self.leases.items():
            held = {lease.id for lease in self.model.values() if lease.generation == generation}
            assert set(leases.ids()) == held
        self.rig.check()


TestPreparedLeases = LeaseMachine.TestCase
