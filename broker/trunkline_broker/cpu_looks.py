"""Reads from /proc how much CPU the threads of a worker got that its frames depend on.

These are the main thread, which runs the loop, and the threads of libzmq, which send. It draws no
conclusion; that is `core.liveness`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from trunkline_broker.core.cpu import CpuLook, ThreadLook

_ZMQ_THREADS: Final = b"ZMQbg/IO"  # as libzmq names them: zmq::thread_ctx_t::start_thread
_MAX_THREADS: Final = 4096  # looked through; a process with more tells of its main thread alone
_NS: Final = 1e-9


def look_at(pid: int) -> CpuLook | None:
    """Return the counters of a process; `None` if it is gone or the kernel does not tell."""
    at_s = time.monotonic()
    try:
        numbers = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except (OSError, ValueError):
        return None
    threads: dict[int, ThreadLook] = {}
    for number in (pid, *numbers[:_MAX_THREADS]):
        look = _thread(Path(f"/proc/{pid}/task/{number}"), is_main=number == pid)
        if look is not None:
            threads[number] = look
    return CpuLook(at_s, threads) if pid in threads else None


def _thread(folder: Path, *, is_main: bool) -> ThreadLook | None:
    """Return one thread; `None` if it ends meanwhile or no frame depends on it."""
    try:
        stat = (folder / "stat").read_bytes()
        name, _, rest = stat.partition(b"(")[2].rpartition(b")")
        if not is_main and not name.startswith(_ZMQ_THREADS):
            return None
        ran, queued = (folder / "schedstat").read_bytes().split()[:2]
        status = (folder / "status").read_bytes()
        slept = int(status.split(b"\nvoluntary_ctxt_switches:")[1].split(None, 1)[0])
        return ThreadLook(int(ran) * _NS, int(queued) * _NS, slept, rest.split()[0] == b"R")
    except (OSError, ValueError, IndexError):
        return None
