"""Gives a broker the signals that it lives by, whatever it has inherited.

A parent may leave signals blocked or ignored; both survive `exec`. With SIGCHLD ignored the kernel
reaps children by itself, and with SIGTERM blocked nothing but a kill ends the process.
"""

from __future__ import annotations

import signal


def own_signals() -> None:
    """Unblock every signal and let children be reaped; called before any thread is started."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a reader that is gone is an error of a write


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop the broker.

    SIGINT and SIGHUP are left out where they are ignored, as a shell (`trunkline up &`) and `nohup`
    wish. SIGTERM always stops it.
    """
    optional = (signal.SIGINT, signal.SIGHUP)
    heeded = (each for each in optional if signal.getsignal(each) is not signal.SIG_IGN)
    return (signal.SIGTERM, *heeded)
