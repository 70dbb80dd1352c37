"""Charts as PNG files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.result import Chart

_INCHES = (7.0, 4.0)


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
    for label, points in chart.curves.items():
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, label=label, marker="" if is_distribution else "o")
    axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
    axes.set_ylim(bottom=0)
    if chart.is_log_x:
        axes.set_xscale("log")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
