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
from trunkline_workers.transport import Handshakes, new_dealer

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
        handshakes = Handshakes(
            "chunk lane",
            has_keys=keys is not None,
            on_connected=on_connected,
            count=count,
            report=report,
        )
        socket = new_dealer(context, keys)
        socket.setsockopt(zmq.SNDHWM, 0)
        # What clients wrongly send up the lane must not pile up here.
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_LANE_UP_BYTES)
        self._raw = RawSocket(
            asyncio.get_running_loop(),
            socket,
            self._on_parts,
            handshakes.on_success,
            is_checked_after_sends=False,
            on_refused=handshakes.on_failure,
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

    def _on_parts(self, parts: list[bytes]) -> None:
        del parts
        self._count("lane_discarded")
