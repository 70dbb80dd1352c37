"""`trunkline status`: what runs, and how busy it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from trunkline_broker.cli.connection import ask, run_async
from trunkline_broker.cli.terminal import out, print_json
from trunkline_broker.cli.troubles import troubles

TIMEOUT_S = 5.0
SHOWN_OUTPUT_LINES = 5  # of a worker that does not serve; the last of a traceback tells most


def status(
    *, as_json: Annotated[bool, typer.Option("--json", help="Print the whole document.")] = False
) -> None:
    """Show workers, routes, clients and calls.

    \b
      trunkline status
      trunkline status --json | jq .calls
    """
    document = run_async(ask("status", "status", {}, TIMEOUT_S))
    if as_json:
        print_json(document)
        return
    _print_head(document)
    for trouble in troubles(document):
        out().print(trouble.text, style="yellow" if trouble.is_past else "bold red", markup=False)
    _print_pools(document.get("pools", ()))
    _print_rows(
        "routes",
        ("provider", "pool", "state", "in flight", "queued"),
        (
            # A route that is down has no figures.
            (
                row["provider"],
                row["pool"],
                row["state"],
                row.get("inFlight", "-"),
                row.get("queued", "-"),
            )
            for row in document.get("routes", ())
        ),
    )
    _print_rows(
        "clients",
        ("client", "name", "pid", "open calls"),
        (
            (row["client"], row["name"], row["pid"], row["openCalls"])
            for row in document.get("clients", ())
        ),
    )
    _print_counts("calls", document.get("calls", {}))
    _print_counts("refused frames", document.get("refused", {}))


def _print_head(document: dict[str, Any]) -> None:
    state = (
        "draining" if document.get("draining") else "settling" if document.get("settling") else ""
    )
    out().print(
        f"trunkline {document.get('version', '?')}  pid {document.get('pid', '?')}"
        f"  up {duration(document.get('uptimeS', 0.0))}  {state}".rstrip(),
        style="bold",
    )
    for name, place in (("run directory", "runDir"), ("configuration", "config")):
        if document.get(place):
            out().print(f"{name} {document[place]}", style="dim", markup=False)


def _print_pools(pools: Sequence[dict[str, Any]]) -> None:
    heads = ("worker", "adapter", "state", "pid", "role", "in flight", "restarts", "age")
    slots = [(pool, slot) for pool in pools for slot in pool.get("slots", ())]
    _print_rows("workers", heads, [_slot_row(pool, slot) for pool, slot in slots])
    for pool, slot in slots:
        if last := slot.get("lastExit"):
            name = f"{pool['name']}/{slot['slot']}"
            out().print(f"{name}: last exit: {last}", style="yellow", markup=False)
            if slot.get("retryInMs") is not None:
                again = duration(slot["retryInMs"] / 1000)
                out().print(f"{name}: it is started again in {again}", style="yellow", markup=False)
            if slot["state"] != "serving":
                for line in slot.get("output", ())[-SHOWN_OUTPUT_LINES:]:
                    out().print(f"  {line}", style="dim", markup=False)


def _slot_row(pool: dict[str, Any], slot: dict[str, Any]) -> tuple[object, ...]:
    return (
        f"{pool['name']}/{slot['slot']}",
        pool["adapter"].rpartition("/")[2],  # of a file its name
        slot["state"],
        slot.get("pid") or "-",
        slot.get("role") or "-",
        slot.get("inFlight", 0),
        slot.get("restarts", 0),
        duration(slot["startedMsAgo"] / 1000) if slot.get("pid") else "-",
    )


def _print_rows(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    listed = list(rows)
    if not listed:
        out().print(f"\n{title}: none", style="dim")
        return
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in listed:
        table.add_row(*(str(cell) for cell in row))
    out().print()
    out().print(table)


def _print_counts(title: str, counts: dict[str, int]) -> None:
    if counts:
        listed = "  ".join(f"{name} {count}" for name, count in counts.items())
        out().print(f"\n{title}  {listed}", markup=False)


def duration(seconds: float) -> str:
    """Return a length of time as people say it, such as `3 m 07 s`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} m"
    return f"{minutes} m {rest:02} s" if minutes else f"{rest} s"
