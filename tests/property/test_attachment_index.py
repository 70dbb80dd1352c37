"""The bookkeeping of the attachment store against a naive model of lists and sums."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trunkline_broker.core.attachments import AttachmentIndex
from trunkline_protocol.limits import MIN_ATTACHMENT_COST_BYTES as BLOCK

NAMES = st.sampled_from([f"a{number}" for number in range(8)])
SIZES = st.sampled_from([1, BLOCK, BLOCK + 1, 2 * BLOCK, 4 * BLOCK, 7 * BLOCK])
BOUND = 10 * BLOCK


@dataclass
class Known:
    """One attachment as the model knows it."""

    total: int | None
    received: int
    is_stored: bool = False
    is_busy: bool = False

    @property
    def cost(self) -> int:
        return max(self.received if self.total is None else self.total, BLOCK)


class IndexMachine(RuleBasedStateMachine):
    """Uploads, uses and live calls in any order."""

    @initialize(found=st.lists(st.tuples(NAMES, SIZES, st.booleans()), max_size=6))
    def begin(self, found: list[tuple[str, int, bool]]) -> None:
        self.index = AttachmentIndex(BOUND)
        self.order: list[str] = []  # the longest unused first
        self.known: dict[str, Known] = {}
        self.live: set[str] = set()  # what live calls name
        for name, size, is_stored in found:
            self.index.restore(name, size, is_stored=is_stored)
            self.known[name] = Known(size if is_stored else None, size, is_stored)
            self._use(name)
        self.most = max(BOUND, self._cost())  # what was found may be over it

    def _use(self, name: str) -> None:
        if name in self.order:
            self.order.remove(name)
        self.order.append(name)

    def _cost(self) -> int:
        return sum(one.cost for one in self.known.values())

    def _free(self, needed: int, but: set[str]) -> list[str]:
        """Return what must leave, the longest unused first; all that may, if that is too little."""
        leaving: list[str] = []
        for name in self.order:
            if self._cost() + needed - sum(self.known[one].cost for one in leaving) <= BOUND:
                break
            if name not in but and not self.known[name].is_busy:
                leaving.append(name)
        return leaving

    def _leave(self, names: list[str]) -> None:
        for name in names:
            del self.known[name]
            self.order.remove(name)

    @rule(name=NAMES)
    def name_in_a_call(self, name: str) -> None:
        self.live.add(name)
        assert self.index.touch(name) == (name in self.known)
        if name in self.known:
            self._use(name)

    @rule(name=NAMES)
    def end_the_call(self, name: str) -> None:
        self.live.discard(name)

    @rule(name=NAMES, total=SIZES)
    def announce(self, name: str, total: int) -> None:
        held = self.known.get(name)
        if held is not None and (held.is_stored or held.is_busy):
            return
        needed = max(total, BLOCK) - (held.cost if held else 0)
        expected = self._free(needed, {*self.live, name})
        left = self._cost() - sum(self.known[one].cost for one in expected)
        leaving = self.index.announce(name, total, frozenset(self.live))
        if left + needed > BOUND:
            assert leaving is None
            return
        assert leaving == expected
        self._leave(leaving)
        goes_on = held is not None and (
            held.total == total or (held.total is None and held.received <= total)
        )
        self.known[name] = Known(total, held.received if held and goes_on else 0)
        self._use(name)

    @rule(name=NAMES)
    def write(self, name: str) -> None:
        one = self.known.get(name)
        if one is not None and not one.is_stored and not one.is_busy and one.total is not None:
            self.index.write(name)
            one.is_busy = True

    @rule(name=NAMES, share=st.sampled_from([0, 0.5, 1]))
    def written(self, name: str, share: float) -> None:
        one = self.known.get(name)
        if one is not None and one.is_busy and one.total is not None:
            one.received = int(one.total * share)
            one.is_stored = one.received == one.total
            one.is_busy = False
            self.index.written(name, one.received, is_stored=one.is_stored)
            self._use(name)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        one = self.known.get(name)
        if one is None or not one.is_busy:
            self.index.drop(name)
            if one is not None:
                self._leave([name])

    @precondition(lambda self: not any(one.is_busy for one in self.known.values()))
    @rule()
    def shrink(self) -> None:
        expected = self._free(0, self.live)
        assert self.index.shrink(frozenset(self.live)) == expected
        self._leave(expected)

    @invariant()
    def agree(self) -> None:
        """Same content in the same order; the bound holds but for what was found at the start."""
        assert self.index.names() == self.order
        assert len(self.index) == len(self.known)
        assert self.index.used_bytes == self._cost()
        assert self._cost() <= self.most
        self.most = max(BOUND, self._cost())
        assert self.index.upload_count == sum(not one.is_stored for one in self.known.values())
        for name, one in self.known.items():
            entry = self.index.get(name)
            assert entry is not None
            facts = (entry.total, entry.received, entry.is_stored, entry.is_busy, entry.cost)
            assert facts == (one.total, one.received, one.is_stored, one.is_busy, one.cost)


TestIndex = IndexMachine.TestCase
