"""The other processes of this worker's process group: what its adapter has started.

The broker gives each worker a session and a group of its own, and kills the whole group when the
worker has ended. A worker that leaves because no broker comes has nobody who would do that.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

_ROUNDS: Final = 3  # one that is killed may just have started another
_PGRP_FIELD: Final = 2  # of /proc/PID/stat, counted behind the name


def kill_others() -> int:
    """Kill every other process of this process's group, if this process leads its session.

    Returns:
        How many were there. 0 for a worker that was started by hand: its session is a shell's.
    """
    own = os.getpid()
    if os.getsid(0) != own:
        return 0
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = _members(own) - killed
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        killed |= found
    return len(killed)


def _members(leader: int) -> set[int]:
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # it has ended meanwhile
            continue
        fields = stat[stat.rindex(")") + 2 :].split()
        if int(fields[_PGRP_FIELD]) == leader and fields[0] not in "ZX":
            found.add(int(entry.name))
    return found - {leader}
