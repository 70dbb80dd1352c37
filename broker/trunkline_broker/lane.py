"""The chunk lane: libzmq's own proxy in a thread, from workers to clients; no Python per chunk.

The inner socket is a DEALER, not a PULL: a frame that a client sends up the lane can't leave
through a PULL, and the proxy then spins for ever (measured). Such frames go to the workers, which
discard them, and to the *sink*, an in-process DEALER on the loop, where they are counted; probe
echoes go out through it. The proxy sends with blocking calls, so it waits while every worker and
the sink are full, chunks included: the sink takes what a flood brings while the loop is busy.
Credit is the only bound of the lane, so it has no high-water marks in the direction of chunks.
The context is its own: ending it ends the proxy within a millisecond.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import zmq
from trunkline_protocol import limits
from trunkline_protocol.codec import HEADER_BYTES, encode_probed

from trunkline_broker.open_files import Line, no_line
from trunkline_broker.paths import PRIVATE_FILE_MODE, ipc
from trunkline_broker.queues import PeerQueue
from trunkline_broker.security import HANDSHAKE_MS, HandshakeWatch, TcpListen, ZapHandler
from trunkline_broker.sockets import Context, Socket, descriptor, has_input
from trunkline_broker.users import Doorway

_SINK: Final = "inproc://sink"
_STRAY_LIMIT_FRAMES: Final = 10_000  # of at most 256 bytes: a flood during 50 ms of a busy loop
_ECHO_LIMIT_FRAMES: Final = 1000
_DRAIN_FRAMES: Final = 64
_CLIENT_LIMIT_FRAMES: Final = 16  # a client has nothing to say up the lane
_END_S: Final = 2.0

Proxy = Callable[[Socket, Socket], object]


class Lane:
    """The proxy thread and the sink; lives on the running loop."""

    def __init__(
        self,
        inside: Path,
        outside: Path,
        on_stray: Callable[[int], None],
        on_end: Callable[[], None],
        proxy: Proxy = zmq.proxy,
        *,
        tcp: tuple[TcpListen | None, TcpListen | None] = (None, None),
        lines: tuple[Line, Line] | None = None,
        also: Sequence[Doorway] = (),
    ) -> None:
        """Bind both sides and start the proxy.

        Args:
            inside: socket file for the workers.
            outside: socket file for the clients.
            on_stray: told how many frames came up the lane.
            on_end: told, on the loop, if the proxy ends without `close`.
            tcp: where else workers and clients connect.
            proxy: what moves frames from one socket to the other until the context ends.
            lines: which connections of workers and of clients are too many.
            also: ways for workers of other users.

        Raises:
            zmq.ZMQError: a side can't be bound.
        """
        self._loop = asyncio.get_running_loop()
        self._on_stray = on_stray
        self._on_end = on_end
        self._look: asyncio.Handle | None = None
        self._is_closing = False
        self._context: Context = zmq.Context(io_threads=1)
        self._door: list[ZapHandler | HandshakeWatch] = []
        try:
            of_workers, of_clients = lines or (no_line(), no_line())
            sockets = (
                _inside(self._context, inside, also, of_workers.backlog),
                _outside(self._context, outside, of_clients.backlog),
            )
            self.tcp_endpoints = self._listen(sockets, tcp, (of_workers, of_clients))
        except (zmq.ZMQError, OSError):
            self._close_door()
            self._context.destroy(0)
            raise
        self._sink = _sink(self._context)
        self._fd = descriptor(self._sink)
        self._loop.add_reader(self._fd, self._on_readable)
        self._look_again()
        self._thread = threading.Thread(
            target=self._forward, args=(proxy, *sockets), name="lane", daemon=True
        )
        self._thread.start()

    def echo(self, client: bytes, nonce: int) -> bool:
        """Send the echo of a probe down the lane; `False` if it could not be sent."""
        try:
            self._sink.send_multipart([client, encode_probed(nonce)], zmq.DONTWAIT)
        except zmq.Again:
            return False  # more than a thousand echoes wait; the client probes again
        finally:
            self._look_again()
        return True

    def peer_queues(self, echoes_lost: int) -> list[PeerQueue]:
        """Return the bounds of the lane: credit for chunks, frames for what the broker says."""
        return [
            PeerQueue("chunks to each client", limits.CLIENT_BUDGET_CHUNKS, None),
            PeerQueue("echoes of probes", _ECHO_LIMIT_FRAMES, echoes_lost),
            PeerQueue("frames up the lane from each client", _CLIENT_LIMIT_FRAMES, None),
            PeerQueue("frames up the lane", _STRAY_LIMIT_FRAMES, None),
        ]

    def _listen(
        self,
        sockets: tuple[Socket, Socket],
        tcp: tuple[TcpListen | None, TcpListen | None],
        lines: tuple[Line, Line],
    ) -> tuple[str, str]:
        """Bind the TCP endpoints; this context answers for its own handshakes."""
        guard = next((each.guard for each in tcp if each is not None), None)
        if guard is not None:
            self._door.append(ZapHandler(self._context, guard))
        endpoints: list[str] = []
        for socket, listen, line in zip(sockets, tcp, lines, strict=True):
            name = f"{listen.kind} lane" if listen is not None else "lane"
            tell = guard.tell if listen is not None and guard is not None else None
            watch = HandshakeWatch(self._context, socket, name, tell, line.on_accepted)
            self._door.append(watch)
            endpoints.append(listen.bind(socket) if listen is not None else "")
        return endpoints[0], endpoints[1]

    def _close_door(self) -> None:
        for each in self._door:
            each.close()
        self._door = []

    def close(self) -> None:
        """End the proxy and close everything; frames still in it are dropped.

        Raises:
            RuntimeError: the proxy did not end within two seconds.
        """
        self._is_closing = True
        self._loop.remove_reader(self._fd)
        if self._look is not None:
            self._look.cancel()
        self._sink.close(0)
        self._close_door()
        # In a thread, since `term` can't be interrupted and waits for the proxy's sockets.
        ending = threading.Thread(target=self._context.term, name="lane-end", daemon=True)
        try:
            ending.start()
        except RuntimeError:  # no memory or no place for it: the end of this process ends the proxy
            return
        ending.join(_END_S)
        self._thread.join(_END_S)
        if ending.is_alive() or self._thread.is_alive():
            raise RuntimeError("the chunk lane did not end")

    def _forward(self, proxy: Proxy, inside: Socket, outside: Socket) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            while not _is_over(proxy, inside, outside):
                pass
        except zmq.ZMQError:
            pass  # ETERM is the wanted end; any other end is reported below just the same
        finally:
            inside.close(0)
            outside.close(0)
            if not self._is_closing:
                self._loop.call_soon_threadsafe(self._on_end)

    def _on_readable(self) -> None:
        taken = 0
        while taken < _DRAIN_FRAMES:
            try:
                self._sink.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                break
            taken += 1
        if taken:
            self._on_stray(taken)
        if taken == _DRAIN_FRAMES:
            self._look_again()

    def _look_again(self) -> None:
        if self._look is None and not self._is_closing:
            self._look = self._loop.call_soon(self._on_look)

    def _on_look(self) -> None:
        self._look = None
        if has_input(self._sink):
            self._on_readable()


def _is_over(proxy: Proxy, inside: Socket, outside: Socket) -> bool:
    """Run the proxy; `False` if it is to be run again.

    libzmq's ends with EAGAIN when a socket that it found readable has nothing to read after all,
    which bursts over TCP bring about (libzmq issue 1653). Nothing was taken from anywhere then.
    """
    try:
        proxy(inside, outside)
    except zmq.Again:
        return False
    return True


def _inside(context: Context, path: Path, also: Sequence[Doorway], backlog: int) -> Socket:
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.RCVHWM, 0)
    dealer.setsockopt(zmq.SNDHWM, 1)
    dealer.setsockopt(zmq.MAXMSGSIZE, HEADER_BYTES + limits.MAX_LANE_BODY_BYTES)
    dealer.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    dealer.setsockopt(zmq.BACKLOG, backlog)
    dealer.bind(_SINK)
    dealer.bind(ipc(path))
    path.chmod(PRIVATE_FILE_MODE)
    for doorway in also:
        doorway.bind(dealer)
    return dealer


def _outside(context: Context, path: Path, backlog: int) -> Socket:
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    router.setsockopt(zmq.ROUTER_MANDATORY, 0)  # a frame to a client that left would end the proxy
    router.setsockopt(zmq.SNDHWM, 0)
    router.setsockopt(zmq.RCVHWM, _CLIENT_LIMIT_FRAMES)
    router.setsockopt(zmq.MAXMSGSIZE, limits.MAX_LANE_UP_BYTES)
    router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    router.setsockopt(zmq.BACKLOG, backlog)
    router.bind(ipc(path))
    path.chmod(PRIVATE_FILE_MODE)
    return router


def _sink(context: Context) -> Socket:
    sink = context.socket(zmq.DEALER)
    sink.setsockopt(zmq.LINGER, 0)
    sink.setsockopt(zmq.SNDHWM, _ECHO_LIMIT_FRAMES)
    sink.setsockopt(zmq.RCVHWM, _STRAY_LIMIT_FRAMES)
    sink.connect(_SINK)
    return sink
