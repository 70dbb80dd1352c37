"""A raw ZeroMQ socket read and written on an asyncio loop, with its connection watched.

`zmq.asyncio` costs more than the work it carries. ZeroMQ's descriptor is edge-triggered: it
signals that something changed, not that something is there, and every call on the socket may eat
the signal. So after each drain, and once per loop turn after sends, `EVENTS` is asked again.

Costs (pyzmq 27.3): a part sent through the binding's own method with plain integers 0.2 us, through
the public wrapper 0.4, with flags combined per call 0.9; asking `EVENTS` 1.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

import zmq
from trunkline_protocol.frames import Body
from zmq.utils.monitor import parse_monitor_message

_BATCH: Final = 256  # frames taken per turn, so that a flood does not starve the adapters
_CONNECTED: Final = int(zmq.Event.HANDSHAKE_SUCCEEDED)
_REFUSED: Final = int(
    zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)

_SendPart = Callable[[Body, int], object]
FrameHandler = Callable[[list[bytes]], None]


class RawSocket:
    """Owns a connected socket and its monitor; `close` releases both.

    Args:
        loop: on which frames are delivered.
        socket: with its options set, not connected yet; owned from here on.
        on_frame: takes the parts of each frame; must not raise.
        on_connected: told of every finished handshake, the first one included.
        is_checked_after_sends: look for frames after sends; without it, what a send has hidden is
            found by the next `drain`, which is enough where nothing of use arrives.
        on_refused: told of every handshake that failed, with ZeroMQ's event.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: zmq.Socket[bytes],
        on_frame: FrameHandler,
        on_connected: Callable[[], None],
        *,
        is_checked_after_sends: bool = True,
        on_refused: Callable[[int], None] | None = None,
    ) -> None:
        self._loop = loop
        self._socket = socket
        self._on_frame = on_frame
        self._on_connected = on_connected
        self._on_refused = on_refused
        self._is_checking = not is_checked_after_sends
        self._is_checked = is_checked_after_sends
        self._is_closed = False
        # What the public method wraps; its other arguments are never used here.
        self._send_part = cast("_SendPart", super(zmq.Socket, socket).send)
        self._monitor = socket.get_monitor_socket(_CONNECTED | _REFUSED)
        loop.add_reader(socket.FD, self._drain)
        loop.add_reader(self._monitor.FD, self._drain_monitor)

    def connect(self, endpoint: str) -> None:
        """Connect; ZeroMQ connects again by itself from then on.

        Raises:
            zmq.ZMQError: the endpoint is no endpoint.
        """
        self._socket.connect(endpoint)
        # What comes before the first look makes no edge, and the connection is there in no time.
        self._loop.call_soon(self.drain)

    def disconnect(self, endpoint: str) -> None:
        """Leave an endpoint that was connected."""
        self._socket.disconnect(endpoint)

    def send(self, parts: Sequence[Body]) -> bool:
        """Send one frame without waiting.

        Returns:
            `False`, with nothing sent, if no connection takes it.
        """
        send = self._send_part
        try:
            for part in parts[:-1]:
                send(part, _MORE)
            send(parts[-1], _NOBLOCK)
        except zmq.Again:
            return False
        if not self._is_checking:
            self._is_checking = True
            self._loop.call_soon(self._drain)
        return True

    def drain(self) -> None:
        """Deliver what has arrived, now; for a tick that must not overtake it."""
        self._drain()
        self._drain_monitor()

    def close(self, linger_ms: int) -> None:
        """Close the socket; what is not sent yet is sent for at most `linger_ms` by the context."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._socket.FD)
        self._loop.remove_reader(self._monitor.FD)
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)

    def _drain(self) -> None:
        self._is_checking = not self._is_checked
        for _ in range(_BATCH):
            if self._is_closed or not _is_readable(self._socket):
                return
            self._on_frame(self._socket.recv_multipart(_NOBLOCK))
        self._is_checking = True
        self._loop.call_soon(self._drain)

    def _drain_monitor(self) -> None:
        while not self._is_closed and _is_readable(self._monitor):
            event = parse_monitor_message(self._monitor.recv_multipart(_NOBLOCK))
            if event["event"] == _CONNECTED:
                self._on_connected()
            elif self._on_refused is not None:
                self._on_refused(event["event"])


def _is_readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(cast("int", socket.getsockopt(_EVENTS)) & _POLLIN)
