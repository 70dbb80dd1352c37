"""The worker's chunk lane: encoded frames out; whatever comes in is discarded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import zmq
from trunkline_protocol.curve import CurveKeys
from trunkline_protocol.ids import ClientId
from trunkline_protocol.limits import MAX_LANE_UP_BYTES

from trunkline_workers.raw_socket import RawSocket
from trunkline_workers.transport import HandshakeLog, prepare

_RECONNECT_MS: Final = 20
_RECONNECT_MAX_MS: Final = 500
_LINGER_MS: Final = 500  # the last chunks of calls that ended as the process did


class LaneSocket:
    """A DEALER connected to the broker's `workers/lane`, without a high-water mark: credit bounds.

    Args:
        context: ZeroMQ context, owned by the caller.
        on_connected: told of every new connection, the first one included.
        count: takes the name of a counter.
        keys: for TCP.
        report: takes what is worth saying of handshakes that failed.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        on_connected: Callable[[], None],
        count: Callable[[str], None],
        keys: CurveKeys | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._endpoint = ""
        self._count = count
        self._report = report
        self._on_link = on_connected
        self._handshakes = HandshakeLog("chunk lane", has_keys=keys is not None)
        socket = context.socket(zmq.DEALER)
        prepare(socket, keys)
        socket.setsockopt(zmq.SNDHWM, 0)
        # What clients wrongly send up the lane must not pile up here.
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_LANE_UP_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        self._raw = RawSocket(
            asyncio.get_running_loop(),
            socket,
            self._on_parts,
            self._on_connected,
            is_checked_after_sends=False,
            on_refused=self._on_refused,
        )

    def connect(self, endpoint: str) -> None:
        """Connect to the lane a broker named; the same endpoint again changes nothing."""
        if endpoint == self._endpoint:
            return
        if self._endpoint:
            self._raw.disconnect(self._endpoint)
        self._endpoint = endpoint
        self._raw.connect(endpoint)

    def send(self, client: ClientId, frame: bytes) -> None:
        """Send a frame to a client; one that cannot leave is counted, and resumed by position."""
        if not self._raw.send((client, frame)):
            self._count("lane_unsent")

    def drain(self) -> None:
        """Discard what has come in; due now and then, as sends hide it."""
        self._raw.drain()

    def close(self) -> None:
        """Close; the last frames are flushed while the context ends."""
        self._raw.close(_LINGER_MS)

    def _on_connected(self) -> None:
        self._handshakes.on_success()
        self._on_link()

    def _on_refused(self, event: int) -> None:
        self._count("handshakes_failed")
        text = self._handshakes.on_failure(event)
        if text and self._report is not None:
            self._report(text)

    def _on_parts(self, parts: list[bytes]) -> None:
        del parts
        self._count("lane_discarded")
