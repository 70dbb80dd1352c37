"""The client's sockets: what one drain, one lost edge or a full pipe may do to them."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trunkline
import zmq
from trunkline.connection import Connection, Receivers

from tests.support.broker import BrokerProcess, running_broker
from tests.support.timing import SLOW, until_async

pytestmark = pytest.mark.integration

CONFIG = """\
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
"""


@pytest.fixture
def sockets() -> Iterator[tuple[Path, Callable[[str], zmq.Socket[bytes]]]]:
    """Yield a directory and a maker of ROUTER sockets bound in it."""
    context = zmq.Context()
    made: list[zmq.Socket[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:

        def bound(name: str) -> zmq.Socket[bytes]:
            socket = context.socket(zmq.ROUTER)
            socket.bind(f"ipc://{folder}/{name}")
            made.append(socket)
            return socket

        yield Path(folder), bound
        for socket in made:
            socket.close(0)
        context.term()


def nothing(*_: object) -> None:
    """Take whatever comes."""


async def lane_of(
    sockets: tuple[Path, Callable[[str], zmq.Socket[bytes]]],
    take: Callable[[Connection, bytes], None],
) -> tuple[Connection, zmq.Socket[bytes]]:
    """Return a connection with a lane that its peer has seen."""
    folder, bound = sockets
    bound("control")
    lane = bound("lane")
    lane.setsockopt(zmq.ROUTER_MANDATORY, 1)
    made: list[Connection] = []
    receivers = Receivers(nothing, lambda frame: take(made[0], frame), nothing, nothing, nothing)
    made.append(Connection(f"ipc://{folder}/control", b"c" * 16, receivers))
    assert made[0].open_lane(f"ipc://{folder}/lane")

    def is_known() -> bool:
        try:
            lane.send_multipart([b"c" * 16, b"hello"], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    await until_async(is_known)
    return made[0], lane


async def test_a_lane_is_replaced_in_its_own_drain(
    sockets: tuple[Path, Callable[[str], zmq.Socket[bytes]]],
) -> None:
    """Twice as well, and closed: what is left of the old one is dropped, nothing is raised."""
    loop, problems, seen = asyncio.get_running_loop(), list[Any](), list[bytes]()
    loop.set_exception_handler(lambda _, context: problems.append(context))
    folder, bound = sockets

    def take(connection: Connection, frame: bytes) -> None:
        seen.append(frame)
        if frame == b"replace":
            connection.open_lane(f"ipc://{folder}/other")
        elif frame == b"close":
            connection.close()

    _, lane = await lane_of(sockets, take)
    other = bound("other")
    other.setsockopt(zmq.ROUTER_MANDATORY, 1)
    for at in range(200):
        lane.send_multipart([b"c" * 16, b"replace" if at == 5 else b"x"])
    await until_async(lambda: b"replace" in seen)

    def is_moved() -> bool:
        try:
            other.send_multipart([b"c" * 16, b"moved"], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    await until_async(is_moved)
    await until_async(lambda: b"moved" in seen)
    for at in range(200):
        other.send_multipart([b"c" * 16, b"close" if at == 5 else b"y"])
    await until_async(lambda: b"close" in seen)
    await asyncio.sleep(0)
    assert seen.count(b"y") == 5
    assert problems == []


async def test_what_raises_in_a_drain_loses_no_edge(
    sockets: tuple[Path, Callable[[str], zmq.Socket[bytes]]],
) -> None:
    """ZeroMQ's descriptor signals once: the frames behind the one that raised have no other."""
    seen: list[bytes] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)

    def take(_: Connection, frame: bytes) -> None:
        seen.append(frame)
        if frame == b"raise":
            raise asyncio.CancelledError

    connection, lane = await lane_of(sockets, take)
    for name in (b"raise", b"one", b"raise", b"two"):
        lane.send_multipart([b"c" * 16, name])
    await until_async(lambda: seen[-1:] == [b"two"])
    connection.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """Yield a broker with one scripted worker."""
    with running_broker(CONFIG) as running:
        running.until_ready("scripted")
        yield running


async def test_queries_that_do_not_fit_are_sent_later(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker stands still and the pipe is full: all are answered when it goes on."""
    made: Any = Connection._socket

    def narrow(self: Connection, endpoint: str, max_part_bytes: int) -> Any:
        socket = made(self, endpoint, max_part_bytes)
        socket.sndhwm = 4
        return socket

    monkeypatch.setattr(Connection, "_socket", narrow)
    async with trunkline.connect(broker.endpoint) as llm:
        broker.signal(signal.SIGSTOP)
        try:
            big = b"x" * 200_000
            asked = [
                asyncio.ensure_future(llm.query("listProviders", {"x": big}, timeout_s=60 * SLOW))
                for _ in range(100)
            ]
            await until_async(lambda: llm.counters.get("unsent_frames", 0) > 50)
        finally:
            broker.signal(signal.SIGCONT)
        answers = await asyncio.gather(*asked)
        assert [answer[0]["id"] for answer in answers] == ["scripted"] * 100
        assert llm.counters["unsent_frames"] > 50
