"""What the kernel says of processes: alive, their processor time, their children, their memory."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Say whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def cpu_s(pid: int) -> float:
    """Return the processor time of a process's living threads, exact to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    """Return how many descriptors a process holds."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def has_its_ledger(pid: int) -> bool:
    """Say whether a broker has opened its ledger: on a thread of its own, late on a busy disk."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            if link.readlink().name.endswith("sqlite-shm"):
                return True
    return False


def with_environment(name: str, value: str) -> list[int]:
    """Return the live processes whose environment has this variable with this value."""
    wanted = f"{name}={value}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or not is_alive(int(entry.name)):
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environ.split(b"\0"):
            found.append(int(entry.name))
    return found
