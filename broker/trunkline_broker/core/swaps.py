"""Hot swap of a pool: slot after slot a new generation starts, serves, and the old one drains.

One swap per pool at a time. If a new worker does not become ready, the old ones keep serving, the
slots that were exchanged before it are set back to what the pool was, and whoever asked hears why.
It does not know how workers are started or routes exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trunkline_protocol.ids import Generation, PoolName, RouteName

from trunkline_broker.core.hub import Hub, WorkerLost, WorkerServed
from trunkline_broker.core.refusal import Refusal
from trunkline_broker.core.specs import PoolSpec
from trunkline_broker.core.staffing import Staffing
from trunkline_broker.core.supervision import Pool, Slot
from trunkline_broker.core.workers import WorkerState

SWAP_FAILED = "SWAP_FAILED"
SWAP_RUNNING = "SWAP_RUNNING"


@dataclass(frozen=True, slots=True)
class SwapReport:
    """How a swap went; `failure` is empty if every slot was exchanged."""

    pool: PoolName
    slots: tuple[dict[str, object], ...]
    routes_lost: tuple[str, ...]
    failure: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the body of the answer."""
        return {
            "pool": self.pool,
            "slots": list(self.slots),
            "routesLost": list(self.routes_lost),
        }


OnSwapped = Callable[[SwapReport], None]


@dataclass(slots=True, eq=False)
class _Swap:
    pool: Pool
    left: list[int]  # slots that are still to be exchanged, in order
    on_done: OnSwapped
    previous: PoolSpec | None = None  # what to go back to; None: the pool did not change
    why_back: str = ""  # this one takes back another one, which failed for this reason
    standby: Generation | None = None
    slots: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    routes_lost: list[str] = field(default_factory=list[str])


class Swaps:
    """Swaps under way, by pool."""

    def __init__(self, hub: Hub, staffing: Staffing) -> None:
        self._hub = hub
        self._staffing = staffing
        self._swaps: dict[PoolName, _Swap] = {}

    def is_running(self, pool: PoolName) -> bool:
        """Tell whether a swap of a pool is under way."""
        return pool in self._swaps

    def start(
        self, name: PoolName, now_s: float, on_done: OnSwapped, fresh: PoolSpec | None = None
    ) -> None:
        """Begin to exchange every worker of a pool; slots that are down get a new chance.

        Args:
            name: the pool.
            now_s: monotonic seconds.
            on_done: called once, when the last slot is exchanged or the swap has failed.
            fresh: what the pool is from now on; if the swap fails it is again what it was.

        Raises:
            Refusal: `UNKNOWN_POOL`; `SWAP_RUNNING`; `SWAP_FAILED` for a pool of manual workers,
                while the broker drains, or before it knows what older workers hold.
        """
        hub = self._hub
        pool = hub.pools.get(name)
        if pool is None:
            raise Refusal("UNKNOWN_POOL", f"no pool {name!r} is configured")
        if name in self._swaps:
            raise Refusal(SWAP_RUNNING, f"a swap of {name!r} is under way already")
        if not pool.is_configured or not pool.spec.replicas:
            raise Refusal(SWAP_FAILED, f"the workers of {name!r} were not started by the broker")
        if hub.is_draining or hub.is_settling:
            raise Refusal(SWAP_FAILED, "the broker is stopping, or still settling after its start")
        previous = None
        if fresh is not None:
            previous, pool.spec = pool.spec, fresh
        hub.count("swaps")
        self._begin(_Swap(pool, list(range(pool.spec.replicas)), on_done, previous), now_s)

    def on_served(self, fact: WorkerServed, now_s: float) -> None:
        """A worker took over its slot; if a swap waited for it, the next slot is due."""
        swap = self._swaps.get(fact.worker.pool)
        if swap is None or swap.standby != fact.worker.generation:
            return
        old, new = fact.replaced, fact.worker
        swap.slots.append(
            {
                "slot": new.slot,
                "oldPid": old.pid if old is not None else None,
                "newPid": new.pid,
                "oldGeneration": list(old.generation) if old is not None else None,
                "newGeneration": list(new.generation),
                "aliveCalls": fact.alive_calls,
            }
        )
        self._hub.end_pauses(RouteName(entry.key) for entry in new.offer.routes)
        swap.routes_lost += [key for key in fact.routes_lost if key not in swap.routes_lost]
        self._next(swap, now_s)

    def on_lost(self, fact: WorkerLost, now_s: float) -> None:
        """A worker is gone or can't become ready; if a swap waited for it, that swap failed."""
        swap = self._swaps.get(fact.worker.pool)
        if swap is None or swap.standby != fact.worker.generation:
            return
        failure = f"the new worker did not become ready: {fact.reason}"
        self._fail(swap, failure, now_s)
        worker = self._hub.workers.get(fact.worker.generation)
        if worker is not None and worker.state is not WorkerState.STOPPING:
            self._staffing.oust(worker, fact.reason, now_s)

    def cancel(self, name: PoolName, reason: str, now_s: float) -> None:
        """Give up a swap: its pool is being removed or drained."""
        swap = self._swaps.get(name)
        if swap is None:
            return
        worker = self._hub.workers.get(swap.standby)
        self._finish(swap, reason)
        if worker is not None:
            self._staffing.dismiss(worker, reason, now_s)

    def _begin(self, swap: _Swap, now_s: float) -> None:
        self._swaps[swap.pool.spec.name] = swap
        self._next(swap, now_s)

    def _next(self, swap: _Swap, now_s: float) -> None:
        if not swap.left:
            self._trim(swap.pool, now_s)
            self._finish(swap, swap.why_back and f"{swap.why_back}\n(all slots are set back)")
            return
        if self._hub.is_draining:
            self._finish(swap, swap.why_back or "the broker is stopping")
            return
        slot: Slot = swap.pool.slot(swap.left.pop(0))
        slot.revive()
        worker = self._staffing.spawn(swap.pool, slot, now_s, is_standby=True)
        slot.standby = swap.standby = worker.generation

    def _fail(self, swap: _Swap, failure: str, now_s: float) -> None:
        """Go back to what the pool was, where this swap had changed it."""
        if swap.why_back:
            failure = f"{swap.why_back}\n(a slot can't be set back: {failure})"
        previous, pool = swap.previous, swap.pool
        if previous is None:
            self._finish(swap, failure)
            return
        pool.spec = previous
        numbers = [slot.number for slot in pool.slots.values() if self._is_changed(slot, swap)]
        back = [number for number in numbers if number < previous.replicas]
        if not back:
            self._trim(pool, now_s)
            self._finish(swap, failure)
            return
        self._begin(_Swap(pool, back, swap.on_done, why_back=failure), now_s)

    def _is_changed(self, slot: Slot, swap: _Swap) -> bool:
        return any(entry["slot"] == slot.number for entry in swap.slots)

    def _trim(self, pool: Pool, now_s: float) -> None:
        """Close the slots that the pool has no more; those of manual workers stay."""
        for number in [number for number in pool.slots if number >= pool.spec.replicas]:
            worker = self._hub.workers.get(pool.slots[number].serving)
            if worker is None or not worker.is_manual:
                self._staffing.close_slot(pool, number, now_s)

    def _finish(self, swap: _Swap, failure: str) -> None:
        del self._swaps[swap.pool.spec.name]
        if failure:
            self._hub.count("swaps_failed")
        swap.on_done(
            SwapReport(swap.pool.spec.name, tuple(swap.slots), tuple(swap.routes_lost), failure)
        )
