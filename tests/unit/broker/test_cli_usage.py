"""Times and counts of `trunkline usage`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from trunkline_broker.cli.terminal import CommandError
from trunkline_broker.cli.usage import short, since_s, table_lines

NOW = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("30m", datetime(2026, 11, 30, 11, 30, 30, tzinfo=UTC)),
        ("24h", datetime(2026, 11, 29, 12, 0, 30, tzinfo=UTC)),
        ("2w", datetime(2026, 11, 16, 12, 0, 30, tzinfo=UTC)),
        ("today", datetime(2026, 11, 30, tzinfo=UTC)),
        ("yesterday", datetime(2026, 11, 29, tzinfo=UTC)),
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("2026-11-01T10:00+02:00", datetime(2026, 11, 1, 8, tzinfo=UTC)),
    ],
)
def test_a_time_is_an_age_or_a_date(text: str, found: datetime) -> None:
    assert since_s(text, NOW) == found.timestamp()


def test_longer_ago_than_there_are_dates_is_everything() -> None:
    assert since_s("999999999w", NOW) == 0


@pytest.mark.parametrize("text", ["", "tomorrow", "-1h", "3y", "Today"])
def test_anything_else_is_said(text: str) -> None:
    with pytest.raises(CommandError, match="--since"):
        since_s(text, NOW)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (99_999, "99,999"),
        (100_000, "100k"),
        (123_456, "123k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (4_560_000, "4.56M"),
        (7_890_000_000, "7.89G"),
        (5_000_000_000_000, "5T"),
    ],
)
def test_counts_are_short(count: int, text: str) -> None:
    assert short(count) == text


ROWS = [
    (["agent one", "anthropic"], ["1", "0", "0", "0", "7,200", "0", "10", "~3"]),
    (["all", ""], ["1", "0", "0", "0", "7,200", "0", "10", "~3"]),
]


def test_a_table_that_fits_has_a_line_per_row() -> None:
    lines = table_lines(["client", "provider"], ROWS, 80)
    assert [len(line) for line in lines] == [len(lines[0])] * 3
    assert lines[1].startswith("agent one  anthropic      1       0  ")
    assert lines[2].split()[:2] == ["all", "1"]


def test_a_table_that_does_not_fit_cuts_no_name() -> None:
    """Names stand above their counts, which stay below their titles."""
    lines = table_lines(["client", "provider"], ROWS, 60)
    assert lines[0::2] == ["client / provider", "agent one / anthropic", "all"]
    assert max(map(len, lines)) <= 60
    assert lines[1].index("wasted") + 4 == lines[3].index("~3")


def test_a_table_without_names_has_counts_alone() -> None:
    titles, counts = table_lines([], [([], ROWS[0][1])], 10)
    assert (titles.split()[0], counts.split()[-1]) == ("calls", "~3")
