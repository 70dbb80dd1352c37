"""Totals of this broker since its start: what it was told of attempts and by workers.

Plain data, filled from effects on the loop at some microseconds per attempt and nothing per chunk.
It knows neither Prometheus nor files.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from trunkline_protocol.ids import Generation

from trunkline_broker.core.effects import AttemptEnded, NoteLoad

if TYPE_CHECKING:
    from typing_extensions import TypeIs

BUCKETS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Bounds of the workers' histograms (their `core/load.py`); one more bucket is above the last."""

MAX_LABELS: Final = 500  # pairs of route and model that are told apart
MAX_CODES: Final = 48  # failure codes of one provider; ours are 30, and an adapter has its own
MAX_WORKERS: Final = 512  # processes whose last totals are remembered
OTHER: Final = "(other)"
OTHER_CODE: Final = "OTHER"
TOKEN_KINDS: Final = (
    ("inputTokens", "input"),
    ("outputTokens", "output"),
    ("cacheReadTokens", "cache_read"),
    ("cacheWriteTokens", "cache_write"),
    ("reasoningTokens", "reasoning"),
)
DEBUG_PROMPTS: Final = "debugPrompts"
"""In the load of a worker that writes prompts and answers into its log (its `prompts.py`)."""
WASTED: Final = frozenset({"cancelled", "retried"})
_BINS: Final = len(BUCKETS_S) + 1


class RouteModel(NamedTuple):
    """Whose totals."""

    provider: str
    model: str


class Histogram:
    """Counts per bucket and the sum of what was counted."""

    __slots__ = ("bins", "sum_s")

    def __init__(self) -> None:
        self.bins = [0] * _BINS
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.bins[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def add(self, bins: Sequence[int], sum_s: float) -> None:
        """Add what somebody else has counted."""
        for at, count in enumerate(bins):
            self.bins[at] += count
        self.sum_s += sum_s


class RouteTotals:
    """What the workers of a pool have measured of one route."""

    __slots__ = ("calls", "chunks", "gaps", "ttft")

    def __init__(self) -> None:
        self.calls = self.chunks = 0
        self.ttft = Histogram()
        self.gaps = Histogram()


class Tallies:
    """All totals.

    Attributes:
        attempts: ended attempts by route, model and outcome.
        failures: those with a failure, by provider and code; retried ones included.
        tokens: by route, model and kind; `wasted` is the part of attempts that were cancelled or
            retried.
        waits: from `OPEN` to a worker, by provider.
        durations: from there to the end.
        last_codes: providers whose last attempt failed, with the code of that failure.
        routes: what workers measured, by pool and provider.
        workers: the last report of each process that reported within memory.
    """

    def __init__(self) -> None:
        self.attempts: Counter[tuple[str, str, str]] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.tokens: Counter[tuple[str, str, str]] = Counter()
        self.wasted: Counter[tuple[str, str, str]] = Counter()
        self.waits: dict[str, Histogram] = {}
        self.durations: dict[str, Histogram] = {}
        self.last_codes: dict[str, str] = {}
        self.routes: dict[tuple[str, str], RouteTotals] = {}
        self._known: set[RouteModel] = set()
        self._codes: dict[str, set[str]] = {}
        self._last: OrderedDict[Generation, Mapping[str, Any]] = OrderedDict()

    def on_attempt(self, ended: AttemptEnded) -> None:
        """Count an attempt that is over."""
        provider, model = self._named(ended.provider, ended.model)
        self.attempts[provider, model, ended.outcome] += 1
        if ended.code:
            self.failures[provider, self._code(provider, ended.code)] += 1
        self._note_last(provider, ended)
        for kind, count in token_counts(ended.usage):
            self.tokens[provider, model, kind] += count
            if ended.outcome in WASTED:
                self.wasted[provider, model, kind] += count
        if ended.waited_s is not None and ended.pool:
            self.waits.setdefault(provider, Histogram()).observe(ended.waited_s)
        if ended.lasted_s is not None:
            self.durations.setdefault(provider, Histogram()).observe(ended.lasted_s)

    def on_load(self, note: NoteLoad) -> None:
        """Add what a worker has measured since its report before; wrong ones add nothing."""
        before = self._last.pop(note.generation, {})
        after = _map(note.load.get("routes"))
        self._last[note.generation] = after
        if len(self._last) > MAX_WORKERS:
            self._last.popitem(last=False)
        for provider, load in after.items():
            key = (note.pool, provider)
            if key not in self.routes and len(self.routes) >= MAX_LABELS:
                key = (note.pool, OTHER)
            totals = self.routes.setdefault(key, RouteTotals())
            _add(totals, _map(before.get(provider)), _map(load))

    def _note_last(self, provider: str, ended: AttemptEnded) -> None:
        """Remember how a provider answered last; what was cancelled tells nothing of it."""
        if not ended.pool or ended.outcome == "cancelled":
            return
        if ended.code:
            self.last_codes[provider] = self._code(provider, ended.code)
        else:
            self.last_codes.pop(provider, None)

    def _named(self, provider: str, model: str) -> RouteModel:
        """Bound what agents may name: new names beyond the limit are counted together."""
        key = RouteModel(provider, model)
        if key not in self._known:
            if len(self._known) >= MAX_LABELS:
                return RouteModel(OTHER, OTHER)
            self._known.add(key)
        return key

    def _code(self, provider: str, code: str) -> str:
        """Bound the codes that one provider may bring: new ones beyond the limit are one."""
        known = self._codes.setdefault(provider, set())
        if code not in known:
            if len(known) >= MAX_CODES:
                return OTHER_CODE
            known.add(code)
        return code


def token_counts(usage: Mapping[str, Any] | None) -> list[tuple[str, int]]:
    """Return the counts of a usage map by kind; what a worker made up wrongly is left out."""
    if usage is None:
        return []
    return [
        (kind, count) for key, kind in TOKEN_KINDS if _is_count(count := usage.get(key)) and count
    ]


def _add(totals: RouteTotals, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    totals.calls += _risen(before.get("calls"), after.get("calls"))
    totals.chunks += _risen(before.get("chunks"), after.get("chunks"))
    for histogram, bins, total in (
        (totals.ttft, "ttft", "ttftS"),
        (totals.gaps, "gaps", "gapsS"),
    ):
        now, then = _bins(after.get(bins)), _bins(before.get(bins))
        risen = [_risen(a, b) for a, b in zip(then, now, strict=True)]
        sum_s = _seconds(after.get(total)) - _seconds(before.get(total))
        histogram.add(risen, max(0.0, sum_s))


def _risen(before: object, after: object) -> int:
    low = before if _is_count(before) else 0
    return max(0, after - low) if _is_count(after) else 0


def _bins(value: object) -> Sequence[object]:
    items = list(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else []
    return items if len(items) == _BINS else [0] * _BINS


def _is_count(value: object) -> TypeIs[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return 0.0


def _map(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
