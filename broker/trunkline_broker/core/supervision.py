"""Slots and pools: who serves in each slot, when a dead worker is restarted, when not any more.

Give up on more than `intensity` exits within `period_s`, sliding, counting every exit that was not
asked for (OTP `sup_princ`). It does not know processes, routes or calls; it is told of exits and
answers with a delay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from trunkline_protocol.ids import Generation, PoolName

from trunkline_broker.core.specs import PoolSpec, RestartSpec

TRY_AGAIN_S: Final = 60.0  # a slot that was given up; doubles each time
TRY_AGAIN_MAX_S: Final = 3600.0


class SlotState(Enum):
    """What a slot is doing."""

    STARTING = "starting"
    SERVING = "serving"
    BACKOFF = "backoff"
    DOWN = "down"


@dataclass(slots=True, eq=False)
class Slot:
    """A place in a pool for one serving worker.

    Attributes:
        serving: worker that gets new calls.
        coming: worker that will serve when it is ready (first start or restart).
        standby: worker that will take the place of the serving one (swap).
        suspended: worker that died and whose routes are kept for the next one.
        down_reason: why no worker serves it any more; empty: it is not down.
        give_ups: how often in a row it was given up; the pause before it is tried again grows.
        restarts: restarts since the broker started.
        last_exit: how the last worker ended that was not asked to.
        output_tail: its last lines.
    """

    pool: PoolName
    number: int
    serving: Generation | None = None
    coming: Generation | None = None
    standby: Generation | None = None
    suspended: Generation | None = None
    down_reason: str = ""
    give_ups: int = 0
    restarts: int = 0
    last_exit: str = ""
    output_tail: tuple[str, ...] = ()
    _exits: deque[float] = field(default_factory=deque[float])

    @property
    def state(self) -> SlotState:
        """What it is doing, for the status."""
        if self.serving is not None:
            return SlotState.SERVING
        if self.down_reason:
            return SlotState.DOWN
        if self.coming is not None or self.standby is not None:
            return SlotState.STARTING
        return SlotState.BACKOFF

    def on_exit(self, spec: RestartSpec, now_s: float) -> float | None:
        """Count an exit that was not asked for.

        Returns:
            Seconds until the restart, or `None`: give up. The caller then sets `down_reason`.
        """
        self._exits.append(now_s)
        while self._exits[0] <= now_s - spec.period_s:
            self._exits.popleft()
        count = len(self._exits)
        if count > spec.intensity:
            return None
        # count is at most intensity, which the configuration bounds; 2**30 s is past every delay
        delay_s: float = spec.initial_delay_s * 2 ** min(count - 1, 30)
        return min(delay_s, spec.max_delay_s)

    def give_up(self, lived_s: float) -> float:
        """Return the pause until the slot is tried again, after too many exits.

        Args:
            lived_s: how long the last worker lived; a long life begins the pauses anew.
        """
        if lived_s >= TRY_AGAIN_MAX_S:
            self.give_ups = 0
        self.give_ups += 1
        # 2**10 is past the bound already
        pause_s: float = TRY_AGAIN_S * 2 ** min(self.give_ups - 1, 10)
        return min(pause_s, TRY_AGAIN_MAX_S)

    def revive(self) -> None:
        """Begin with a clean record: somebody asked for a new start."""
        self._exits.clear()
        self.give_ups = 0
        self.down_reason = ""


@dataclass(slots=True, eq=False)
class Pool:
    """One configured worker with its slots, or one that manual workers made.

    Attributes:
        is_configured: the broker starts its workers; else it vanishes with its last one.
        has_served: one of its workers was ready, so its routes are known.
        lost_routes: what it served before it went down.
    """

    spec: PoolSpec
    is_configured: bool = True
    slots: dict[int, Slot] = field(default_factory=dict[int, Slot])
    has_served: bool = False
    lost_routes: frozenset[str] = frozenset()

    def slot(self, number: int) -> Slot:
        """Return a slot, made if it is new."""
        slot = self.slots.get(number)
        if slot is None:
            slot = self.slots[number] = Slot(self.spec.name, number)
        return slot

    def free_number(self) -> int:
        """Return the lowest number that no slot has and the configuration does not need."""
        number = self.spec.replicas if self.is_configured else 0
        while number in self.slots:
            number += 1
        return number

    def may_still_start(self) -> bool:
        """Tell whether a worker may yet come that registers routes."""
        return any(
            slot.state in (SlotState.STARTING, SlotState.BACKOFF) for slot in self.slots.values()
        )

    def down_reason(self) -> str:
        """Return why no slot serves; empty if one does or may."""
        reasons = [slot.down_reason for slot in self.slots.values()]
        return reasons[0] if reasons and all(reasons) else ""


class Pools:
    """All pools by name."""

    __slots__ = ("_pools",)

    def __init__(self) -> None:
        self._pools: dict[PoolName, Pool] = {}

    def __iter__(self) -> Iterator[Pool]:
        """Iterate over the pools in order of configuration."""
        return iter(self._pools.values())

    def get(self, name: PoolName) -> Pool | None:
        """Return a pool."""
        return self._pools.get(name)

    def add(self, spec: PoolSpec, *, is_configured: bool = True) -> Pool:
        """Make a pool."""
        pool = self._pools[spec.name] = Pool(spec, is_configured)
        return pool

    def remove(self, name: PoolName) -> None:
        """Forget a pool."""
        del self._pools[name]
