"""The worker's control socket: decoded frames in, frames out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import zmq
from trunkline_protocol.codec import Direction, decode
from trunkline_protocol.curve import CurveKeys
from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.frames import ToWorkerFrame, WorkerFrame
from trunkline_protocol.limits import MAX_OPEN_CALLS_PER_WORKER, MAX_PART_BYTES

from trunkline_workers.core.fitting import fitted
from trunkline_workers.raw_socket import RawSocket
from trunkline_workers.transport import Handshakes, new_dealer

# Every call may have a START, a CREDIT, an ENDED and a DONE under way at once.
_HIGH_WATER: Final = 4 * MAX_OPEN_CALLS_PER_WORKER
_LINGER_MS: Final = 500  # BYE and the last REPLY


class ControlSocket:
    """A DEALER connected to the broker's `workers/control`.

    Nothing is queued while no broker is connected: the greeting restates what was missed.

    Args:
        context: ZeroMQ context, owned by the caller.
        endpoint: of the broker.
        on_frame: takes every frame that could be decoded.
        on_connected: told of every new connection.
        count: takes the name of a counter.
        keys: for TCP.
        report: takes what is worth saying of handshakes that failed.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        on_frame: Callable[[ToWorkerFrame], None],
        on_connected: Callable[[], None],
        count: Callable[[str], None],
        keys: CurveKeys | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._on_frame = on_frame
        self._count = count
        handshakes = Handshakes(
            "control",
            has_keys=keys is not None,
            on_connected=on_connected,
            count=count,
            report=report,
        )
        socket = new_dealer(context, keys)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_PART_BYTES)
        self._raw = RawSocket(
            asyncio.get_running_loop(),
            socket,
            self._on_parts,
            handshakes.on_success,
            on_refused=handshakes.on_failure,
        )
        self._raw.connect(endpoint)

    def send(self, frame: WorkerFrame) -> None:
        """Send a frame; one that no broker takes is counted and lost, as on a lossy link.

        A short frame stands in for one that the broker would refuse; both are counted.
        """
        parts, is_short = fitted(frame)
        if is_short:
            self._count("control_shortened")
        if parts is None or not self._raw.send(parts):
            self._count("control_unsent")

    def drain(self) -> None:
        """Deliver what has arrived, now."""
        self._raw.drain()

    def close(self) -> None:
        """Close; the last frames are flushed while the context ends."""
        self._raw.close(_LINGER_MS)

    def _on_parts(self, parts: list[bytes]) -> None:
        try:
            frame = decode(parts, Direction.BROKER_TO_WORKER)
        except RemoteProtocolError as exc:
            self._count(f"bad_control_{exc.code}")
            return
        self._on_frame(cast("ToWorkerFrame", frame))  # the direction admits no other kinds
