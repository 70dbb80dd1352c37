"""Ends the process within a bounded time once it leaves, whatever adapter code holds open.

A thread ends it with its proper exit code. Where that thread cannot run, since native code holds
the interpreter's lock, the alarm of the kernel ends it a moment later.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from trunkline_protocol.limits import CANCEL_S

CLOSE_S: Final = 4.0  # for the adapter's own close()
HARD_LIMIT_S: Final = CANCEL_S + CLOSE_S + 0.5  # for everything, the end of the interpreter too
_ALARM_AFTER_S: Final = 1.0  # behind the thread

Limit = Callable[[int, Callable[[], object]], None]
"""Ends the process after a time with an exit code, and calls a function before."""


def arm_hard_limit(
    exit_code: int, before: Callable[[], object], limit_s: float = HARD_LIMIT_S
) -> None:
    """End this process after a time, unless it has ended by itself.

    Args:
        exit_code: its exit code then.
        before: called first, in another thread.
        limit_s: seconds from now.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s + _ALARM_AFTER_S)

    def end() -> None:
        try:
            before()
        finally:
            os._exit(exit_code)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # no memory or no place for a thread: the alarm ends the process
        return
