"""`trunkline usage`: who has used how many tokens of what, from the ledger; no broker is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.terminal import fail, out, print_json

GROUPS: Final = ("client", "provider", "model", "day", "hour")
_AGE: Final = re.compile(r"(\d+)([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAYS: Final = {"today": 0, "yesterday": 1}  # since that day began, in UTC like every other time
_WHOLE: Final = 100_000
_SHOWN: Final = (
    ("calls", "calls"),
    ("failures", "failed"),
    ("cancelled", "cut"),
    ("retries", "retries"),
    ("input", "in"),
    ("cache_read", "cached"),
    ("output", "out"),
    ("wasted", "wasted"),
)


def usage(
    *,
    since: Annotated[
        str, typer.Option(help="30m, 24h, 7d, today, yesterday, or a UTC date: 2026-11-30.")
    ] = "24h",
    by: Annotated[
        str, typer.Option(help="What to tell apart: client, provider, model, day, hour.")
    ] = "client,provider,model",
    ledger: Annotated[
        Path | None, typer.Option(help="Ledger file; default: that of the configuration.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show calls, failures and tokens per client, provider and model.

    `cut` calls were cancelled. `in` is uncached input, `cached` input read from the provider's
    cache; reasoning is a part of `out`. `wasted` are tokens of attempts that were cut or retried;
    where the provider did not tell, the chunks that had come, with a ~. JSON has every count.

    \b
      trunkline usage
      trunkline usage --since 7d --by day,model
      trunkline usage --json | jq 'map(.output) | add'
    """
    import sqlite3

    from trunkline_broker.measured.ledger import read_usage

    groups = [name.strip() for name in by.split(",") if name.strip()]
    wrong = [name for name in groups if name not in GROUPS]
    if wrong:
        fail(f"--by {wrong[0]}: one of {', '.join(GROUPS)} is needed", ExitCode.USAGE)
    path = ledger.absolute() if ledger is not None else _configured()
    try:
        rows = read_usage(path, since_s(since, datetime.now(UTC)), groups)
    except sqlite3.Error as exc:
        fail(f"{exc}; `trunkline status --json | jq .measures` tells where a broker writes")
    if as_json:
        print_json(rows)
        return
    _print(rows, groups)


def since_s(text: str, now: datetime) -> int:
    """Return the beginning of a time, in seconds of the Unix epoch.

    Raises:
        CommandError: it is neither an age nor a date.
    """
    if text in _DAYS:
        midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return int((midnight - timedelta(days=_DAYS[text])).timestamp())
    age = _AGE.fullmatch(text)
    if age is not None:
        try:
            return int((now - timedelta(**{_UNITS[age[2]]: int(age[1])})).timestamp())
        except OverflowError:  # longer ago than there are dates: everything
            return 0
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        fail(f"--since {text}: 30m, 24h, 7d, today or a date is needed", ExitCode.USAGE)
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())


def _configured() -> Path:
    from trunkline_broker.cli.config import loaded

    return loaded(None).usage_file


def _print(rows: Sequence[dict[str, Any]], groups: Sequence[str]) -> None:
    if not rows:
        out().print("no calls in this time", style="dim")
        return
    listed = [([str(row[name]) for name in groups], _cells(row)) for row in rows]
    if len(rows) > 1:
        total = {name: sum(row[name] for row in rows) for name in rows[0] if name not in groups}
        listed.append((["all", *[""] * (len(groups) - 1)] if groups else [], _cells(total)))
    for line in table_lines(groups, listed, out().width):
        out().print(line, markup=False)


def table_lines(
    groups: Sequence[str], rows: Sequence[tuple[list[str], list[str]]], width: int
) -> list[str]:
    """Return a table of names and counts; where it is too wide, names have lines of their own.

    Args:
        groups: titles of the names.
        rows: names and counts of each, the counts in the order of the titles.
        width: columns of the screen.
    """
    heads = [title for _, title in _SHOWN]
    counts = _columns([heads, *(each for _, each in rows)], str.rjust)
    names = _columns([list(groups), *(each for each, _ in rows)], str.ljust)
    if not groups or len(names[0]) + 2 + len(counts[0]) <= width:
        return [f"{a}  {b}".strip() if groups else b for a, b in zip(names, counts, strict=True)]
    told = [" / ".join(filter(None, each)) for each in (groups, *(names for names, _ in rows))]
    return [line for name, count in zip(told, counts, strict=True) for line in (name, f"  {count}")]


def _columns(rows: Sequence[Sequence[str]], pad: Callable[[str, int], str]) -> list[str]:
    """Join the cells of each row, padded to the widest of their column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(pad, row, widths)) for row in rows]


def _cells(row: dict[str, Any]) -> list[str]:
    known, chunks = row["wasted_input"] + row["wasted_output"], row["wasted_chunks"]
    texts = [short(row[name]) for name, _ in _SHOWN if name != "wasted"]
    return [*texts, f"{'~' if chunks else ''}{short(known + chunks)}"]


def short(count: int) -> str:
    """Return a count in few characters: whole below 100,000, then as 123k, 4.56M, 7.89G."""
    if count < _WHOLE:
        return f"{count:,}"
    units = (("k", 1e3), ("M", 1e6), ("G", 1e9))
    unit, size = next((each for each in units if count < each[1] * 999.5), ("T", 1e12))
    return f"{count / size:.3g}{unit}"
