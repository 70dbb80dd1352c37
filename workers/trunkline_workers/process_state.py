"""Puts back what belongs to the process and adapter code may have changed: signals, descriptors.

Looked at once a second: whether the host still gets SIGTERM, SIGHUP and SIGINT, whether a signal
that means nothing would end the process, and whether descriptors 0 to 2 are open. A closed one
would be given to the next socket, and the log would be written to that.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, Final

from trunkline_workers.stray_signals import MEANINGLESS, outlive

# Not the alarm: it ends a process that does not leave by itself.
_OUTLIVED: Final = tuple(number for number in MEANINGLESS if number != signal.SIGALRM)
_STANDARD: Final = (0, 1, 2)
_ABOVE_STANDARD: Final = 3


class ProcessState:
    """Keeps signal handlers and standard descriptors as the host needs them.

    Args:
        loop: that delivers the signals.
        handlers: what follows each signal.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handlers: Mapping[int, Callable[[], None]]
    ) -> None:
        self._loop = loop
        self._handlers = handlers
        self._installed: dict[int, Any] = {}
        self._copies: dict[int, int] = {}
        for descriptor in _STANDARD:
            with contextlib.suppress(OSError):  # it was closed when the process began
                copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE_STANDARD)
                self._copies[descriptor] = copy
        for number in handlers:
            self._install(number)

    def restore(self) -> list[str]:
        """Put back what was changed; return a line for each change that was found."""
        found: list[str] = []
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handlers)
        for number in self._handlers:
            if signal.getsignal(number) != self._installed[number]:
                self._install(number)
                found.append(f"adapter code took {signal.Signals(number).name}; it is taken back")
        found += [
            f"signal {number} would have ended the process; it does not any more"
            for number in outlive(_OUTLIVED)
        ]
        for descriptor, copy in self._copies.items():
            if not _is_open(descriptor):
                os.dup2(copy, descriptor)
                found.append(f"adapter code closed descriptor {descriptor}; it is open again")
        return found

    def release(self) -> None:
        """Give up signals and copies of descriptors."""
        for number in self._handlers:
            self._loop.remove_signal_handler(number)
        for copy in self._copies.values():
            with contextlib.suppress(OSError):  # adapter code closed what it did not open
                os.close(copy)
        self._copies.clear()

    def _install(self, number: int) -> None:
        self._loop.add_signal_handler(number, self._handlers[number])
        self._installed[number] = signal.getsignal(number)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
