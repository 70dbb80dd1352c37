"""Registrations of many workers against a model that is one flat list, as in one process."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from trunkline_protocol import frames
from trunkline_protocol.ids import Epoch, Generation

from tests.support.broker_rig import Rig, RigWorker, a_pool, adapters

ROUTES = st.lists(st.sampled_from(["a", "b", "c", "d", ""]), max_size=4)
HANDLES = st.integers(0, 3)


class RegistryMachine(RuleBasedStateMachine):
    """Each handle of the reference is a worker in a pool of its own."""

    @initialize()
    def begin(self) -> None:
        self.rig = Rig(a_pool("unused", replicas=0))
        self.client = self.rig.a_client()
        self.workers: dict[int, RigWorker] = {}
        self.routes: dict[str, int] = {}  # in order of registration
        self.numbers: dict[int, int] = {}  # of the adapter in force, per handle

    @rule(handle=HANDLES, routes=ROUTES)
    def replace(self, handle: int, routes: list[str]) -> None:
        """Register, or replace everything: whole or not at all, and one event per commit."""
        worker = self.workers.get(handle)
        if worker is None:
            worker = RigWorker(self.rig, f"pool{handle}", 0, Generation(Epoch(0), 0))
            worker.register()
            self.workers[handle] = worker
        number = self.rig.number()
        worker.commit(adapters(*routes, number=number))
        refused = [frame.code for frame in worker.got(frames.Refused)]
        events = len(self.client.got(frames.Event))
        if "" in routes[: _first_repeat(routes)]:
            assert refused == ["INVALID_ADAPTER"]
        elif _first_repeat(routes) < len(routes) or any(
            self.routes.get(route, handle) != handle for route in routes
        ):
            assert refused == ["DUPLICATE_ADAPTER"] or "" in routes
        else:
            assert refused == []
            assert events == 1
            self.routes = {key: owner for key, owner in self.routes.items() if owner != handle}
            self.routes |= dict.fromkeys(routes, handle)
            self.numbers[handle] = number
            return
        assert refused
        assert events == 0

    @rule(handle=HANDLES)
    def dispose(self, handle: int) -> None:
        """A registration dies with its worker."""
        worker = self.workers.pop(handle, None)
        if worker is not None:
            had_routes = handle in self.routes.values()
            worker.exit()
            assert len(self.client.got(frames.Event)) == had_routes
            self.routes = {key: owner for key, owner in self.routes.items() if owner != handle}

    @rule(handle=HANDLES)
    def say_again(self, handle: int) -> None:
        """A repeated frame is answered again and is no commit."""
        worker = self.workers.get(handle)
        mine = [route for route, owner in self.routes.items() if owner == handle]
        if worker is not None and mine:
            known = self.rig.hub.workers.get(worker.generation)
            assert known is not None
            worker.say(
                frames.Registrations(known.request, adapters(*mine, number=self.numbers[handle]))
            )
            assert worker.got(frames.Committed)
            assert self.client.got(frames.Event) == []

    @invariant()
    def lists_agree(self) -> None:
        if hasattr(self, "client"):
            self.client.query("models")
            assert self.client.answer() == list(self.routes)


def _first_repeat(routes: list[str]) -> int:
    """Return the position of the first route that was named before."""
    return next((i for i, route in enumerate(routes) if route in routes[:i]), len(routes))


TestRegistry = RegistryMachine.TestCase
