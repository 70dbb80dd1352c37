"""Limits and use of this process and of its workers, as the kernel counts them."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import NamedTuple

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NO_LIMIT = 1 << 20


class ResourceRule(NamedTuple):
    """A limit for every worker: `resource.RLIMIT_…` and its value."""

    kind: int
    value: int


def worker_rules(memory_limit_mib: int, open_files_limit: int) -> tuple[ResourceRule, ...]:
    """Return the limits that are set; 0 means none."""
    wanted = (
        ResourceRule(resource.RLIMIT_AS, memory_limit_mib * 1024 * 1024),
        ResourceRule(resource.RLIMIT_NOFILE, open_files_limit),
    )
    return tuple(rule for rule in wanted if rule.value)


def own_rules(
    common: tuple[ResourceRule, ...], memory_limit_mib: int | None, open_files_limit: int | None
) -> tuple[ResourceRule, ...]:
    """Return the limits of one worker: its own where it has some (0: none), or the common ones."""
    values = {rule.kind: rule.value for rule in common}
    if memory_limit_mib is not None:
        values[resource.RLIMIT_AS] = memory_limit_mib * 1024 * 1024
    if open_files_limit is not None:
        values[resource.RLIMIT_NOFILE] = open_files_limit
    return tuple(ResourceRule(kind, value) for kind, value in values.items() if value)


def limit_process(pid: int, rules: tuple[ResourceRule, ...]) -> None:
    """Set the limits of a running process, soft and hard; one that is gone needs none.

    Raises:
        ValueError, PermissionError: a limit above what this process may give.
    """
    with contextlib.suppress(ProcessLookupError):
        for rule in rules:
            resource.prlimit(pid, rule.kind, (rule.value, rule.value))


def forbid_core_dumps() -> None:
    """Let a crash of this process, or of a worker it starts, leave no memory image with keys."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def raise_open_files_limit() -> int:
    """Allow this process what the system allows; return that number of descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _NO_LIMIT if hard == resource.RLIM_INFINITY else hard


def open_files() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd")) - 1  # that of the listing itself


def usage() -> dict[str, object]:
    """Return processor time and resident memory of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "cpuS": round(used.ru_utime + used.ru_stime, 3),
        "rssBytes": resident_pages * _PAGE_BYTES,
        "maxRssBytes": used.ru_maxrss * 1024,
    }
