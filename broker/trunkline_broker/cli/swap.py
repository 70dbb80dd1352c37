"""`trunkline swap`, `reload`, `drain`: change workers while their streams go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trunkline_broker.cli.connection import ask, run_async
from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.names import worker_names
from trunkline_broker.cli.terminal import fail, out, print_json

DRAIN_REPLY_S: Final = 5.0
Name = Annotated[
    str,
    typer.Argument(
        help="The NAME of [worker.NAME] in the configuration.", autocompletion=worker_names
    ),
]


def swap(
    name: Name,
    *,
    env: Annotated[
        Path | None, typer.Option(help="Virtual environment, or interpreter, of the new worker.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Take [worker.NAME] from this file.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the new worker.")] = 120.0,
    watch: Annotated[
        bool, typer.Option("--watch", help="And again when its files change, until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Start a new worker, move the routes to it, let the old one finish its streams.

    Returns when new calls go to the new worker; the old one leaves when its streams have ended.
    If the new one does not get ready, the old one keeps serving and the reason is shown. Replicas
    are exchanged one after the other; if one fails, those before it are set back.
    --env and --config hold until the next reload, or until the broker starts again. --watch looks
    at the adapter's Python files, at its env_file and at the configuration.

    \b
      trunkline swap local
      trunkline swap acme --watch
      trunkline swap local --env ~/venvs/next-sdk
      trunkline swap local --config next.toml
    """
    argument: dict[str, object] = {"pool": name}
    if env is not None:
        argument["python"] = _interpreter(env)
    if config is not None:
        argument["config"] = str(config.expanduser().absolute())
    if watch:
        if as_json:
            fail("--watch prints no JSON", ExitCode.USAGE)
        from trunkline_broker.cli.watch import watch_pool

        watch_pool(name, argument, config.expanduser().absolute() if config is not None else None)
        return
    done = run_async(ask("swap", "swap", argument, timeout))
    if as_json:
        print_json(done)
        return
    for line in swap_lines(done):
        out().print(line, markup=False)


def swap_lines(done: Mapping[str, Any]) -> list[str]:
    """Return the answer to a `swap` query for people."""
    lines = [_line(done["pool"], slot) for slot in done["slots"]]
    if lost := done["routesLost"]:
        lines.append(f"routes the new worker does not serve: {', '.join(lost)}")
    return lines


def reload_lines(done: Mapping[str, Any]) -> list[str]:
    """Return the answer to a `reload` query for people."""
    kinds = ("added", "removed", "changed", "unchanged")
    lines = [f"{what}: {', '.join(done[what])}" for what in kinds if done[what]]
    if keys := done.get("restart"):  # neither this nor clients is told by an older broker
        lines.append(f"in force after trunkline restart: {', '.join(keys)} of [broker]")
    if clients := done.get("clients"):
        lines.append(f"other rights: {', '.join(clients)}")
    return lines + [line for report in done["swapped"] for line in swap_lines(report)]


def _line(name: str, slot: Mapping[str, Any]) -> str:
    alive = slot.get("aliveCalls", 0)
    going_on = f"; {alive} stream{' goes' if alive == 1 else 's go'} on with the old one"
    change = f"pid {slot['oldPid']} -> " if slot["oldPid"] is not None else ""
    return f"{name}/{slot['slot']}: {change}pid {slot['newPid']}{going_on if alive else ''}"


def reload(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Another file than the broker's own.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for new workers.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read the configuration again and bring the workers in line with it.

    New pools start, removed ones drain, changed ones are swapped, the others are left alone. What
    [client.NAME] allows holds at once, for new calls. What stands in [broker] needs a
    `trunkline restart`; the keys that changed are named.

    \b
      trunkline reload
    """
    argument: dict[str, object] = {}
    if config is not None:
        argument["config"] = str(config.expanduser().absolute())
    done = run_async(ask("reload", "reload", argument, timeout))
    if as_json:
        print_json(done)
        return
    for line in reload_lines(done):
        out().print(line, markup=False)


def drain(
    name: Name,
) -> None:
    """Take a pool out of service; its running calls end, new ones are refused.

    `trunkline swap NAME` puts it in service again.

    \b
      trunkline drain local
    """
    run_async(ask("drain", "drain", {"pool": name}, DRAIN_REPLY_S))
    out().print(f"{name} takes no more calls; its workers leave when theirs have ended")


def _interpreter(env: Path) -> str:
    """Return the interpreter of a virtual environment, or the path itself if it is none."""
    path = env.expanduser().absolute()
    found = path / "bin" / "python" if path.is_dir() else path
    if not found.exists():
        fail(f"--env: there is no {found}", ExitCode.USAGE)
    return str(found)
