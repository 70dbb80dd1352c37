"""Charts as PNG files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.result import Chart

_INCHES = (7.0, 4.0)
# Okabe and Ito's colours, which people with any colour vision tell apart; marks say it again.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_MARKS = ("o", "s", "^", "D")
_LINES = ("-", "--", "-.", ":")


def draw(charts: Iterable[Chart], directory: Path) -> None:
    """Write each chart to a file of its name."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    directory.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        figure, axes = plt.subplots(figsize=_INCHES, layout="constrained")
        _fill(axes, chart)
        # Without the version, the same figures give the same bytes.
        figure.savefig(directory / f"{chart.name}.png", dpi=110, metadata={"Software": None})
        plt.close(figure)


def _fill(axes: Any, chart: Chart) -> None:
    is_distribution = chart.y.startswith("percent")
    styles = zip(_COLOURS, _MARKS, _LINES, strict=True)
    for (label, points), (colour, mark, line) in zip(chart.curves.items(), styles, strict=False):
        xs, ys = zip(*points, strict=True)
        marker = "" if is_distribution else mark
        axes.plot(xs, ys, label=label, marker=marker, color=colour, linestyle=line)
    axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
    highest = max(y for points in chart.curves.values() for _, y in points)
    axes.set_ylim(0, highest * 1.08)
    axes.yaxis.set_major_formatter(_plain)
    places = sorted({x for points in chart.curves.values() for x, _ in points})
    if chart.is_log_x:
        axes.set_xscale("log")
    if is_distribution:
        axes.xaxis.set_major_formatter(_plain)
    else:
        axes.set_xticks(places, [_plain(place) for place in places])
        axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend()


def _plain(value: float, _position: int = 0) -> str:
    """Return a number without powers of ten."""
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"
