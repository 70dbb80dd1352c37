"""`trunkline swap`: replace the workers of a pool while their streams go on."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trunkline_broker.cli.connection import ask, run_async
from trunkline_broker.cli.terminal import out, print_json


def swap(
    name: Annotated[str, typer.Argument(help="The NAME of [worker.NAME] in the configuration.")],
    *,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the new worker.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Start a new worker, move the routes to it, let the old one finish its streams.

    \b
    Returns when new calls go to the new worker; the old one leaves when its streams have ended.
    If the new one does not get ready, the old one keeps serving and the reason is shown.
      trunkline swap local
    """
    done = run_async(ask("swap", "swap", {"pool": name}, timeout))
    if as_json:
        print_json(done)
        return
    for slot in done.get("slots", ()):
        out().print(_line(name, slot), markup=False)
    if lost := done.get("routesLost"):
        out().print(f"routes the new worker does not serve: {', '.join(lost)}", style="yellow")


def _line(name: str, slot: dict[str, Any]) -> str:
    alive = slot.get("aliveCalls", 0)
    going_on = f"; {alive} stream{'' if alive == 1 else 's'} go on with the old one"
    return (
        f"{name}/{slot['slot']}: pid {slot['oldPid']} -> pid {slot['newPid']}"
        f"{going_on if alive else ''}"
    )
