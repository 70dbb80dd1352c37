"""Writes what a process holds to a file when it gets SIGUSR1; only test programs install it.

The file is `inside-PID.json` in the directory that `CHAOS_INSIDE` names. It holds the tasks, the
threads, the sizes of all tables by class and attribute, and the state of each attempt or stream.
Nothing of it is shipped: tables are found by a walk through the objects of the interpreter.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "CHAOS_INSIDE"
ROOT: Final = Path(__file__).resolve().parents[2]
_SIZED: Final = (dict, list, set, deque, bytearray)
_ATTEMPT: Final = (
    "state",
    "room",
    "sent",
    "received",
    "consumed",
    "window_chunks",
    "pending_count",
    "kept_bytes",
    "is_detached",
)
_STREAM: Final = ("phase", "attempt", "begun", "is_over")
_INTAKE: Final = ("expected", "known_next", "consumed", "waiting_chunks", "window_chunks")


def install() -> None:
    """Answer SIGUSR1 from now on, if the environment names a directory."""
    if os.environ.get(VARIABLE):
        signal.signal(signal.SIGUSR1, _on_signal)


def environ(directory: Path) -> dict[str, str]:
    """Return the variables for programs that show their state in a directory.

    They find this package by an absolute path: a worker runs in the run directory.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {VARIABLE: str(directory), "PYTHONPATH": os.pathsep.join(paths)}


def path_of(directory: Path, pid: int) -> Path:
    """Return the file that a process writes."""
    return directory / f"inside-{pid}.json"


def _on_signal(*_: object) -> None:
    path = path_of(Path(os.environ[VARIABLE]), os.getpid())
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(facts()))
    beside.replace(path)


def facts() -> dict[str, Any]:
    """Return what this process holds."""
    ours = list(_ours())
    return {
        "tasks": len(_tasks()),
        "threads": threading.active_count(),
        "blocks": sys.getallocatedblocks(),
        "tables": _tables(ours),
        "attempts": [line for each in ours for line in _attempts(each)],
        "streams": [_stream(each) for each in ours if _is_a(each, "StreamState")],
    }


def _tasks() -> set[asyncio.Task[Any]]:
    try:
        return asyncio.all_tasks(asyncio.get_running_loop())
    except RuntimeError:  # between two runs of a loop
        return set()


def _ours() -> Iterator[Any]:
    for each in gc.get_objects():
        if str(type(each).__module__).startswith("trunkline"):
            yield each


def _fields(each: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(each, "__dict__", {}).items()
    for kind in type(each).__mro__:
        for name in _slots(kind):
            if hasattr(each, name):
                yield name, getattr(each, name)


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _tables(ours: list[Any]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for each in ours:
        name = type(each).__name__
        sizes[name] += 1
        for field, value in _fields(each):
            if isinstance(value, _SIZED):
                sizes[f"{name}.{field}"] += len(value)
    return dict(sizes)


def _is_a(each: Any, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(each).__mro__)


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else str(value)


def _attempts(each: Any) -> Iterator[dict[str, Any]]:
    """Yield the attempts of a worker's host, each with the state of its puller."""
    if type(each).__module__ != "trunkline_workers.host" or not hasattr(each, "_pullers"):
        return
    for key, attempt in each._core.calls._held.items():
        line = {name: _plain(getattr(attempt, name)) for name in _ATTEMPT}
        line |= {"call": key[0].hex(), "number": key[1], "puller": "none"}
        if key in each._pullers:
            puller, task = each._pullers[key][:2]
            credit = getattr(puller, "_credit", None)
            is_asleep = credit is not None and not credit.done()
            line["puller"] = "done" if task.done() else "asleep" if is_asleep else "awake"
        yield line


def _stream(each: Any) -> dict[str, Any]:
    line = {name: _plain(getattr(each, name)) for name in _STREAM}
    line |= {name: _plain(getattr(each.intake, name)) for name in _INTAKE}
    return line | {"call": each.call.hex()}
