"""What a worker's sockets need to reach a broker on another host: keys, heartbeats, plain words.

A broken handshake is told as that, and at once; the worker goes on trying until it has been without
a broker for too long, since an allow-list can be mended meanwhile.
"""

from __future__ import annotations

from typing import Final

import zmq
from trunkline_protocol.curve import CurveKeys

_HEARTBEAT_MS: Final = 3_000
_TIMEOUT_MS: Final = 10_000
# A broker whose key is another one just closes; so may one that ends, hence not at the first time.
_SILENT_REFUSALS: Final = 3


def prepare(socket: zmq.Socket[bytes], keys: CurveKeys | None) -> None:
    """Set what connections over TCP need; those over ipc do not use keys."""
    if keys is None:
        return
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _TIMEOUT_MS)
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.get_secret_value().encode()
    socket.curve_serverkey = keys.server.encode()


class HandshakeLog:
    """Turns events of a monitor into what is worth saying, each thing once.

    Args:
        name: of the socket.
        has_keys: whether it uses keys.
    """

    def __init__(self, name: str, *, has_keys: bool) -> None:
        self._name = name
        self._has_keys = has_keys
        self._said = ""
        self._silent = 0

    def on_success(self) -> None:
        """Take note of a handshake that went well."""
        self._said, self._silent = "", 0

    def on_failure(self, event: int) -> str:
        """Return what to say of a failed one; empty: nothing new."""
        if event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
            self._silent += 1
            if self._silent < _SILENT_REFUSALS:
                return ""
        text = f"{self._name}: handshake failed: {self._why(event)}"
        is_new = text != self._said
        self._said = text
        return text if is_new else ""

    def _why(self, event: int) -> str:
        if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
            return "the broker does not accept this worker's key"
        if event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL and self._has_keys:
            return "`server` in the key file is not this broker's key"
        return "one side uses keys and the other does not, or the peer is no broker"
