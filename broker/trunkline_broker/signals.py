"""Gives a broker the signals that it lives by, whatever it has inherited.

A parent may leave signals blocked or ignored; both survive `exec`. With SIGCHLD ignored the kernel
reaps children by itself, and with SIGTERM blocked nothing but a kill ends the process. A timer that
it has started goes on as well, and its SIGALRM would end the process.
"""

from __future__ import annotations

import signal
from typing import Final

_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_MEANINGLESS: Final = frozenset(
    {"SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT"}
)
"""Their default is to end the process. SIGUSR2 gets its meaning once the broker serves."""


def own_signals() -> None:
    """Unblock every signal, let children be reaped, outlive signals and timers of others.

    Called before any thread is started.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # until each has its handler
    for which in _TIMERS:  # a handler alone would not do: at our end each has its default again
        signal.setitimer(which, 0.0)
    for number in signal.valid_signals():
        if _is_meaningless(number) and signal.getsignal(number) is signal.SIG_DFL:
            # A handler, not SIG_IGN: workers would inherit that.
            signal.signal(number, _nothing)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a reader that is gone is an error of a write
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop the broker.

    SIGINT and SIGHUP are left out where they are ignored, as a shell (`trunkline up &`) and `nohup`
    wish. SIGTERM always stops it.
    """
    optional = (signal.SIGINT, signal.SIGHUP)
    heeded = (each for each in optional if signal.getsignal(each) is not signal.SIG_IGN)
    return (signal.SIGTERM, *heeded)


def _is_meaningless(number: int) -> bool:
    """Return whether nobody sends this signal to a broker for a reason; also real-time signals."""
    is_named = isinstance(number, signal.Signals)
    return number >= signal.SIGRTMIN or (is_named and number.name in _MEANINGLESS)


def _nothing(_number: int, _frame: object) -> None:
    """Do nothing: that the signal has a handler is enough."""
