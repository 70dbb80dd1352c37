"""Prepared calls that wait for their one dispatch; each lease runs out by itself.

What a lease holds is opaque here. A broker keeps a draining worker alive while its heartbeats
report leases.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, NamedTuple, TypeVar

from trunkline_protocol.frames import HeldLease
from trunkline_protocol.ids import ClientId, LeaseId, QueryId

T = TypeVar("T")

LEASE_FOR_S: Final = 60.0  # an agent logs a header and dispatches: far below a drain deadline
MAX_LEASES: Final = 4096  # as MAX_OPEN_CALLS_PER_WORKER: each may become a call


class _Held(NamedTuple, Generic[T]):
    value: T
    deadline_s: float
    holder: ClientId | None
    query: QueryId | None
    pid: int


class Leases(Generic[T]):
    """Leases by id, in the order in which they run out.

    Attributes:
        for_s: how long each is granted, in seconds.
    """

    def __init__(self, for_s: float = LEASE_FOR_S) -> None:
        self.for_s = for_s
        self._held: OrderedDict[LeaseId, _Held[T]] = OrderedDict()

    def grant(
        self,
        lease: LeaseId,
        value: T,
        now_s: float,
        holder: ClientId | None = None,
        query: QueryId | None = None,
        pid: int = 0,
    ) -> bool:
        """Hold a value for `for_s`; `False`, and nothing held, at the bound.

        Args:
            lease: names it.
            value: what is held.
            now_s: monotonic seconds.
            holder: whose it is, if the broker said so.
            query: the question whose answer grants it.
            pid: of the holder's process; 0: not known.
        """
        if len(self._held) >= MAX_LEASES:
            return False
        self._held[lease] = _Held(value, now_s + self.for_s, holder, query, pid)
        return True

    def renew(self, lease: LeaseId, now_s: float) -> bool:
        """Hold a value for `for_s` again; `False` if it is not held any more."""
        held = self._held.pop(lease, None)
        if held is None or held.deadline_s <= now_s:
            return False
        self._held[lease] = held._replace(deadline_s=now_s + self.for_s)
        return True

    def take(self, lease: LeaseId, now_s: float) -> T | None:
        """Give the value out, once; `None` if it was taken, released or has run out."""
        held = self._held.pop(lease, None)
        return None if held is None or held.deadline_s <= now_s else held.value

    def release(self, lease: LeaseId) -> None:
        """Forget a lease; an unknown one is forgotten already."""
        self._held.pop(lease, None)

    def release_of(self, query: QueryId) -> None:
        """Forget what the answer to a question granted: nobody got that answer."""
        for lease, held in self._held.items():
            if held.query == query:
                del self._held[lease]
                return

    def holders(self) -> tuple[HeldLease, ...]:
        """Return whose the leases are, as far as that is known."""
        return tuple(
            HeldLease(lease, held.holder)
            for lease, held in self._held.items()
            if held.holder is not None
        )

    def clients(self) -> dict[ClientId, int]:
        """Return the processes of those whose leases are held, as far as they are known."""
        held = self._held.values()
        return {each.holder: each.pid for each in held if each.holder is not None and each.pid}

    def ids(self) -> tuple[LeaseId, ...]:
        """Return the leases held."""
        return tuple(self._held)

    def on_tick(self, now_s: float) -> None:
        """Forget what has run out."""
        while self._held:
            lease, held = next(iter(self._held.items()))
            if held.deadline_s > now_s:
                break
            del self._held[lease]
