"""Who claims which key: pools own keys, and their workers hold them with a captured value.

One table each for routes, for the directory and for discovery. Keys have an order: that in which
they were registered. It does not know what a value means, nor whether a worker lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from trunkline_protocol.ids import Generation, PoolName

Value = TypeVar("Value")


class Entry(NamedTuple, Generic[Value]):
    """One key as a worker registers it; `mark` tells registrations of one worker apart."""

    key: str
    mark: int
    value: Value


@dataclass(slots=True)
class Claim(Generic[Value]):
    """One key.

    Attributes:
        owner: the only pool that may hold it.
        holders: serving workers with what each captured; none: the pool is starting again.
        value: what was captured last.
    """

    owner: PoolName
    value: Value
    holders: dict[Generation, Value] = field(default_factory=dict[Generation, Value])


class Claims(Generic[Value]):
    """Keys of one kind, in order of registration."""

    __slots__ = ("_claims", "_held")

    def __init__(self) -> None:
        self._claims: dict[str, Claim[Value]] = {}
        self._held: dict[Generation, list[tuple[str, int]]] = {}

    def __iter__(self) -> Iterator[tuple[str, Claim[Value]]]:
        """Iterate over keys and claims in order of registration."""
        return iter(self._claims.items())

    def get(self, key: str) -> Claim[Value] | None:
        """Return the claim on a key."""
        return self._claims.get(key)

    def keys_of(self, generation: Generation) -> list[str]:
        """Return what a worker holds, or held when it was suspended."""
        return [key for key, _ in self._held.get(generation, ())]

    def conflict(self, pool: PoolName, keys: Iterable[str]) -> str | None:
        """Return the first key that another pool owns."""
        for key in keys:
            claim = self._claims.get(key)
            if claim is not None and claim.owner != pool:
                return key
        return None

    def put(
        self,
        pool: PoolName,
        generation: Generation,
        entries: Sequence[Entry[Value]],
        instead_of: Generation | None = None,
    ) -> bool:
        """Replace everything that a worker holds (or that another one held) in one step.

        A key keeps its place if its registration stayed and no registration moved before it;
        others go to the end, as a replacement does.

        Args:
            pool: owner; no key may belong to another one.
            generation: worker that holds the entries afterwards.
            entries: everything it registers, keys all different.
            instead_of: worker that holds nothing afterwards; `None`: none but itself.

        Returns:
            Whether the keys, their order or a value is another one than before.
        """
        before = [(key, claim.value) for key, claim in self._claims.items()]
        old = self._held.pop(instead_of or generation, [])
        if instead_of is None:
            stay = _in_order(old, [(entry.key, entry.mark) for entry in entries])
        else:  # the marks of another process mean nothing here
            stay = _in_order([(key, 0) for key, _ in old], [(entry.key, 0) for entry in entries])
        for key, _ in old:
            self._release(key, instead_of or generation, stays=key in stay)
        for entry in entries:
            claim = self._claims.get(entry.key)
            if claim is None:
                claim = self._claims[entry.key] = Claim(pool, entry.value)
            claim.value = entry.value
            claim.holders[generation] = entry.value
        self._held[generation] = [(entry.key, entry.mark) for entry in entries]
        return before != [(key, claim.value) for key, claim in self._claims.items()]

    def suspend(self, generation: Generation) -> None:
        """Take a worker's hold but keep its keys and their places: it will be replaced."""
        for key, _ in self._held.get(generation, ()):
            self._claims[key].holders.pop(generation, None)

    def drop(self, generation: Generation) -> bool:
        """Release everything a worker holds or held; return whether a key vanished."""
        count = len(self._claims)
        for key, _ in self._held.pop(generation, ()):
            self._release(key, generation, stays=False)
        return len(self._claims) != count

    def _release(self, key: str, generation: Generation, *, stays: bool) -> None:
        claim = self._claims.get(key)
        if claim is None:  # another replica's replacement took it while this one was suspended
            return
        claim.holders.pop(generation, None)
        if not claim.holders and not stays:
            del self._claims[key]


def _in_order(old: list[tuple[str, int]], new: list[tuple[str, int]]) -> set[str]:
    """Return the keys of the longest start of `new` that `old` has in the same order."""
    kept = 0
    for item in old:
        if kept < len(new) and new[kept] == item:
            kept += 1
    return {key for key, _ in new[:kept]}
