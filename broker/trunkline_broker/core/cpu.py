"""Computes from two looks at a process how long it wanted to run and got no CPU.

The kernel counts per thread how long it ran, how long it waited in a run queue, and how often it
went to sleep by itself (proc(5): `schedstat`, `status`). A wait is counted when it ends, so a
thread that still waits is known by its state alone. It does not know workers or leases.
"""

from __future__ import annotations

from collections.abc import Mapping

from trunkline_protocol.record import record


@record
class ThreadLook:
    """The counters of one thread.

    Attributes:
        ran_s: seconds on a CPU since it began.
        queued_s: seconds in run queues since it began, without a wait that goes on.
        slept: how often it gave its CPU away by itself.
        is_runnable: it runs, or waits for a CPU.
    """

    ran_s: float
    queued_s: float
    slept: int
    is_runnable: bool


@record
class CpuLook:
    """The threads of a process that its frames depend on.

    Attributes:
        at_s: monotonic seconds of the look.
        threads: by thread id.
    """

    at_s: float
    threads: Mapping[int, ThreadLook]


def waited_s(before: CpuLook, after: CpuLook) -> float:
    """Return the seconds for which the thread that waited most had no CPU between two looks.

    A thread that is runnable at the second look and did not sleep in between waited whenever it
    did not run. For another one the kernel's own count of finished waits stands.
    """
    span_s = max(0.0, after.at_s - before.at_s)
    waits = [0.0]
    for number, then in before.threads.items():
        now = after.threads.get(number)
        if now is None:
            continue
        if now.is_runnable and now.slept == then.slept:
            waits.append(span_s - (now.ran_s - then.ran_s))
        else:
            waits.append(now.queued_s - then.queued_s)
    return min(span_s, max(waits))
