"""Samples of a soak: what broker, workers, a client and the run directory hold at one time.

Figures of the kernel are read from `/proc`; tasks and tables come from the process itself, which
writes them on SIGUSR1 (`tests.chaos.inside`). A worker is named by its pool and slot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.chaos import inside
from tests.support.processes import is_alive, open_files, rss_bytes
from tests.support.timing import NotSoonEnoughError, until_async

_ANSWER_S: Final = 10.0
_PID: Final = re.compile(r" pid \d+")
Figures = dict[str, float]


async def inside_of(directory: Path, pid: int) -> Mapping[str, Any]:
    """Return what a process says of itself; empty if it is gone or too busy to answer."""
    path = inside.path_of(directory, pid)
    path.unlink(missing_ok=True)
    with contextlib.suppress(ProcessLookupError, NotSoonEnoughError):
        os.kill(pid, signal.SIGUSR1)
        await until_async(path.exists, _ANSWER_S)
        return json.loads(path.read_text())
    return {}


def of_kernel(pid: int) -> Figures:
    """Return resident KiB, descriptors and threads of a process; empty if it is gone."""
    if not is_alive(pid):
        return {}
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        return {"rssKib": rss_bytes(pid) / 1024, "files": open_files(pid), "threads": threads}
    return {}


def of_directory(root: Path) -> Figures:
    """Return the files below a directory and their KiB; one that is just gone does not count."""
    count, size = 0, 0
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += Path(folder, name).stat().st_size
                count += 1
    return {"count": count, "kib": size / 1024}


async def of_process(directory: Path, pid: int) -> tuple[Figures, dict[str, int]]:
    """Return all figures of a process, and the sizes of its tables."""
    figures = of_kernel(pid)
    said = await inside_of(directory, pid)
    for name in ("tasks", "blocks"):
        if name in said:
            figures[name] = said[name]
    return figures, dict(said.get("tables", {}))


def of_status(document: Mapping[str, Any]) -> Figures:
    """Return the sizes that the status document tells, by path."""
    found: Figures = {
        "clients": len(document["clients"]),
        "leaving": len(document["leaving"]),
        "calls.open": document["calls"]["open"],
        "counters": len(document["counters"]),
        "refused": len(document["refused"]),
        "bytes": len(json.dumps(document, default=str)),
    }
    for queue in document["queues"]:
        if not queue["name"].startswith("client "):
            found["queue " + _PID.sub("", queue["name"])] = queue["depth"]
    return found


async def gather(
    directory: Path, pids: Mapping[str, int]
) -> dict[str, tuple[Figures, dict[str, int]]]:
    """Return the figures of several processes by name."""
    found = await asyncio.gather(*(of_process(directory, pid) for pid in pids.values()))
    return dict(zip(pids, found, strict=True))
