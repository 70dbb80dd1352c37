"""The floor of a call: the frames of one through a broker that decides nothing.

Seven frames of the sizes that ours have pass between clients, two ROUTERs and one worker: OPEN,
START and ACCEPTED, ENDED twice, DONE twice (batched as a client batches them). The broker only
looks up whose call it is. Roles: `broker` (prints when it stands, and when it knows its worker),
`worker`, and `clients` (prints what it has counted).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Final

import uvloop
import zmq
from trunkline_protocol.limits import DONE_BATCH_S

CALL_BYTES: Final = 16
_OPEN, _START, _ACCEPTED, _ENDED, _DONE = b"OPEN", b"START", b"ACCEPTED", b"ENDED", b"DONE"
_ENVELOPES: Final = {_OPEN: 110, _START: 150, _ACCEPTED: 260, _ENDED: 180, _DONE: 40}
_BODY: Final = b"b" * 100
_NOW: Final = int(zmq.DONTWAIT)
_AT_ONCE: Final = 64

Parts = list[bytes]
_context: Final[zmq.Context[zmq.Socket[bytes]]] = zmq.Context()
_context.max_sockets = 10_000


def _envelope(kind: bytes, call: bytes) -> bytes:
    return call + bytes(_ENVELOPES[kind] - CALL_BYTES)


class _Port:
    """A raw socket on the loop. A send may eat the signal of an arrival, so it is looked for."""

    def __init__(self, kind: int, take: Callable[[Parts], None]) -> None:
        self.socket: zmq.Socket[bytes] = _context.socket(kind)
        self.socket.set_hwm(0)
        self.socket.linger = 0
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._is_due = False

    def start(self) -> None:
        """Read from now on; bound or connected before."""
        self._loop.add_reader(self.socket.FD, self._drain)
        self._look()

    def send(self, *parts: bytes) -> None:
        """Send one frame."""
        self.socket.send_multipart(parts, _NOW)
        self._look()

    def _look(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._is_due = False
        try:
            for _ in range(_AT_ONCE):
                self._take(self.socket.recv_multipart(_NOW))
            self._look()
        except zmq.Again:
            pass


async def broker(where: str) -> None:
    """Pass frames on until the process is ended."""
    of_call: dict[bytes, bytes] = {}
    worker = b""

    def up(parts: Parts) -> None:
        client, kind, envelope, *_ = parts
        call = envelope[:CALL_BYTES]
        if kind == _OPEN:
            of_call[call] = client
            inner.send(worker, _START, _envelope(_START, call), parts[3])
            outer.send(client, _ACCEPTED, _envelope(_ACCEPTED, call))
        else:
            inner.send(worker, kind, envelope)

    def down(parts: Parts) -> None:
        nonlocal worker
        if not worker:
            _say("joined")
        worker, kind, envelope = parts
        if kind == _ENDED:
            outer.send(of_call.pop(envelope[:CALL_BYTES]), kind, envelope)

    outer, inner = _Port(zmq.ROUTER, up), _Port(zmq.ROUTER, down)
    for port, name in ((outer, "clients"), (inner, "worker")):
        port.socket.bind(f"ipc://{where}/{name}")
        port.start()
    _say("ready")
    await asyncio.Event().wait()


async def worker(where: str) -> None:
    """End every call that is started."""

    def take(parts: Parts) -> None:
        if parts[0] == _START:
            port.send(_ENDED, _envelope(_ENDED, parts[1][:CALL_BYTES]))

    port = _Port(zmq.DEALER, take)
    port.socket.connect(f"ipc://{where}/worker")
    port.start()
    port.send(_DONE, b"")  # so that the broker knows the way
    await asyncio.Event().wait()


class _Client:
    """One connection with so many calls at a time."""

    def __init__(self, where: str, number: int) -> None:
        self._number = number
        self._opened = self.ended = 0
        self._calls: list[bytes] = []
        self._port = _Port(zmq.DEALER, self._take)
        self._port.socket.connect(f"ipc://{where}/clients")

    def start(self, loops: int) -> None:
        """Begin so many calls."""
        self._port.start()
        for _ in range(loops):
            self._open()

    def _open(self) -> None:
        self._opened += 1
        call = self._number.to_bytes(8, "big") + self._opened.to_bytes(8, "big")
        self._port.send(_OPEN, _envelope(_OPEN, call), _BODY)

    def _take(self, parts: Parts) -> None:
        """Put another call in the place of one that has ended."""
        if parts[0] == _ENDED:
            self.ended += 1
            if not self._calls:
                asyncio.get_running_loop().call_later(DONE_BATCH_S, self._done)
            self._calls.append(parts[1][:CALL_BYTES])
            self._open()

    def _done(self) -> None:
        self._port.send(_DONE, b"".join(self._calls))
        self._calls.clear()


async def clients(where: str, count: int, loops: int, seconds: float) -> None:
    """Make calls over so many connections, once told to, and print how many have ended."""
    found = [_Client(where, number) for number in range(count)]
    _say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    start_s = time.perf_counter()
    for client in found:
        client.start(loops)
    await asyncio.sleep(seconds)
    calls = sum(client.ended for client in found)
    _say(json.dumps({"calls": calls, "seconds": time.perf_counter() - start_s}))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    role, place, *numbers = sys.argv[1:]
    if role == "clients":
        uvloop.run(clients(place, int(numbers[0]), int(numbers[1]), float(numbers[2])))
    else:
        uvloop.run({"broker": broker, "worker": worker}[role](place))
