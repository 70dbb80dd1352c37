"""`trunkline logs`: what the broker or a worker has written."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import deque
from pathlib import Path
from typing import Annotated, Final, NoReturn, TextIO

import typer

from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.names import log_names
from trunkline_broker.cli.terminal import err, fail

POLL_S: Final = 0.2
BROKER: Final = "broker"
_NAME: Final = re.compile(r"(?P<pool>.+)-(?P<slot>\d+)-(?P<number>\d+)\.(?P<epoch>\d+)\.log")
# What a provider or an adapter wrote must not steer the terminal.
_CONTROLS: Final = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {0x09, 0x0A})


def logs(
    name: Annotated[
        str,
        typer.Argument(
            help="`broker`, the NAME of a worker, or NAME/SLOT.", autocompletion=log_names
        ),
    ] = BROKER,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="From the end.")] = 50,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the worker's process before.")
    ] = False,
) -> None:
    """Show the log of the broker, or what the newest process of a worker has written.

    The broker's log is a file only if it was started with --detach; under systemd:
    journalctl --user -u trunkline.

    \b
      trunkline logs
      trunkline logs local -f
      trunkline logs local/1 -n 200
      trunkline logs local --previous     the last words of one that died
    """
    from trunkline_broker.paths import RunPaths, default_run_dir

    paths = RunPaths(default_run_dir(os.environ))
    if previous and (follow or name == BROKER):
        fail("--previous is for a worker, and without --follow", ExitCode.USAGE)
    path = paths.log if name == BROKER else newest(paths.workers, name, before=int(previous))
    if path is None or not path.is_file():
        _nothing(paths.workers, paths.log, name, is_previous=previous)
    file = _opened(path)
    told = tail(file, lines)
    for line in told:
        _write(line)
    if not told and not follow and lines:
        has_more = not previous and newest(paths.workers, name, before=1) is not None
        hint = "; the process before it: --previous" if has_more else ""
        err().print(f"({name} has written nothing{hint})", style="dim", markup=False)
    if follow:
        _follow(paths.workers, name, path, file)


def newest(directory: Path, name: str, before: int = 0) -> Path | None:
    """Return the output file of the newest process of a worker; `None` if it has none.

    Args:
        directory: of the files, named `POOL-SLOT-NUMBER.EPOCH.log`.
        name: NAME or NAME/SLOT.
        before: 1 for the process before the newest, and so on.
    """
    pool, _, slot = name.partition("/")
    found: list[tuple[int, int, Path]] = []
    for path in directory.glob("*.log"):
        parts = _NAME.fullmatch(path.name)
        if parts is not None and parts["pool"] == pool and slot in {"", parts["slot"]}:
            found.append((int(parts["epoch"]), int(parts["number"]), path))
    return sorted(found)[-1 - before][2] if len(found) > before else None


def tail(file: TextIO, count: int) -> list[str]:
    """Read a file to its end; return the last lines."""
    return list(deque(file, maxlen=count))


def _opened(path: Path) -> TextIO:
    return path.open(encoding="utf-8", errors="replace")


def _nothing(workers: Path, log: Path, name: str, *, is_previous: bool) -> NoReturn:
    files = (_NAME.fullmatch(path.name) for path in workers.glob("*.log"))
    names = sorted({parts["pool"] for parts in files if parts is not None})
    known = ", ".join(([BROKER] if log.is_file() else []) + names) or "nothing"
    if is_previous and newest(workers, name) is not None:
        fail(f"{name} had no process before this one", ExitCode.FAILED)
    fail(f"no log of {name!r} in {log.parent}; there is: {known}", ExitCode.FAILED)


def _write(text: str) -> None:
    if sys.stdout.isatty():
        text = text.translate(_CONTROLS)
    sys.stdout.write(text)
    sys.stdout.flush()


def _follow(workers: Path, name: str, path: Path, file: TextIO) -> None:
    """Write what is added, also behind a cut of the file or in that of the next process."""
    while True:
        text = file.read()
        if text:
            _write(text)
            continue
        time.sleep(POLL_S)
        if file.tell() > path.stat().st_size:
            file.seek(0)
        following = path if name == BROKER else newest(workers, name)
        if following is not None and following != path:
            file.close()
            path, file = following, _opened(following)
            err().print(f"--- {path.name}", style="dim", markup=False)
