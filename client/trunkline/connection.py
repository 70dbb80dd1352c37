"""Two DEALER sockets and a monitor on the running event loop; bytes in, bytes out.

Raw sockets with `add_reader` on ZeroMQ's descriptor, never `zmq.asyncio`: that costs a future and a
task switch per frame (measured: 80 µs against a few). The descriptor is edge-triggered, so whatever
may have swallowed its signal (a drain that was cut short, a send) looks at `EVENTS` afterwards.
Nothing here knows what a frame means.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

import zmq
from trunkline_protocol.codec import HEADER_BYTES
from trunkline_protocol.curve import CurveKeys, lane_address
from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.frames import Body
from trunkline_protocol.limits import MAX_LANE_BODY_BYTES, MAX_PART_BYTES
from trunkline_protocol.record import record

_DRAIN_AT_ONCE: Final = 64  # frames per wake, then other tasks of the loop get their turn
_RECONNECT_MS: Final = 50
_RECONNECT_MAX_MS: Final = 500
_CLOSE_LINGER_MS: Final = 200  # CANCEL and BYE still go out; a dead broker holds nobody up
_MAX_SOCKETS: Final = 16_384
_CONTEXT_FILES: Final = 12  # of two threads and the first sockets: 7 were counted
# A peer on another host may vanish without a word; on ipc the kernel tells.
_TCP_HEARTBEAT_MS: Final = 3_000
_TCP_TIMEOUT_MS: Final = 10_000

# Plain integers: an enum's `&` and its lookup by attribute cost more than the call itself.
_NOW: Final = int(zmq.NOBLOCK)
_READY: Final = int(zmq.EVENTS)
_IN: Final = int(zmq.POLLIN)

# `zmq.utils.monitor` would do it, and would load zmq.asyncio for that.
_MONITOR_EVENT: Final = struct.Struct("=Hi")  # zmq_socket_monitor(3): event, value
_EVENTS: Final = (
    zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.DISCONNECTED
)
# A broker that does not know the key that a client takes for the broker's just closes; so may one
# that ends at that moment, hence not at the first time.
_SILENT_REFUSALS: Final = 3


@dataclass(slots=True)
class _Shared:
    """The context of this process; sockets of many clients share its one I/O thread."""

    context: zmq.Context[zmq.Socket[bytes]] | None = None
    pid: int = 0


_shared: Final = _Shared()


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return the context; a forked child gets its own, since threads do not survive a fork."""
    if _shared.context is None or _shared.pid != os.getpid():
        _check_descriptors()
        _shared.context = zmq.Context()
        _shared.context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        _shared.pid = os.getpid()
    return _shared.context


def _check_descriptors() -> None:
    """Make sure that the context's threads find what they need: without it libzmq aborts.

    Raises:
        OSError: too few descriptors are free.
    """
    taken: list[int] = []
    try:
        taken.extend(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_CONTEXT_FILES))
    finally:
        for descriptor in taken:
            os.close(descriptor)


@record
class Receivers:
    """Who gets what arrives; all are called on the loop.

    Attributes:
        control: the parts of one control frame.
        lane: one lane frame.
        connected: whether the control connection is there.
        rejected: why a connection was refused before any frame passed.
        drained: everything that was there has been handed over.
    """

    control: Callable[[list[bytes]], None]
    lane: Callable[[bytes], None]
    connected: Callable[[bool], None]
    rejected: Callable[[str], None]
    drained: Callable[[], None]


class Connection:
    """The sockets of one client; used on one event loop only."""

    def __init__(
        self,
        endpoint: str,
        client_id: bytes,
        receivers: Receivers,
        keys: CurveKeys | None = None,
    ) -> None:
        """Connect to `control`; must be called with the loop running; keys are for TCP.

        Raises:
            LocalProtocolError: ZeroMQ can't make anything of the endpoint; nothing is left open.
            OSError: no descriptor is free; likewise.
        """
        self._loop = asyncio.get_running_loop()
        self._client_id = client_id
        self._on = receivers
        self._endpoint = endpoint
        self._keys = keys
        self._silent_refusals = 0
        self._is_proven = False  # one handshake went well: it is no matter of keys
        self._lane: zmq.Socket[bytes] | None = None
        self._lane_is_due = self._control_is_due = False
        self._is_closed = False
        self._control = self._socket(endpoint, MAX_PART_BYTES)
        try:
            self._monitor = self._control.get_monitor_socket(_EVENTS)
        except zmq.ZMQError as exc:
            self._control.close(0)
            raise OSError(exc.errno, exc.strerror) from exc
        self._loop.add_reader(self._monitor.FD, self._read_monitor)
        self._loop.add_reader(self._control.FD, self.drain_control)
        try:
            self._control.connect(endpoint)
        except zmq.ZMQError as exc:
            self.close()
            raise LocalProtocolError(f"endpoint {endpoint!r}: {exc.strerror}") from exc
        # Connecting may swallow the first signal, as sending may: look once without one.
        self._loop.call_soon(self._read_monitor)
        self._call_control_soon()

    def _socket(self, endpoint: str, max_part_bytes: int) -> zmq.Socket[bytes]:
        try:
            socket = _context().socket(zmq.DEALER)
        except zmq.ZMQError as exc:
            raise OSError(exc.errno, exc.strerror) from exc
        socket.linger = 0
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        socket.setsockopt(zmq.MAXMSGSIZE, max_part_bytes)
        if endpoint.startswith("tcp://"):
            socket.setsockopt(zmq.HEARTBEAT_IVL, _TCP_HEARTBEAT_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _TCP_TIMEOUT_MS)
            if self._keys is not None:
                socket.curve_publickey = self._keys.public.encode()
                socket.curve_secretkey = self._keys.secret.get_secret_value().encode()
                socket.curve_serverkey = self._keys.server.encode()
        return socket

    # --- out -----------------------------------------------------------------------------------

    def send(self, parts: Sequence[Body]) -> bool:
        """Send a control frame; `False` if the peer takes no more just now or all is closed."""
        if self._is_closed:
            return False
        try:
            self._control.send_multipart(parts, _NOW)
        except zmq.Again:  # a stopped broker; what matters is said again later
            return False
        if cast("int", self._control.get(_READY)) & _IN:
            self._call_control_soon()
        return True

    def open_lane(self, endpoint: str) -> bool:
        """Make the lane socket, or a new one in place of the old, under the same routing id.

        Returns:
            `False` if there is none now: no descriptor is free, or ZeroMQ can't make anything of
            the endpoint. No echo comes then, and the core asks again.
        """
        if self._is_closed:
            return False
        self._close_lane()
        endpoint = lane_address(endpoint, self._endpoint)
        try:
            lane = self._socket(endpoint, MAX_LANE_BODY_BYTES + HEADER_BYTES)
        except OSError:
            return False
        try:
            lane.setsockopt(zmq.IDENTITY, self._client_id)
            lane.setsockopt(zmq.RCVHWM, 0)  # credit is the bound
            lane.connect(endpoint)
        except zmq.ZMQError:
            lane.close(0)
            return False
        self._lane = lane
        self._loop.add_reader(lane.FD, self.drain_lane)
        self._call_lane_soon()  # as for control
        return True

    def _close_lane(self) -> None:
        if self._lane is not None:
            self._loop.remove_reader(self._lane.FD)
            self._lane.close(0)
            self._lane = None

    def close(self) -> None:
        """Close the sockets; what was sent last still goes out in the background."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._monitor.FD)
        self._loop.remove_reader(self._control.FD)
        self._close_lane()
        self._control.disable_monitor()
        self._monitor.close(0)
        self._control.close(_CLOSE_LINGER_MS)

    # --- in ------------------------------------------------------------------------------------

    def drain_lane(self) -> None:
        """Hand over what the lane holds, up to a bound, and come back for the rest.

        A frame may lead to another lane in place of this one, or to none.
        """
        self._lane_is_due = False
        lane = self._lane
        if lane is None:
            return
        take, receive = self._on.lane, lane.recv
        try:
            take(receive(_NOW))
            # A paced stream brings one frame per wake; asking is cheaper than being refused.
            if self._lane is lane and cast("int", lane.get(_READY)) & _IN:
                for _ in range(_DRAIN_AT_ONCE):
                    take(receive(_NOW))
                    if self._lane is not lane:
                        break
                self._call_lane_soon()
        except zmq.Again:  # empty
            pass
        except BaseException:
            self._call_lane_soon()  # an observer's: the edge was taken, the rest has no other
            raise
        self._on.drained()

    def drain_control(self) -> None:
        """Hand over what control holds, up to a bound, and come back for the rest."""
        self._control_is_due = False
        if self._is_closed:
            return
        try:
            for _ in range(_DRAIN_AT_ONCE):
                self._on.control(self._control.recv_multipart(_NOW))
                if self._is_closed:
                    return
            self._call_control_soon()
        except zmq.Again:  # empty
            pass
        except BaseException:
            self._call_control_soon()  # as for the lane
            raise
        self._on.drained()

    def _call_lane_soon(self) -> None:
        if not self._lane_is_due:
            self._lane_is_due = True
            self._loop.call_soon(self.drain_lane)

    def _call_control_soon(self) -> None:
        if not self._control_is_due:
            self._control_is_due = True
            self._loop.call_soon(self.drain_control)

    def _read_monitor(self) -> None:
        while not self._is_closed:
            try:
                parts = self._monitor.recv_multipart(_NOW)
            except zmq.Again:  # empty
                break
            event, _ = _MONITOR_EVENT.unpack(parts[0])
            self._on_monitored(event)
        self._on.drained()

    def _on_monitored(self, event: int) -> None:
        if event == zmq.Event.HANDSHAKE_SUCCEEDED:
            self._is_proven = True
            self._on.connected(True)
        elif event == zmq.Event.DISCONNECTED:
            self._on.connected(False)
        elif event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL:
            self._silent_refusals += 1
            if self._silent_refusals == _SILENT_REFUSALS and not self._is_proven:
                self._on.rejected(f"handshake failed with {self._endpoint}: {self._silence()}")
        else:
            self._on.rejected(f"handshake failed with {self._endpoint}: {self._text(event)}")

    def _silence(self) -> str:
        if self._keys is None:
            return "it closes the connection; it may expect a key (TRUNKLINE_KEYS)"
        return "it closes the connection; `server` in the key file is not this broker's key"

    def _text(self, event: int) -> str:
        if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
            return "the broker does not accept this client's key"
        if self._keys is None:
            return "it expects a key (TRUNKLINE_KEYS), or is no broker"
        return "it uses no keys, or is no broker"
