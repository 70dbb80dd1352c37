"""The limit: the same frames through a bare `zmq.proxy`, three processes, nothing of ours.

Roles: `proxy` (prints nothing, ends when its standard input closes), `send`, `receive` (prints the
result) and `decode`, which also makes checked chunks of every frame. The frames are those that the
real lane carries, byte for byte. With a pace they carry the time at which they were sent instead,
and the result is how late each of them came. Any proxy will do, so the same two ends also measure
a broker's.
"""

from __future__ import annotations

import json
import select
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import zmq
from trunkline_protocol import codec
from trunkline_protocol.chunks import chunks_from_arrays
from trunkline_protocol.ids import StreamKey

from bench.adapters import TEXT

CLIENT: Final = b"c" * 16
MARK: Final = b""
MARK_EVERY_S: Final = 0.01
TIMEOUT_MS: Final = 30_000
_TIME: Final = struct.Struct("d")


def frame_of(per_frame: int) -> bytes:
    """Return a lane frame of that many chunks."""
    return codec.encode_lane(StreamKey(b"k" * 8), 0, [(1, 0, TEXT)] * per_frame)


def inner_of(directory: str) -> str:
    """Return where frames go in."""
    return f"ipc://{directory}/in"


def outer_of(directory: str) -> str:
    """Return where frames come out."""
    return f"ipc://{directory}/out"


def proxy(directory: str) -> None:
    """Join both ends as the broker does, until standard input ends."""
    context = zmq.Context()
    outer, inner = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    for socket in (outer, inner):
        socket.set_hwm(0)
        socket.linger = 0
    inner.sndhwm = 1
    outer.bind(outer_of(directory))
    inner.bind(inner_of(directory))
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


def send(endpoint: str, count: int, per_frame: int, pace_ms: int = 0) -> None:
    """Send, once the receiver asked for it on standard input.

    With a pace, `per_frame` frames of the time leave every so many milliseconds instead.
    """
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.sndhwm = 0
    socket.connect(endpoint)
    frame = frame_of(per_frame)
    while not select.select([sys.stdin], [], [], MARK_EVERY_S)[0]:
        socket.send_multipart((CLIENT, MARK))  # lost until the receiver's connection stands
    for _ in range(count // per_frame):
        if pace_ms:
            for _ in range(per_frame):
                socket.send_multipart((CLIENT, _TIME.pack(time.monotonic())))
            time.sleep(pace_ms / 1000)
        else:
            socket.send_multipart((CLIENT, frame))
    socket.close(linger=-1)
    context.term()


def decode(endpoint: str, count: int, per_frame: int) -> None:
    """Receive all frames, make chunks of them and print the rate."""
    receive(
        endpoint,
        count,
        per_frame,
        take=lambda frame: chunks_from_arrays(codec.decode_lane_arrays(frame, per_frame)),
    )


def receive(
    endpoint: str,
    count: int,
    per_frame: int,
    pace_ms: int = 0,
    take: Callable[[bytes], object] | None = None,
) -> None:
    """Receive all frames and print the rate, or how late they came."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.rcvhwm = 0
    socket.routing_id = CLIENT
    socket.connect(endpoint)
    socket.rcvtimeo = TIMEOUT_MS
    socket.recv()  # a mark: the way is open
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while (frame := socket.recv()) == MARK:
        pass
    late_ms: list[float] = []
    start_s = time.perf_counter()
    for _ in range(count - 1 if pace_ms else count // per_frame - 1):
        if pace_ms:
            late_ms.append((time.monotonic() - _TIME.unpack(frame)[0]) * 1000)
        if take is not None:
            take(frame)
        frame = socket.recv()
    took_s = time.perf_counter() - start_s
    result = {"chunks_per_s": count / took_s, "late_ms": late_ms}
    sys.stdout.write(json.dumps(result) + "\n")
    socket.close(linger=0)
    context.term()


if __name__ == "__main__":
    role, where, *numbers = sys.argv[1:]
    roles: dict[str, Any] = {"proxy": proxy, "send": send, "receive": receive, "decode": decode}
    roles[role](where, *map(int, numbers))
