"""The control socket on a real loop: nothing is missed, nobody is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import stat
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from trunkline_broker.router import DRAIN_FRAMES, SEND_LIMIT_FRAMES, Router
from trunkline_protocol import frames
from trunkline_protocol.codec import Direction, encode
from trunkline_protocol.ids import CallId, Epoch, RouteName, StreamKey

from tests.support.broker import run_directory
from tests.support.loops import LOOPS, run_on
from tests.support.processes import open_files
from tests.support.timing import until, until_async

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("loop", sorted(LOOPS))]


class Taken:
    """A receiver that remembers."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, frames.Frame, int | None]] = []
        self.guests: list[tuple[bytes, frames.Frame, int | None]] = []
        self.rejected: Counter[str] = Counter()
        self.gone: list[bytes] = []
        self.stuck: set[bytes] = set()
        self.counts: Counter[str] = Counter()

    def on_frame(self, peer: bytes, frame: frames.Frame, pid: int | None) -> None:
        self.frames.append((peer, frame, pid))

    def on_guest_frame(self, peer: bytes, frame: frames.Frame, pid: int | None) -> None:
        self.guests.append((peer, frame, pid))

    def on_rejected(
        self, peer: bytes, code: str, message: str, about: Mapping[str, Any] | None = None
    ) -> None:
        assert peer
        assert message
        self.rejected[code] += 1

    def on_gone(self, peer: bytes, *, is_stuck: bool = False) -> None:
        self.gone.append(peer)
        if is_stuck:
            self.stuck.add(peer)

    def on_count(self, name: str) -> None:
        self.counts[name] += 1

    def on_drained(self) -> None:
        pass


@contextmanager
def a_router() -> Iterator[tuple[Router, Taken, Path]]:
    """Yield a bound router on the running loop."""
    with run_directory() as root:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        taken = Taken()
        router = Router(context, root / "control", Direction.CLIENT_TO_BROKER, taken)
        try:
            yield router, taken, root / "control"
        finally:
            router.close()
            context.term()


@contextmanager
def a_dealer(path: Path, receive_limit: int = 1000) -> Iterator[zmq.Socket[bytes]]:
    """Yield a connected DEALER with a context of its own."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 1000)
    dealer.setsockopt(zmq.RCVHWM, receive_limit)
    dealer.connect(f"ipc://{path}")
    try:
        yield dealer
    finally:
        dealer.close()
        context.term()


def test_who_has_closed_before_anybody_looked_is_none_of_ours(loop: str) -> None:
    """Another user could say something, hang up, and be taken for the broker's own."""

    async def job() -> None:
        with a_router() as (_, taken, path):
            files = open_files(os.getpid())
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            peer = context.socket(zmq.DEALER)
            peer.connect(f"ipc://{path}")
            peer.send_multipart(encode(frames.Bye()))
            peer.close(5000)
            context.term()  # nothing of this is awaited, so the router can't have looked
            until(lambda: open_files(os.getpid()) <= files)
            await until_async(lambda: taken.guests)
            assert [frame for _, frame, _ in taken.guests] == [frames.Bye()]
            assert taken.frames == []

    run_on(loop, job())


def test_every_frame_of_a_burst_arrives_with_the_pid(loop: str) -> None:
    """More frames than one drain takes, sent at once, need no further edge."""

    async def job() -> None:
        with a_router() as (_, taken, path), a_dealer(path) as dealer:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            for nonce in range(10 * DRAIN_FRAMES):
                dealer.send_multipart(encode(frames.Probe(nonce)))
            await until_async(lambda: len(taken.frames) == 10 * DRAIN_FRAMES)
            assert [frame for _, frame, _ in taken.frames] == [
                frames.Probe(nonce) for nonce in range(10 * DRAIN_FRAMES)
            ]
            assert {pid for _, _, pid in taken.frames} == {os.getpid()}

    run_on(loop, job())


def test_a_large_body_passes_without_a_copy(loop: str) -> None:
    """It stays in ZeroMQ's memory, from the socket it came from to the one it leaves by."""
    body = os.urandom(8 << 20)
    call = frames.Open(CallId(b"c" * 16), 0, StreamKey(b"k" * 8), RouteName("r"), "m", body=body)

    async def job() -> None:
        with a_router() as (router, taken, path), a_dealer(path) as here, a_dealer(path) as there:
            there.send_multipart(encode(frames.Probe(0)))
            await until_async(lambda: len(taken.frames) == 1)
            parts = encode(call)
            tracemalloc.start()
            try:
                here.send_multipart(parts)
                await until_async(lambda: len(taken.frames) == 2)
                came = taken.frames[1][1]
                assert isinstance(came, frames.Open)
                router.send(taken.frames[0][0], frames.Snapshot(call.call, 0, 0, body=came.body))
                await until_async(lambda: there.poll(0) != 0)
                left = there.recv_multipart(copy=False)
                assert left[2].buffer == body == came.body
                assert tracemalloc.get_traced_memory()[1] < len(body) / 4
            finally:
                tracemalloc.stop()

    run_on(loop, job())


_NOT_ZMTP = (
    b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",  # read as ZMTP 1.0, as whatever begins otherwise
    b"\x01\x00" + b"\x05\x00EVIL" * 3,  # ZMTP 1.0: no identity, three frames
    b"\xff" + b"\x00" * 8 + b"\x7f" + b"\x01\x05\x00\x00" + b"\x00\x04EVIL" * 3,  # ZMTP 2.0
    b"\xff" + b"\x00" * 8 + b"\x7f\x03\x00NULL" + b"\x00" * 48 + b"\x04" + b"\xff" * 9,
    random.Random(5).randbytes(4000),  # noqa: S311  repeatable, not secret
)


def test_bytes_that_are_not_zeromq_harm_nobody(loop: str) -> None:
    """Old versions of its protocol carry no connection's number; a browser speaks the oldest."""

    async def job() -> None:
        with a_router() as (_, taken, path), contextlib.ExitStack() as open_here:
            for garbage in _NOT_ZMTP:
                here = open_here.enter_context(socket.socket(socket.AF_UNIX))
                here.connect(str(path))
                with contextlib.suppress(OSError):  # closed at the first bytes
                    here.sendall(garbage)
            await until_async(lambda: taken.rejected["BAD_FRAME"] >= 3)
            dealer = open_here.enter_context(a_dealer(path))
            dealer.send_multipart(encode(frames.Probe(1)))
            await until_async(lambda: any(one == frames.Probe(1) for _, one, _ in taken.frames))
            assert set(taken.rejected) <= {"BAD_FRAME", "UNKNOWN_KIND"}

    run_on(loop, job())


def test_a_frame_that_arrives_while_sending_is_not_missed(loop: str) -> None:
    """A send may use up the edge of an arrival: both sides talk at once, a thousand times."""

    async def job() -> None:
        with a_router() as (router, taken, path), a_dealer(path) as dealer:
            dealer.send_multipart(encode(frames.Probe(0)))
            await until_async(lambda: taken.frames)
            peer = taken.frames[0][0]
            for nonce in range(1, 1000):
                dealer.send_multipart(encode(frames.Probe(nonce)))
                for _ in range(3):
                    router.send(peer, frames.Who(Epoch(1)))
                await asyncio.sleep(0)
            await until_async(lambda: len(taken.frames) == 1000)

    run_on(loop, job())


def test_the_end_of_a_connection_is_noticed_at_once(loop: str) -> None:
    """Each peer once, and only those that left, also where descriptors are used again."""

    async def job() -> None:
        with a_router() as (router, taken, path), a_dealer(path) as stays:
            stays.send_multipart(encode(frames.Probe(0)))
            await until_async(lambda: taken.frames)
            kept = taken.frames[0][0]
            for turn in range(1, 31):
                with a_dealer(path) as dealer:
                    dealer.send_multipart(encode(frames.Probe(turn)))
                    await until_async(lambda turn=turn: len(taken.frames) == 1 + turn)
                if turn % 3 == 0:
                    await until_async(lambda turn=turn: len(taken.gone) == turn)
            await until_async(lambda: len(taken.gone) == 30)
            assert kept not in taken.gone
            assert len(set(taken.gone)) == 30
            assert router.peer_count == 1

    run_on(loop, job())


def test_a_frame_to_a_peer_that_left_is_dropped_and_counted(loop: str) -> None:
    """And the peer is reported as gone, once."""

    async def job() -> None:
        with a_router() as (router, taken, path):
            with a_dealer(path) as dealer:
                dealer.send_multipart(encode(frames.Probe(0)))
                await until_async(lambda: taken.frames)
            await until_async(lambda: taken.gone)
            router.send(taken.frames[0][0], frames.Who(Epoch(1)))
            router.flush()
            assert taken.counts["control.peer_unreachable"] == 1
            await asyncio.sleep(0)
            assert len(taken.gone) == 1

    run_on(loop, job())


def test_a_peer_that_does_not_read_loses_frames_and_nothing_else(loop: str) -> None:
    """At the bound its frames are dropped and counted and it is reported as gone; others go on."""

    async def job() -> None:
        with (
            a_router() as (router, taken, path),
            a_dealer(path, 1) as deaf,
            a_dealer(path) as other,
        ):
            deaf.send_multipart(encode(frames.Probe(0)))
            await until_async(lambda: taken.frames)
            other.send_multipart(encode(frames.Probe(1)))
            await until_async(lambda: len(taken.frames) == 2)
            (stuck, _, _), (alive, _, _) = taken.frames
            big = frames.Refused("X", "x" * 8000)
            for _ in range(SEND_LIMIT_FRAMES + 2000):
                router.send(stuck, big)
            assert taken.counts["control.peer_stuck"] > 0
            await until_async(lambda: taken.gone)
            assert set(taken.gone) == taken.stuck == {stuck}
            router.send(alive, frames.Who(Epoch(1)))
            router.flush()
            assert other.poll(5000)
            # It reads at last, and speaks: it is taken as a new peer.
            while deaf.poll(100):
                deaf.recv_multipart()
            deaf.send_multipart(encode(frames.Probe(2)))
            await until_async(lambda: taken.frames[-1][1] == frames.Probe(2))
            router.send(taken.frames[-1][0], frames.Who(Epoch(2)))
            router.flush()
            assert deaf.poll(5000)

    run_on(loop, job())


def test_bytes_that_are_no_frame_are_rejected(loop: str) -> None:
    """Whatever they are and however many parts they have."""

    async def job() -> None:
        with a_router() as (_, taken, path), a_dealer(path) as dealer:
            dealer.send(b"")
            dealer.send_multipart([b"HELLO", b"\xc1"])
            dealer.send_multipart([b"NONSENSE", b"\x80"])
            dealer.send_multipart([b"x"] * 10_000)
            dealer.send_multipart(encode(frames.Probe(1)))
            await until_async(lambda: taken.frames)
            assert taken.rejected == {"BAD_FRAME": 3, "UNKNOWN_KIND": 1}

    run_on(loop, job())


class Asking(Taken):
    """A receiver that answers the end of a peer with a frame to another one, as the core does."""

    def __init__(self) -> None:
        super().__init__()
        self.router: Router | None = None
        self.other = b""

    def on_gone(self, peer: bytes, *, is_stuck: bool = False) -> None:
        super().on_gone(peer, is_stuck=is_stuck)
        assert self.router is not None
        self.router.send(self.other, frames.Who(Epoch(7)))


def test_a_frame_that_sending_leads_to_does_not_wait_for_the_next_event(loop: str) -> None:
    """A peer turns out to be gone while others are served; what follows goes out at once."""

    async def job() -> None:
        with run_directory() as root:
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            asking = Asking()
            path = root / "control"
            router = Router(context, path, Direction.CLIENT_TO_BROKER, asking)
            try:
                with a_dealer(path) as there:
                    there.send_multipart(encode(frames.Probe(0)))
                    await until_async(lambda: len(asking.frames) == 1)
                    asking.router, asking.other = router, asking.frames[0][0]
                    with a_dealer(path) as gone:
                        gone.send_multipart(encode(frames.Probe(1)))
                        await until_async(lambda: len(asking.frames) == 2)
                        peer = asking.frames[1][0]
                    # The router learns of it by this frame or by its monitor, whichever is first.
                    router.send(peer, frames.Who(Epoch(1)))
                    router.flush()
                    await until_async(lambda: asking.gone == [peer], 5, "the end is not noticed")
                    await until_async(lambda: there.poll(0) != 0, 5, "the frame still waits")
            finally:
                router.close()
                context.term()

    run_on(loop, job())


def test_every_frame_of_a_chain_of_ends_is_sent(loop: str) -> None:
    """`flush` drops a frame, that leads to one that is dropped too, and so on: none is kept."""

    async def job() -> None:
        with a_router() as (router, taken, path), a_dealer(path) as there:
            there.send_multipart(encode(frames.Probe(0)))
            await until_async(lambda: len(taken.frames) == 1)
            peer = taken.frames[0][0]
            count = taken.on_count

            def on_count(name: str) -> None:
                count(name)
                router.send(peer, frames.Who(Epoch(taken.counts[name])))

            taken.on_count = on_count  # type: ignore[method-assign]
            router.send(b"nobody", frames.Who(Epoch(1)))
            router.flush()
            await until_async(lambda: there.poll(0) != 0, 5, "the frame still waits")

    run_on(loop, job())
