"""What systemd is told over its notify socket: ready, alive, stopping (sd_notify(3)).

A datagram per message and no library. Without `NOTIFY_SOCKET` nothing is said; a supervisor that
does not listen is nobody's trouble.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Final

from trunkline_broker.edge import Edge

_SOCKET_ENV: Final = "NOTIFY_SOCKET"
_WATCHDOG_ENV: Final = "WATCHDOG_USEC"
_WATCHDOG_PID_ENV: Final = "WATCHDOG_PID"
_MOST_DIGITS: Final = 18  # of microseconds: thirty thousand years


class Supervisor:
    """The notify socket of this process.

    Attributes:
        beat_s: how often `beat` has to be called at least; 0: nobody counts.
    """

    def __init__(self, environ: MutableMapping[str, str], edge: Edge) -> None:
        """Take the variables out of the environment, so that no worker speaks for the broker."""
        address = environ.pop(_SOCKET_ENV, "")
        usec, pid = environ.pop(_WATCHDOG_ENV, ""), environ.pop(_WATCHDOG_PID_ENV, "")
        is_ours = not pid or pid == str(os.getpid())
        is_number = usec.isdecimal() and len(usec) <= _MOST_DIGITS
        self.beat_s = int(usec) / 2_000_000 if is_number and is_ours and address else 0.0
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._edge = edge
        self._socket = edge.run(_datagrams, None) if self._address else None

    def ready(self, status: str) -> None:
        """Say that the broker serves."""
        self._say(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={status}")

    def beat(self) -> None:
        """Say that the loop runs."""
        if self.beat_s:
            self._say("WATCHDOG=1")

    def stopping(self) -> None:
        """Say that the broker drains and will end."""
        self._say("STOPPING=1")

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _say(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(os.fsencode(text), self._address)
        except OSError:  # nobody listens any more, or its queue is full: the next beat tells
            return
        except Exception as exc:  # noqa: BLE001  # any error of a side service ends at its edge
            self._edge.note(exc)


def _datagrams() -> socket.socket:
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    return socket.socket(socket.AF_UNIX, kind)
