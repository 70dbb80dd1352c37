"""The limit: the same frames through a bare `zmq.proxy`, three processes, nothing of ours.

Roles: `proxy` (prints nothing, ends when its standard input closes), `send`, `receive` (prints the
result). The frames are those that the real lane carries, byte for byte.
"""

from __future__ import annotations

import json
import select
import sys
import threading
import time
from typing import Final

import zmq
from trunkline_protocol import codec
from trunkline_protocol.ids import StreamKey

from bench.adapters import TEXT

CLIENT: Final = b"c" * 16
MARK: Final = b""
MARK_EVERY_S: Final = 0.01
TIMEOUT_MS: Final = 30_000


def frame_of(per_frame: int) -> bytes:
    """Return a lane frame of that many chunks."""
    return codec.encode_lane(StreamKey(b"k" * 8), 0, [(1, 0, TEXT)] * per_frame)


def proxy(directory: str) -> None:
    """Join both ends as the broker does, until standard input ends."""
    context = zmq.Context()
    outer, inner = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    for socket in (outer, inner):
        socket.set_hwm(0)
        socket.linger = 0
    inner.sndhwm = 1
    outer.bind(f"ipc://{directory}/out")
    inner.bind(f"ipc://{directory}/in")
    thread = threading.Thread(target=_proxied, args=(inner, outer), daemon=True)
    thread.start()
    sys.stdin.read()
    context.term()  # ends the proxy, whose thread closes the sockets
    thread.join()


def _proxied(inner: zmq.Socket[bytes], outer: zmq.Socket[bytes]) -> None:
    try:
        zmq.proxy(inner, outer)
    except zmq.ContextTerminated:  # how it ends
        inner.close()
        outer.close()


def send(directory: str, count: int, per_frame: int) -> None:
    """Send, once the receiver asked for it on standard input."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.sndhwm = 0
    socket.connect(f"ipc://{directory}/in")
    frame = frame_of(per_frame)
    while not select.select([sys.stdin], [], [], MARK_EVERY_S)[0]:
        socket.send_multipart((CLIENT, MARK))  # lost until the receiver's connection stands
    for _ in range(count // per_frame):
        socket.send_multipart((CLIENT, frame))
    socket.close(linger=-1)
    context.term()


def receive(directory: str, count: int, per_frame: int) -> None:
    """Receive all frames and print the rate."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.rcvhwm = 0
    socket.routing_id = CLIENT
    socket.connect(f"ipc://{directory}/out")
    socket.rcvtimeo = TIMEOUT_MS
    socket.recv()  # a mark: the way is open
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while socket.recv() == MARK:
        pass
    start_s = time.perf_counter()
    for _ in range(count // per_frame - 1):
        socket.recv()
    took_s = time.perf_counter() - start_s
    sys.stdout.write(json.dumps({"chunks_per_s": count / took_s}) + "\n")
    socket.close(linger=0)
    context.term()


if __name__ == "__main__":
    role, where, *numbers = sys.argv[1:]
    {"proxy": proxy, "send": send, "receive": receive}[role](where, *map(int, numbers))
