"""What a worker's sockets need to reach a broker on another host: keys, heartbeats, plain words.

A broken handshake is told as that, and at once; the worker goes on trying until it has been without
a broker for too long, since an allow-list can be mended meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import zmq
from trunkline_protocol.curve import CurveKeys

_RECONNECT_MS: Final = 20
_RECONNECT_MAX_MS: Final = 500
_HEARTBEAT_MS: Final = 3_000
_TIMEOUT_MS: Final = 10_000
# A broker whose key is another one just closes; so may one that ends, hence not at the first time.
_SILENT_REFUSALS: Final = 3


def new_dealer(
    context: zmq.Context[zmq.Socket[bytes]], keys: CurveKeys | None
) -> zmq.Socket[bytes]:
    """Make a socket that connects again soon; with keys also what connections over TCP need."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
    if keys is not None:
        _secure(socket, keys)
    return socket


def _secure(socket: zmq.Socket[bytes], keys: CurveKeys) -> None:
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _TIMEOUT_MS)
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.get_secret_value().encode()
    socket.curve_serverkey = keys.server.encode()


class Handshakes:
    """What comes of the handshakes of one socket: a new connection, or a word, said once, why not.

    Args:
        name: of the socket.
        has_keys: whether it uses keys.
        on_connected: told of every new connection, the first one included.
        count: takes the name of a counter.
        report: takes what is worth saying; `None`: nobody does.
    """

    def __init__(
        self,
        name: str,
        *,
        has_keys: bool,
        on_connected: Callable[[], None],
        count: Callable[[str], None],
        report: Callable[[str], None] | None,
    ) -> None:
        self._name = name
        self._has_keys = has_keys
        self._on_connected = on_connected
        self._count = count
        self._report = report
        self._said = ""
        self._silent = 0

    def on_success(self) -> None:
        """Pass on that a connection was made."""
        self._said, self._silent = "", 0
        self._on_connected()

    def on_failure(self, event: int) -> None:
        """Count a handshake that failed, and say why if that is news."""
        self._count("handshakes_failed")
        if event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
            self._silent += 1
            if self._silent < _SILENT_REFUSALS:
                return
        text = f"{self._name}: handshake failed: {self._why(event)}"
        is_new, self._said = text != self._said, text
        if is_new and self._report is not None:
            self._report(text)

    def _why(self, event: int) -> str:
        if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
            return "the broker does not accept this worker's key"
        if event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL and self._has_keys:
            return "`server` in the key file is not this broker's key"
        return "one side uses keys and the other does not, or the peer is no broker"
