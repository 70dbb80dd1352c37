"""Handles in workers and pools in a broker, against one list of registrations.

The worker's registry and the broker's are joined as in life: a change is judged in the worker, then
asked of the broker as a whole, and in force in both or in neither.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trunkline_broker.core.effects import Spawn
from trunkline_broker.core.specs import RestartSpec
from trunkline_protocol import frames
from trunkline_protocol.failure import LlmError
from trunkline_workers.core.registry import Registry, Route

from tests.support.broker_rig import NORMAL, Rig, RigWorker, a_pool

POOLS: Final = ("p", "q", "r")
Kind = Literal["adapter", "directory"]
KEYS = st.lists(st.sampled_from("abcd"), max_size=3)
POOL = st.sampled_from(POOLS)
INDEX = st.integers(0, 1000)
KIND: st.SearchStrategy[Kind] = st.sampled_from(("adapter", "directory"))


class Registered(NamedTuple):
    """One registration as the model has it."""

    kind: Kind
    pool: str
    handle: int
    keys: tuple[str, ...]


def entries(keys: list[str]) -> list[dict[str, Any]]:
    """Return directory entries for these keys."""
    return [
        {"provider": key, "displayName": key, "settingsNs": "ns", "settingsPath": []}
        for key in keys
    ]


def routes(keys: list[str]) -> list[Route]:
    """Return routes for these keys."""
    return [Route(key, {"id": key, "name": key}, NORMAL) for key in keys]


class RegistryMachine(RuleBasedStateMachine):
    """The model is the list of registrations in order; replacing moves one to the end."""

    @initialize()
    def begin(self) -> None:
        restart = RestartSpec(intensity=1000)
        self.rig = Rig(*(a_pool(name, providers=(), restart=restart) for name in POOLS))
        self.workers: dict[str, RigWorker] = {}
        self.registries: dict[str, Registry[str]] = {}
        self.model: list[Registered] = []
        self.disposed: list[Registered] = []
        self.handles = 0
        for spawn in self.rig.spawned():
            self._come(spawn)
        self.client = self.rig.a_client()

    def _come(self, spawn: Spawn) -> None:
        worker = self.rig.spawn(spawn)
        worker.register()
        worker.commit(())
        self.workers[spawn.pool] = worker
        self.registries[spawn.pool] = Registry()

    # --- what the machine does ------------------------------------------------------------------

    def _try(self, pool: str, candidate: Any) -> str:
        """Carry a change out as a worker does; return the code of a refusal."""
        try:
            registry: Registry[str] = candidate(self.registries[pool])
        except LlmError as exc:
            return exc.code
        wanted = registry.to_wire()
        worker = self.workers[pool]
        worker.commit(wanted.adapters, directory=wanted.directory, discovery=wanted.discovery)
        events = len(self.client.got(frames.Event))
        refused = worker.got(frames.Refused)
        if refused:
            assert events == 0
            return refused[0].code
        assert len(worker.got(frames.Committed)) == events == 1
        self.registries[pool] = registry
        return ""

    def _expected(self, kind: Kind, keys: list[str], but: Registered | None = None) -> str:
        taken = {
            key for each in self.model if each.kind == kind and each != but for key in each.keys
        }
        is_free = len(set(keys)) == len(keys) and taken.isdisjoint(keys)
        return "" if is_free else f"DUPLICATE_{kind.upper()}"

    @rule(kind=KIND, pool=POOL, keys=KEYS.filter(bool))
    def register(self, kind: Kind, pool: str, keys: list[str]) -> None:
        self.handles += 1
        handle = self.handles
        code = self._try(
            pool,
            lambda registry: (
                registry.with_adapter(handle, f"adapter {handle % 2}", routes(keys))
                if kind == "adapter"
                else registry.with_directory(handle, entries(keys))
            ),
        )
        assert code == self._expected(kind, keys)
        if not code:
            self.model.append(Registered(kind, pool, handle, tuple(keys)))

    @precondition(lambda self: bool(self.model))
    @rule(at=INDEX, keys=KEYS)
    def replace(self, at: int, keys: list[str]) -> None:
        old = self.model[at % len(self.model)]
        code = self._try(old.pool, lambda registry: self._replaced(registry, old, keys))
        assert code == self._expected(old.kind, keys, but=old)
        if not code:
            self.model.remove(old)
            self.model.append(old._replace(keys=tuple(keys)))

    @staticmethod
    def _replaced(registry: Registry[str], old: Registered, keys: list[str]) -> Registry[str]:
        if old.kind == "adapter":
            return registry.with_routes(old.handle, routes(keys))
        return registry.with_entries(old.handle, entries(keys))

    @precondition(lambda self: bool(self.model))
    @rule(at=INDEX)
    def dispose(self, at: int) -> None:
        old = self.model.pop(at % len(self.model))
        assert self._try(old.pool, lambda registry: registry.without(old.handle)) == ""
        self.disposed.append(old)

    @precondition(lambda self: bool(self.disposed))
    @rule(at=INDEX, keys=KEYS)
    def replace_a_disposed_one(self, at: int, keys: list[str]) -> None:
        old = self.disposed[at % len(self.disposed)]
        code = self._try(old.pool, lambda registry: self._replaced(registry, old, keys))
        assert code == "REGISTRATION_DISPOSED"

    @rule(pool=POOL)
    def die(self, pool: str) -> None:
        """A registration dies with its worker, at the latest when the next one has come."""
        self.workers[pool].exit()
        others = [worker for name, worker in self.workers.items() if name != pool]
        spawned = self.rig.spawned()
        while not spawned:
            spawned = [e for e in self.rig.live(1, *others) if isinstance(e, Spawn)]
        gone = [each for each in self.model if each.pool == pool]
        self.model = [each for each in self.model if each.pool != pool]
        self.disposed += gone
        self._come(spawned[0])

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def both_lists_are_the_models(self) -> None:
        self.client.query("models")
        assert self.client.answer() == self._listed("adapter")
        self.client.query("listConfigurableProviders")
        directory = [entry["provider"] for entry in self.client.answer()]
        assert directory == self._listed("directory")

    def _listed(self, kind: Kind) -> list[str]:
        return [key for each in self.model if each.kind == kind for key in each.keys]

    @invariant()
    def every_key_is_served_by_its_worker(self) -> None:
        for each in self.model:
            claims = self.rig.hub.registry.routes
            for key in each.keys if each.kind == "adapter" else ():
                claim = claims.get(key)
                assert claim is not None
                assert list(claim.holders) == [self.workers[each.pool].generation]


TestRegistry = RegistryMachine.TestCase
