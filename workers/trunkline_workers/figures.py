"""What a process can say of itself: memory and open descriptors."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any, Final

_STATM: Final = Path("/proc/self/statm")
_DESCRIPTORS: Final = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return the resident memory; where the system has no statm, the most it ever was."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):  # not Linux, or no /proc
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def open_descriptors() -> int:
    """Return the number of open descriptors; 0 where the system does not tell."""
    try:
        return len(os.listdir(_DESCRIPTORS))
    except OSError:
        return 0


def process_figures() -> dict[str, Any]:
    """Return the figures that a heartbeat carries."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "rss": resident_bytes(),
        "fds": open_descriptors(),
        "cpuS": round(used.ru_utime + used.ru_stime, 3),
    }
