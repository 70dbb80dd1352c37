"""Lets a process outlive signals that mean nothing to it.

Most signals end a process that does not handle them. They come of a timer that a parent has left
running (it survives `exec`), of an adapter's `signal.alarm`, of a profiler, of a monitor that sends
SIGUSR1 to everything. Faults of native code, SIGQUIT and SIGXCPU keep their effect.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Final

MEANINGLESS: Final = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    *(
        number
        for name in ("SIGIO", "SIGPWR", "SIGSTKFLT")  # not on every system
        if isinstance(number := getattr(signal, name, None), signal.Signals)
    ),
    *(range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if hasattr(signal, "SIGRTMIN") else ()),
)
"""Signals that end a process by default, and that have a sense only by a handler of its own."""
OF_WRITES: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that say what an error of the write says too."""


def outlive(numbers: Iterable[int] = MEANINGLESS) -> list[int]:
    """Make signals harmless that would end the process; call it in the main thread.

    A handler that is there stays. Programs that this process starts get the defaults: a handler
    does not survive `exec`, an ignored signal would. Those of `OF_WRITES` are ignored, as Python
    does at its start.

    Returns:
        The signals that would have ended the process until now.
    """
    found = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in found:
        signal.signal(number, _nothing)
    writes = [number for number in OF_WRITES if signal.getsignal(number) is signal.SIG_DFL]
    for number in writes:
        signal.signal(number, signal.SIG_IGN)
    return found + writes


def stop_timers() -> None:
    """Stop the timers that a parent has left running; they survive `exec`.

    Their signals would end the process where it has no handler yet, or none any more: at its start
    and at its end.
    """
    for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(which, 0.0)


def _nothing(_number: int, _frame: object) -> None:
    """Do nothing: that the signal has a handler is enough."""
