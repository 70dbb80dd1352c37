"""What a measurement gives: rows of the table and curves of the plots; both survive JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report.

    Attributes:
        what: what was measured.
        ours: median of ours, with its unit.
        beside: what it is compared with, its median and unit.
        ratio: ours ÷ that; `None` where the budget is absolute.
        budget: as text; empty where there is none and the line is for information.
        is_met: whether the figure is within the budget.
        spread: least and greatest of ours.
    """

    what: str
    ours: str
    beside: str
    ratio: float | None
    budget: str
    is_met: bool
    spread: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One plot.

    Attributes:
        name: of its file, without ending.
        curves: by label.
        is_log_x: whether the horizontal axis is logarithmic.
    """

    name: str
    title: str
    x: str
    y: str
    curves: dict[str, Points]
    is_log_x: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Figures that are not ours against one other; `rows` are texts, the first names the line."""

    head: list[str]
    rows: list[list[str]]


@dataclass(slots=True)
class Result:
    """What one part found out."""

    rows: list[Row] = field(default_factory=list[Row])
    charts: list[Chart] = field(default_factory=list[Chart])
    tables: list[Table] = field(default_factory=list[Table])

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read what `to_dict` wrote."""
        rows = [Row(**row) for row in data["rows"]]
        charts = [Chart(**chart) for chart in data["charts"]]
        return cls(rows, charts, [Table(**table) for table in data["tables"]])


def spread(values: Iterable[float], form: str) -> str:
    """Return the least and the greatest value."""
    values = list(values)
    return f"{form.format(min(values))} - {form.format(max(values))}"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def cumulative(values: Sequence[float], points: int = 100) -> Points:
    """Return the curve of a distribution: value, percent that are not above it."""
    return [(quantile(values, at / points), 100 * at / points) for at in range(points)]


def versus(
    what: str,
    ours: Sequence[float],
    form: str,
    peer: tuple[str, Sequence[float]],
    limit: tuple[str, Callable[[float], bool]],
) -> Row:
    """Return the row of a ratio of medians.

    Args:
        what: was measured.
        ours: one value for each round.
        form: how a value is shown, with its unit.
        peer: name and values of what it is compared with, of the same rounds.
        limit: the budget as text, and the test of the ratio.
    """
    median, other = statistics.median(ours), statistics.median(peer[1])
    ratio = median / other
    return Row(
        what,
        form.format(median),
        f"{peer[0]} {form.format(other)}",
        ratio,
        limit[0],
        limit[1](ratio),
        spread(ours, form),
    )


def absolute(
    what: str,
    ours: Sequence[float],
    form: str,
    limit: tuple[str, Callable[[float], bool]],
    beside: str = "",
) -> Row:
    """Return the row of a figure with a budget of its own; arguments as for `versus`."""
    median = statistics.median(ours)
    return Row(
        what, form.format(median), beside, None, limit[0], limit[1](median), spread(ours, form)
    )


def shown(what: str, ours: Sequence[float], form: str, beside: str = "") -> Row:
    """Return the row of a figure without a budget."""
    return absolute(what, ours, form, ("", lambda _: True), beside)
