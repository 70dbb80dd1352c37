"""A table of what was tried: extras in rows, versions of Python in columns."""

from __future__ import annotations

from typing import Any

import pytest

CELL = "cell"
"""Name of the property in which a test says its row and column."""
_WORDS = {"passed": "ok", "failed": "FAILED", "error": "FAILED", "skipped": "skipped"}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table."""
    cells: dict[tuple[str, str], str] = {}
    for outcome, word in _WORDS.items():
        for report in terminalreporter.stats.get(outcome, []):
            for name, value in getattr(report, "user_properties", ()):
                if name == CELL:
                    took = f" {report.duration:.0f} s" if report.when == "call" else ""
                    cells[tuple(value)] = word + (took if outcome == "passed" else "")
    if not cells:
        return
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = sorted({column for _, column in cells}, key=lambda text: text.split("."))
    terminalreporter.section("installed into clean environments")
    terminalreporter.write_line(f"{'':16}" + "".join(f"{column:12}" for column in columns))
    for row in rows:
        told = (cells.get((row, column), "") for column in columns)
        terminalreporter.write_line(
            f"{row or '(none)':16}" + "".join(f"{text:12}" for text in told)
        )


@pytest.fixture
def cell(record_property: Any) -> Any:
    """Return what a test tells its row and column."""
    return lambda row, column: record_property(CELL, [row, column])
