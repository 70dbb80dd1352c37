"""Judges whether a series of samples grows: its slope after warm-up against a stated bound.

The slope is that of Theil and Sen, the median of the slopes of all pairs, so single peaks do not
count. It knows no processes.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Final

Sample = tuple[float, float]  # seconds, value
_MOST_POINTS: Final = 200  # 19,900 pairs; longer series are thinned by the medians of their parts


@dataclass(frozen=True, slots=True)
class Bound:
    """The growth that is allowed over a whole run.

    Attributes:
        absolute: in the unit of the series.
        share: of its median after warm-up; the larger of both counts.
    """

    absolute: float
    share: float = 0.0

    def of(self, middle: float) -> float:
        """Return the growth that is allowed to a series with this median."""
        return max(self.absolute, self.share * middle)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one series.

    Attributes:
        growth: slope times the duration of the samples after warm-up.
        allowed: the bound.
    """

    name: str
    samples: int
    first: float
    middle: float
    last: float
    most: float
    growth: float
    allowed: float

    @property
    def is_good(self) -> bool:
        """Whether the series stays within its bound."""
        return self.growth <= self.allowed

    def to_dict(self) -> dict[str, Any]:
        """Return it for a JSON document."""
        return {**asdict(self), "isGood": self.is_good}


def slope(samples: Sequence[Sample]) -> float:
    """Return the median slope per second of all pairs; 0 for fewer than two samples."""
    points = thinned(samples)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] > a[0]]
    return statistics.median(slopes) if slopes else 0.0


def thinned(samples: Sequence[Sample]) -> list[Sample]:
    """Return at most some 200 points: the medians of equal parts of the series."""
    step = -(-len(samples) // _MOST_POINTS)
    if step <= 1:
        return list(samples)
    parts = [samples[at : at + step] for at in range(0, len(samples), step)]
    return [
        (statistics.median(t for t, _ in part), statistics.median(v for _, v in part))
        for part in parts
    ]


def judge(name: str, samples: Sequence[Sample], bound: Bound, warm_s: float) -> Verdict:
    """Return the verdict on a series.

    Args:
        name: of the series.
        samples: in order of time.
        bound: the growth that is allowed from `warm_s` on.
        warm_s: samples before this time are left out, unless that leaves fewer than three.
    """
    kept = [sample for sample in samples if sample[0] >= warm_s]
    if len(kept) < 3:
        kept = list(samples)
    values = [value for _, value in kept]
    middle = statistics.median(values)
    growth = slope(kept) * (kept[-1][0] - kept[0][0])
    return Verdict(
        name, len(kept), values[0], middle, values[-1], max(values), growth, bound.of(middle)
    )
