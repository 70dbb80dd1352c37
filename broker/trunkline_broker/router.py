"""A control socket: a raw ROUTER on the loop, bytes in, events out, frames back.

It knows connections, never what a frame means. Rules it stands for:

- ZeroMQ's descriptor is edge-triggered: after every drain and every send `EVENTS` is looked at
  again, and a drain stops after a fixed number of frames so that nobody starves the loop.
- Frames to send are collected and leave when a drain is over, or in the next turn of the loop: a
  send that finds ZeroMQ's thread asleep wakes it, which costs more than the frame (measured: a
  third of the broker's CPU), and it falls asleep again while the next frame is decided on.
- A peer is a routing id that ZeroMQ gave out, on one connection. `SRCFD` names the connection of
  each frame, the monitor tells when one closes. A descriptor number is used again, but ZeroMQ
  reports the end of the old connection before it can open the new one; so the monitor is read
  before a peer is noted, and never after.
- Unreachable (`EHOSTUNREACH`): the frame is dropped and counted and the peer reported as gone.
- Not reading (`EAGAIN`): the bound of a peer is `SEND_LIMIT_FRAMES`, enough for two answers to
  every call it may hold open, so a peer at it has not read for long. Its frame is dropped and
  counted and the peer is reported as gone, which makes the broker answer `WHO` to whatever it says
  next: it greets again and restates everything, and since all frames are idempotent nothing that
  was dropped matters. A stopped client comes back that way; a stopped worker has lost its lease
  long before.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, cast

import zmq
from trunkline_protocol import limits
from trunkline_protocol.codec import Direction, decode, encode
from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.frames import Body, Frame

from trunkline_broker.open_files import Line, hang_up, no_line
from trunkline_broker.paths import PRIVATE_FILE_MODE, ipc
from trunkline_broker.queues import PeerQueue, QueueFigures
from trunkline_broker.security import (
    ACCEPTED,
    HANDSHAKE_FAILURES,
    HANDSHAKE_MS,
    USER_ID,
    TcpListen,
    handshake_fields,
)
from trunkline_broker.sockets import Context, Socket, descriptor, has_input
from trunkline_broker.users import Doorway

DRAIN_FRAMES: Final = 64  # of one turn; then the loop looks at everybody else
SEND_LIMIT_FRAMES: Final = 2 * limits.MAX_OPEN_CALLS_PER_CLIENT
RECEIVE_LIMIT_FRAMES: Final = 500  # of one peer; it waits beyond it
_KEPT_BYTES: Final = 65_536  # a part from this size on is not copied; below, a copy is cheaper
_OUTBOX_FRAMES: Final = 4 * DRAIN_FRAMES  # a drain leads to at most a few frames for each it took
_SILENT_S: Final = 5.0  # a connection that has said nothing for so long is dispensable
LINGER_MS: Final = 200  # the last frames before the end of the process
# Plain numbers: pyzmq's enumerations cost three times as much as the calls they are for (measured).
_NOW: Final = int(zmq.DONTWAIT)
_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_SOURCE: Final = int(zmq.SRCFD)
_DISCONNECTED: Final = int(zmq.EVENT_DISCONNECTED)
_NOBODY: Final = -1  # no user has this uid
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid: unix(7)
_MONITOR_EVENT: Final = struct.Struct("=Hi")

_SendPart = Callable[..., object]


class Receiver(Protocol):
    """Who takes what a router has found out."""

    def on_frame(self, peer: bytes, frame: Frame, pid: int | None, user: str | None = None) -> None:
        """Take a decoded frame.

        `pid` is the sender's if the kernel knows it; `user` is given for TCP alone: the name of the
        key, or nothing.
        """
        ...

    def on_guest_frame(self, peer: bytes, frame: Frame, pid: int | None) -> None:
        """Take a decoded frame of a local process of another user."""
        ...

    def on_rejected(
        self, peer: bytes, code: str, message: str, about: Mapping[str, Any] | None = None
    ) -> None:
        """Take note of a frame that could not be decoded."""
        ...

    def on_gone(self, peer: bytes, *, is_stuck: bool = False) -> None:
        """Take note that a peer's connection is over, or as good as over; also during `send`."""
        ...

    def on_count(self, name: str) -> None:
        """Count something."""
        ...

    def on_drained(self) -> None:
        """Take note that for now the last frame was handed over."""
        ...


@dataclass(slots=True)
class _Peer:
    fd: int
    pid: int | None
    user: str = ""  # `NAME:KEY` of a connection that was made with a key
    name: str | None = None  # of that key, maybe empty; `None`: a local connection
    is_guest: bool = False  # a local process of another user


class Router:
    """One bound ROUTER socket on the running loop."""

    def __init__(
        self,
        context: Context,
        path: Path,
        way: Direction,
        to: Receiver,
        tcp: TcpListen | None = None,
        line: Line | None = None,
        also: Sequence[Doorway] = (),
    ) -> None:
        """Bind; the socket file is private to this user.

        Args:
            context: of the socket.
            path: of the socket file.
            way: what frames may come.
            to: takes what is found out.
            tcp: where else it is bound.
            line: says which connections are too many.
            also: other users' ways to it.

        Raises:
            zmq.ZMQError: it can't be bound.
        """
        self._guard = tcp.guard if tcp is not None else None
        self._tcp = tcp
        self._line = line if line is not None else no_line()
        self._silent: dict[int, float] = {}  # connections that have said nothing, and since when
        self._list_version = -1
        self._way = way
        self._to = to
        self._peers: dict[bytes, _Peer] = {}
        self._by_fd: dict[int, set[bytes]] = {}
        self._outbox: list[tuple[bytes, list[Body]]] = []
        self._outbox_high_water = 0
        self._full_count = 0  # frames for which a peer's queue had no room
        self._loop = asyncio.get_running_loop()
        self._look: asyncio.Handle | None = None
        self._socket = _bound(context, path, also, self._line.backlog)
        self._monitor = _monitored(context, self._socket)
        try:
            self.tcp_endpoint = tcp.bind(self._socket) if tcp is not None else ""
        except zmq.ZMQError:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)
            raise
        # What the public method wraps, at half its cost; its other arguments are not used here.
        self._send_part = cast("_SendPart", super(zmq.Socket, self._socket).send)
        self._fds = (descriptor(self._socket), descriptor(self._monitor))
        self._loop.add_reader(self._fds[0], self._on_readable)
        self._loop.add_reader(self._fds[1], self._on_monitor)
        self.look_again()  # whatever came between bind and add_reader has made its edge already
        self._look_again_at_monitor = self._loop.call_soon(self._on_monitor)

    @property
    def peer_count(self) -> int:
        """Connections that have sent something."""
        return len(self._peers)

    def drain(self, most: int) -> int:
        """Take up to `most` frames that have arrived; return how many there were."""
        taken = 0
        try:
            while taken < most:
                self._take(self._socket.recv(_NOW, copy=False))
                taken += 1
        except zmq.Again:
            pass
        self._to.on_drained()
        return taken

    def send(self, peer: bytes, frame: Frame) -> None:
        """Send a frame soon; it is dropped and counted where the peer is gone or does not read."""
        self._outbox.append((peer, encode(frame)))
        if len(self._outbox) < _OUTBOX_FRAMES:
            self.look_again()
        else:
            self.flush()

    def queue(self, name: str) -> QueueFigures:
        """Return the frames that were collected; what ZeroMQ holds for a peer it does not tell."""
        return QueueFigures(name, len(self._outbox), self._outbox_high_water, _OUTBOX_FRAMES)

    def peer_queues(self, whose: str) -> list[PeerQueue]:
        """Return what ZeroMQ holds for each peer at most, and how often that was reached."""
        return [
            PeerQueue(f"frames to each {whose}", SEND_LIMIT_FRAMES, self._full_count),
            PeerQueue(f"frames from each {whose}", RECEIVE_LIMIT_FRAMES, None),
        ]

    def flush(self) -> None:
        """Send what was collected.

        A frame that this leads to, such as those about a peer that turns out to be gone, is sent in
        the next turn of the loop.
        """
        if not self._outbox:
            return
        if self._look is not None:  # this is what it was for
            self._look.cancel()
            self._look = None
        outbox, self._outbox = self._outbox, []
        if len(outbox) > self._outbox_high_water:
            self._outbox_high_water = len(outbox)
        for peer, parts in outbox:
            try:
                self._send_parts(peer, parts)
            except zmq.Again:
                self._full_count += 1
                self._to.on_count("control.peer_stuck")
                self._forget(peer, is_stuck=True)
            except zmq.ZMQError as exc:
                if exc.errno != errno.EHOSTUNREACH:
                    raise
                self._to.on_count("control.peer_unreachable")
                self._forget(peer)
        if has_input(self._socket):
            self.look_again()

    def _send_parts(self, peer: bytes, parts: list[Body]) -> None:
        """Send the parts of one frame; only the first of them can fail."""
        send = self._send_part
        send(peer, _MORE)
        for part in parts[:-1]:
            send(part, _MORE)
        last = parts[-1]
        if last.__class__ is memoryview:  # a body that `_parts` has left where it is
            send(cast("memoryview", last).obj, _NOW, copy=False)
        else:
            send(last, _NOW)

    def close(self) -> None:
        """Leave the loop and close; frames already sent have `LINGER_MS` to leave."""
        self.flush()
        for fd in self._fds:
            self._loop.remove_reader(fd)
        if self._look is not None:
            self._look.cancel()
        self._look_again_at_monitor.cancel()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(LINGER_MS)

    # --- arrivals ---------------------------------------------------------------------------

    def _on_readable(self) -> None:
        if self.drain(DRAIN_FRAMES) == DRAIN_FRAMES:
            self.look_again()

    def look_again(self) -> None:
        """Look at `EVENTS` in the next turn of the loop, as after every send and drain."""
        if self._look is None:
            self._look = self._loop.call_soon(self._on_look)

    def _on_look(self) -> None:
        self._look = None
        self.flush()
        if has_input(self._socket):
            self._on_readable()

    def _take(self, head: zmq.Frame) -> None:
        peer = head.bytes
        try:
            fd = head.get(_SOURCE)
        except zmq.ZMQError:
            # ZMTP 1.0, or bytes that pass for it: nothing would tell when this connection closes.
            self._parts(head)
            self._to.on_rejected(peer, "BAD_FRAME", "the connection does not speak ZMTP 3")
            return
        parts = self._parts(head)
        known = self._note(peer, fd, head)
        if known.name is not None and not self._admits(known.user):
            self._to.on_count("control.key_revoked")
            self._forget(peer)
            return
        try:
            frame = decode(parts, self._way)
        except RemoteProtocolError as exc:
            self._to.on_rejected(peer, exc.code, str(exc), exc.about)
        else:
            if known.is_guest:
                self._to.on_guest_frame(peer, frame, known.pid)
            elif known.name is None:
                self._to.on_frame(peer, frame, known.pid)
            else:
                self._to.on_frame(peer, frame, known.pid, known.name)

    def _parts(self, head: zmq.Frame) -> list[Body]:
        """Read the parts behind the routing id; those beyond what a frame may have are dropped.

        A large part stays in ZeroMQ's memory: what comes out is a view of it, which goes on to the
        next socket as it is.
        """
        parts: list[Body] = []
        part = head
        while part.more:
            part = self._socket.recv(_NOW, copy=False)
            if len(parts) <= limits.MAX_PARTS:
                parts.append(part.bytes if len(part) < _KEPT_BYTES else part.buffer)
        return parts

    # --- connections ------------------------------------------------------------------------

    def drop_revoked(self) -> None:
        """Forget the peers whose keys have left the allow-list, also those that say nothing."""
        if self._guard is None:
            return
        self._guard.allowed.refresh()
        if self._list_version != self._guard.allowed.version:
            self._list_version = self._guard.allowed.version
            for peer, known in list(self._peers.items()):
                if known.name is not None and not self._admits(known.user):
                    self._forget(peer)

    def _admits(self, user: str) -> bool:
        tcp = self._tcp
        return tcp is not None and (tcp.guard is None or tcp.guard.admits(tcp.kind, user))

    def _note(self, peer: bytes, fd: int, head: zmq.Frame) -> _Peer:
        known = self._peers.get(peer)
        if known is not None and known.fd == fd:
            return known
        self._read_monitor()
        is_local, pid, uid = _other_end(fd)
        known = _Peer(fd, pid, is_guest=uid not in {None, 0, os.geteuid()})
        if not is_local and self._tcp is not None:
            known.user = _user_of(head) if self._guard is not None else ""
            known.name = known.user.partition(":")[0]
        self._peers[peer] = known
        self._by_fd.setdefault(fd, set()).add(peer)
        self._silent.pop(fd, None)
        return known

    def _forget(self, peer: bytes, *, is_stuck: bool = False) -> None:
        known = self._peers.pop(peer, None)
        if known is None:
            return
        here = self._by_fd[known.fd]
        here.discard(peer)
        if not here:
            del self._by_fd[known.fd]
        self._to.on_gone(peer, is_stuck=is_stuck)

    def _on_monitor(self) -> None:
        # Until EVENTS says there is nothing: the monitor's descriptor is edge-triggered too.
        while has_input(self._monitor):
            self._read_monitor()

    def _read_monitor(self) -> None:
        while True:
            try:
                packed, _ = self._monitor.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            event, fd = _MONITOR_EVENT.unpack(packed)
            if event == ACCEPTED:
                self._on_accepted(fd)
                continue
            if event != _DISCONNECTED:
                if self._guard is not None:
                    fields = handshake_fields("control", event)
                    self._guard.tell("handshake_failed", fields | {"kind": self._kind()})
                continue
            self._silent.pop(fd, None)
            for peer in list(self._by_fd.get(fd, ())):
                self._forget(peer)

    def _on_accepted(self, fd: int) -> None:
        now_s = self._loop.time()
        if self._line.is_passed_by(fd):
            # Who greets does it at once; those that only sit there make room for those that do.
            while self._silent:
                silent, since_s = next(iter(self._silent.items()))  # the first that came
                if now_s - since_s < _SILENT_S:
                    break
                del self._silent[silent]
                self._to.on_count("control.silent_closed")
                hang_up(silent)
        else:
            self._silent.pop(fd, None)  # to the end of the order
            self._silent[fd] = now_s
        self._line.on_accepted(fd)

    def _kind(self) -> str:
        return self._tcp.kind if self._tcp is not None else ""


def _user_of(head: zmq.Frame) -> str:
    """Return the user id that ZAP gave to a connection; empty: it was made without a key."""
    try:
        value = head.get(USER_ID)
    except zmq.ZMQError:  # no such property
        return ""
    return value if isinstance(value, str) else ""


def _bound(context: Context, path: Path, also: Sequence[Doorway], backlog: int) -> Socket:
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.LINGER, LINGER_MS)
    router.setsockopt(zmq.MAXMSGSIZE, limits.MAX_PART_BYTES)
    router.setsockopt(zmq.SNDHWM, SEND_LIMIT_FRAMES)
    router.setsockopt(zmq.RCVHWM, RECEIVE_LIMIT_FRAMES)
    router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    router.setsockopt(zmq.BACKLOG, backlog)
    try:
        router.bind(ipc(path))
        path.chmod(PRIVATE_FILE_MODE)
        for doorway in also:
            doorway.bind(router)
    except (zmq.ZMQError, OSError):
        router.close(0)
        raise
    return router


def _monitored(context: Context, router: Socket) -> Socket:
    address = f"inproc://monitor-{descriptor(router)}"
    router.monitor(address, ACCEPTED | _DISCONNECTED | HANDSHAKE_FAILURES)
    monitor = context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.LINGER, 0)
    # ZeroMQ's thread blocks on a full monitor, with a lock that closing the socket needs.
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(address)
    return monitor


def _other_end(fd: int) -> tuple[bool, int | None, int | None]:
    """Tell whether a connection is local, and pid and user at its other end.

    The pid is `None` for a process in a container of its own. One that has closed is not local, and
    nobody's: whoever it was must not be taken for one of ours.
    """
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            if connection.family != socket.AF_UNIX:
                return False, None, None
            packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return False, None, _NOBODY
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return True, pid or None, uid
