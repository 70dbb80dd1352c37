"""The broker's side of one worker, played by the test: real sockets, every frame by hand."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import zmq
import zmq.asyncio
from trunkline_protocol.chunks import Finish, StreamChunk, chunks_from_arrays
from trunkline_protocol.codec import (
    Direction,
    decode,
    decode_lane_arrays,
    decode_lane_header,
    encode,
    pack_body,
)
from trunkline_protocol.elision import BlockFiller
from trunkline_protocol.frames import (
    Committed,
    Credit,
    Register,
    Registered,
    Registrations,
    Role,
    Start,
    ToWorkerFrame,
)
from trunkline_protocol.ids import (
    CallId,
    ClientId,
    Epoch,
    Generation,
    RouteName,
    StreamKey,
)
from trunkline_protocol.limits import MIN_FRAME_COST_BYTES

from tests.support.timing import SLOW

F = TypeVar("F")
CLIENT: Final = ClientId(b"c" * 16)
WAIT_S: Final = 30 * SLOW


@dataclass(slots=True)
class Received:
    """What came down the lane for one stream."""

    chunks: list[StreamChunk] = field(default_factory=list[StreamChunk])
    frames: int = 0
    cost_bytes: int = 0
    filler: BlockFiller = field(default_factory=BlockFiller)

    @property
    def finish(self) -> Finish | None:
        """The finish, once it is there."""
        last = self.chunks[-1] if self.chunks else None
        return last if isinstance(last, Finish) else None


class FakeBroker:
    """Binds both worker sockets in a directory and greets whoever comes."""

    def __init__(self, run_dir: Path) -> None:
        self.control_endpoint = f"ipc://{run_dir}/wc"
        self.lane_endpoint = f"ipc://{run_dir}/wl"
        self._context = zmq.asyncio.Context()
        self.epoch = Epoch(1)
        self.frames: list[Any] = []
        self.peer = b""
        self.streams: dict[bytes, Received] = {}
        self.unknown: list[Any] = []
        self.bind()

    def bind(self) -> None:
        """Bind both sockets."""
        self._control = self._context.socket(zmq.ROUTER)
        self._control.bind(self.control_endpoint)
        self._lane = self._context.socket(zmq.DEALER)
        self._lane.setsockopt(zmq.RCVHWM, 0)
        self._lane.bind(self.lane_endpoint)

    def unbind(self) -> None:
        """Close both sockets, as a broker that dies does."""
        self._control.close(0)
        self._lane.close(0)

    def close(self) -> None:
        """Release everything."""
        self.unbind()
        self._context.term()

    async def send(self, frame: ToWorkerFrame) -> None:
        """Send a control frame to the worker that spoke last."""
        await self._control.send_multipart([self.peer, *encode(frame)])

    async def send_parts(self, *parts: bytes) -> None:
        """Send any bytes to the worker."""
        await self._control.send_multipart([self.peer, *parts])

    async def receive(self, kind: type[F]) -> F:
        """Return the next frame of a kind; others are kept in `frames`."""
        return await self.receive_any((kind,))

    async def receive_any(self, kinds: tuple[type[F], ...]) -> F:
        """Return the next frame of one of several kinds; others are kept in `frames`."""
        async with asyncio.timeout(WAIT_S):
            while True:
                parts = await self._control.recv_multipart()
                self.peer = parts[0]
                frame = decode(parts[1:], Direction.WORKER_TO_BROKER)
                self.frames.append(frame)
                if isinstance(frame, kinds):
                    return frame

    async def greet(self, generation: Generation | None = None) -> tuple[Register, Registrations]:
        """Take a worker from its first word to serving."""
        register = await self.receive(Register)
        born = generation or register.generation
        await self.send(Registered(self.epoch, self.lane_endpoint, born))
        registrations = await self.receive(Registrations)
        await self.send(Committed(registrations.request))
        await self.send(Role("serving"))
        return register, registrations

    async def lane_frame(self) -> Received:
        """Take one lane frame and return the stream it belongs to."""
        async with asyncio.timeout(WAIT_S):
            _, frame = await self._lane.recv_multipart()
        header = decode_lane_header(frame)
        stream = self.streams.setdefault(header.stream_key, Received())
        if header.first > len(stream.chunks):
            raise AssertionError("a gap on a lane that loses nothing")
        new = decode_lane_arrays(frame, header.count)[len(stream.chunks) - header.first :]
        stream.chunks += [stream.filler.fill(chunk) for chunk in chunks_from_arrays(new)]
        if new:
            stream.frames += 1
            stream.cost_bytes += max(MIN_FRAME_COST_BYTES, len(frame))
        return stream

    async def whole_stream(self, start: Start) -> Received:
        """Read a stream to its finish, giving credit for every frame."""
        stream = self.streams.setdefault(start.stream_key, Received())
        while stream.finish is None:
            await self.lane_frame()
            await self.send(credit_for(start, stream))
        return stream


def credit_for(start: Start, stream: Received) -> Credit:
    """Return the credit of a reader that has consumed everything it has received."""
    count = len(stream.chunks)
    return Credit(start.call, start.attempt, count, count, stream.cost_bytes)


_numbers = iter(range(1, 1_000_000))


def a_start(
    script: Mapping[str, Any] | None = None,
    *,
    window_chunks: int = 1024,
    window_bytes: int = 1024 * 1024,
    provider: str = "scripted",
    model: str = "scripted",
    **fields: Any,
) -> Start:
    """Return a `START` whose request carries a script."""
    number = next(_numbers).to_bytes(16, "big")
    text = "hello" if script is None else json.dumps({"script": script})
    message = {
        "id": "m1",
        "role": "user",
        "content": [{"type": "text", "text": text}],
        "source": {"kind": "user"},
    }
    body = pack_body({"provider": provider, "model": model, "messages": [message]})
    start = Start(
        CallId(number),
        0,
        CLIENT,
        StreamKey(number[8:]),
        RouteName(provider),
        model,
        window_chunks,
        window_bytes,
        body=body,
    )
    return replace(start, **fields)


def spawn_worker(broker: FakeBroker, log: Path, **document: Any) -> subprocess.Popen[bytes]:
    """Start a real worker process as a broker does: boot document on an inherited descriptor."""
    reader, writer = os.pipe()
    boot = {
        "control": broker.control_endpoint,
        "pool": "scripted",
        "slot": 0,
        "generation": [1, 1],
        "token": "00" * 16,
        "adapter": "scripted",
        "providers": [],
        "options": {},
        "standby": False,
        "orphanTimeoutMs": 30_000,
        **document,
    }
    try:
        with log.open("wb") as output:
            child = subprocess.Popen(  # noqa: S603  our own interpreter and module
                [sys.executable, "-m", "trunkline_workers", "--boot-fd", str(reader)],
                pass_fds=(reader,),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
    finally:
        os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(json.dumps(boot).encode())
    return child
