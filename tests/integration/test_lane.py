"""The chunk lane: real sockets, the proxy in its thread."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from trunkline_broker.lane import Lane
from trunkline_protocol.codec import decode_lane_header
from trunkline_protocol.limits import MAX_LANE_UP_BYTES

from tests.support.broker import run_directory
from tests.support.loops import LOOPS, run_on
from tests.support.timing import SLOW, until_async

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("loop", sorted(LOOPS))]
Context = zmq.Context[zmq.Socket[bytes]]


@contextmanager
def a_lane(strays: list[int]) -> Iterator[tuple[Lane, Path, Path]]:
    """Yield a lane with its two socket files."""
    with run_directory() as root:
        inside, outside = root / "inside", root / "outside"
        lane = Lane(inside, outside, strays.append, lambda: pytest.fail("the proxy ended"))
        try:
            yield lane, inside, outside
        finally:
            lane.close()


@contextmanager
def peers(
    inside: Path, outside: Path
) -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes], bytes]]:
    """Yield a worker's and a client's lane socket and the client's id."""
    context: Context = zmq.Context()
    client = os.urandom(16)
    worker, reader = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
    worker.setsockopt(zmq.RCVHWM, 1)
    reader.setsockopt(zmq.ROUTING_ID, client)
    worker.connect(f"ipc://{inside}")
    reader.connect(f"ipc://{outside}")
    try:
        yield worker, reader, client
    finally:
        context.destroy(0)


def _echoed(lane: Lane, reader: zmq.Socket[bytes], client: bytes) -> bool:
    """Probe until the lane of a client that has just connected stands."""
    lane.echo(client, 7)
    return bool(reader.poll(20))


def _next(socket: zmq.Socket[bytes]) -> bytes | None:
    return socket.recv_multipart()[-1] if socket.poll(0) else None


def test_chunks_go_down_in_order_and_echoes_with_them(loop: str) -> None:
    """Also before anything was ever sent up; frames for nobody vanish and end nothing."""

    async def job() -> None:
        with (
            a_lane([]) as (lane, inside, outside),
            peers(inside, outside) as (worker, reader, client),
        ):
            assert stat.S_IMODE(inside.stat().st_mode) == 0o600
            assert stat.S_IMODE(outside.stat().st_mode) == 0o600
            await until_async(lambda: _echoed(lane, reader, client))
            assert decode_lane_header(reader.recv()).first == 7
            while reader.poll(50):
                reader.recv()
            for number in range(5000):
                worker.send_multipart([os.urandom(16), b"for nobody"])
                worker.send_multipart([client, b"%d" % number])
            for number in range(5000):
                assert reader.poll(5000 * SLOW)
                assert reader.recv() == b"%d" % number

    run_on(loop, job())


def test_frames_sent_up_are_counted_and_stop_nothing(loop: str) -> None:
    """A client that floods its lane: strays are counted, chunks still come, no thread spins."""

    async def job() -> None:
        strays: list[int] = []
        with (
            a_lane(strays) as (lane, inside, outside),
            peers(inside, outside) as (worker, reader, client),
        ):
            reader.setsockopt(zmq.SNDTIMEO, int(5000 * SLOW))
            await until_async(lambda: _echoed(lane, reader, client))
            sent = 0
            while sent < 3000:
                try:
                    reader.send(b"up" * (sent % 100), zmq.DONTWAIT)
                    sent += 1
                except zmq.Again:
                    await asyncio.sleep(0.001)
                while worker.poll(0):  # a worker discards what comes up
                    worker.recv_multipart()
            await until_async(lambda: sum(strays) > 100)
            worker.send_multipart([client, b"a chunk"])
            await until_async(lambda: _next(reader) == b"a chunk")
            await until_async(lambda: _next(worker) is None)
            before_s, began_s = time.process_time(), time.monotonic()
            await asyncio.sleep(1)
            used = (time.process_time() - before_s) / (time.monotonic() - began_s)
            assert used < 0.1 * SLOW

    run_on(loop, job())


def test_a_frame_larger_than_anything_said_up_closes_that_connection_only(loop: str) -> None:
    """The client's socket reconnects and reads on."""

    async def job() -> None:
        with a_lane([]) as (lane, inside, outside), peers(inside, outside) as (_, reader, client):
            await until_async(lambda: _echoed(lane, reader, client))
            reader.send(b"x" * (MAX_LANE_UP_BYTES + 1))
            while reader.poll(50):
                reader.recv()
            await until_async(lambda: _echoed(lane, reader, client))

    run_on(loop, job())


def test_close_ends_the_proxy_quickly_whatever_is_in_it(loop: str) -> None:
    """Nobody reads: what is in the lane is dropped."""

    async def job() -> None:
        strays: list[int] = []
        with (
            a_lane(strays) as (lane, inside, outside),
            peers(inside, outside) as (worker, reader, client),
        ):
            await until_async(lambda: _echoed(lane, reader, client))
            for _ in range(2000):
                worker.send_multipart([client, b"x" * 1000])
            began_s = time.monotonic()
            lane.close()
            assert time.monotonic() - began_s < 1 * SLOW

    run_on(loop, job())


def test_a_proxy_that_ends_is_reported(loop: str) -> None:
    """Whatever made it end."""

    async def job() -> None:
        with run_directory() as root:
            ended = asyncio.Event()
            lane = Lane(root / "a", root / "b", lambda _: None, ended.set, lambda *_: None)
            await asyncio.wait_for(ended.wait(), 5 * SLOW)
            lane.close()

    run_on(loop, job())


def test_closing_is_no_end_to_report(loop: str) -> None:
    """`a_lane` fails the test if the end were reported."""

    async def job() -> None:
        with a_lane([]):
            pass
        await asyncio.sleep(0)

    run_on(loop, job())


def test_a_proxy_that_found_nothing_to_read_is_run_again(loop: str) -> None:
    """libzmq's ends with EAGAIN then; a broker that ended with it would take every client along."""

    async def job() -> None:
        tries: list[int] = []

        def proxy(*sockets: zmq.Socket[bytes]) -> None:
            tries.append(len(tries))
            if len(tries) < 3:
                raise zmq.Again
            zmq.proxy(*sockets)

        def fail() -> None:
            pytest.fail("the proxy ended")

        with run_directory() as root:
            inside, outside = root / "inside", root / "outside"
            lane = Lane(inside, outside, lambda _: None, fail, proxy)
            try:
                with peers(inside, outside) as (_, reader, client):
                    await until_async(lambda: _echoed(lane, reader, client))
            finally:
                lane.close()
        assert tries == [0, 1, 2]

    run_on(loop, job())
