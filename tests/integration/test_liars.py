"""Registered peers that lie: they hurt themselves, and nobody else notices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trunkline
import zmq
from trunkline_protocol import frames
from trunkline_protocol.codec import encode, encode_lane, pack_body
from trunkline_protocol.ids import (
    CallId,
    ClientId,
    Epoch,
    Generation,
    PoolName,
    QueryId,
    StreamKey,
)
from trunkline_protocol.limits import MAX_CLIENTS, PROTOCOL_MAJOR, PROTOCOL_MINOR

from tests.support.broker import SCRIPTED, BrokerProcess, running_broker
from tests.support.processes import rss_bytes
from tests.support.raw_peer import RawClient
from tests.support.timing import SLOW, until

pytestmark = pytest.mark.integration
VERSION = (PROTOCOL_MAJOR, PROTOCOL_MINOR)
OPENS = 10_000
LIMIT = 64


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    config = f"[broker]\nmax_calls_per_client = {LIMIT}\n{SCRIPTED}"
    with running_broker(config) as process:
        process.until_ready("scripted")
        yield process


def opened(call: bytes | None = None, model: str = "echo", attempt: int = 0) -> frames.Open:
    body = pack_body({"provider": "scripted", "model": model, "messages": []})
    return frames.Open(
        CallId(call or os.urandom(16)),
        attempt,
        StreamKey(os.urandom(8)),
        "scripted",
        model,
        body=body,
    )


async def honest(broker: BrokerProcess) -> None:
    """An honest call that streams to its end."""
    async with asyncio.timeout(10 * SLOW), trunkline.connect(broker.endpoint) as llm:
        result = await llm.generate(provider="scripted", model="echo", messages="hello there")
        assert result.failure is None
        assert result.message.content


@contextmanager
def liar(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.endpoint) as client:
        client.hello()
        yield client


# --- clients --------------------------------------------------------------------------------


async def test_ten_thousand_opens_end_the_liars_calls_alone(broker: BrokerProcess) -> None:
    with liar(broker) as client:
        before = rss_bytes(broker.pid)
        for _ in range(OPENS // 100):
            client.send(*(opened() for _ in range(100)))
            while client.socket.poll(0):
                client.socket.recv_multipart()
        await honest(broker)
        await asyncio.to_thread(
            until,
            lambda: broker.status()["counters"].get("calls_failed", 0) >= OPENS - 2 * LIMIT,
            20.0,
        )
        status = await asyncio.to_thread(broker.status)
        (mine,) = (
            each for each in status["clients"] if each["name"] == "raw" and each["openCalls"]
        )
        assert mine["openCalls"] <= LIMIT
        assert rss_bytes(broker.pid) - before < 64 * 2**20
    await asyncio.to_thread(
        until, lambda: broker.status()["calls"]["open"] == 0, 45.0, "calls of a liar that left stay"
    )


async def test_a_foreign_call_can_be_neither_cancelled_nor_claimed(broker: BrokerProcess) -> None:
    with liar(broker) as victim, liar(broker) as client:
        mine = opened()
        victim.send(mine)
        victim.receive_kind(frames.Accepted)
        client.send(
            frames.Cancel(mine.call, 0),
            frames.Credit(mine.call, 0, 5, 5, 5),
            frames.Resume(mine.call, 0, 0),
            frames.Done((frames.CallRef(mine.call, 0),)),
            opened(mine.call),
            opened(mine.call, attempt=3),
        )
        client.status()  # all of it was read
        victim.send(mine)
        assert victim.receive_kind((frames.Accepted, frames.Ended)) is not None
        victim.send(frames.Cancel(mine.call, 0))
        await honest(broker)


async def test_credit_beyond_what_was_sent_moves_only_its_own_stream(
    broker: BrokerProcess,
) -> None:
    with liar(broker) as client:
        call = opened()
        client.send(call)
        client.receive_kind(frames.Accepted)
        for size in (10**6, 2**53, 2**64 - 1):
            client.send(frames.Credit(call.call, 0, size, size, size))
        client.send(frames.Resume(call.call, 0, 2**40), frames.Cancel(call.call, 0))
        client.status()
        await honest(broker)


async def test_ever_new_ids_on_one_connection_keep_nobody_out(broker: BrokerProcess) -> None:
    with liar(broker) as client:
        for number in range(MAX_CLIENTS + 100):
            hello = frames.Hello(VERSION, ClientId(os.urandom(16)), os.getpid(), "churn")
            client.send(hello)
            if number % 100 == 0:
                client.receive_kind(frames.Welcome)  # it keeps up
        await honest(broker)
        assert len(broker.status()["clients"]) < 10


async def test_a_flood_of_positions_leaves_the_worker_to_others(broker: BrokerProcess) -> None:
    """More than fit into its pipe; it is not taken for one that does not read."""
    with liar(broker) as client:
        calls = [opened() for _ in range(4)]
        client.send(*calls)
        for _ in calls:
            client.receive_kind(frames.Accepted)
        for number in range(20_000):
            client.send(frames.Credit(calls[number % 4].call, 0, 1, 1, 1))
        await honest(broker)
        counters = broker.status()["counters"]
        assert counters["positions_held_back"] > 0
        assert counters.get("control.peer_stuck", 0) == 0
        client.send(*(frames.Cancel(call.call, 0) for call in calls))


async def test_queries_without_end_are_bounded(broker: BrokerProcess) -> None:
    with liar(broker) as client:
        for _ in range(3000):
            client.send(frames.Query(QueryId(os.urandom(16)), "listModels", "nobody"))
            while client.socket.poll(0):
                client.socket.recv_multipart()
        await honest(broker)


# --- workers --------------------------------------------------------------------------------


async def test_a_worker_that_lies_hurts_only_the_calls_it_has(broker: BrokerProcess) -> None:
    """It ends foreign calls, reports wrong attempts, and sends rubbish down the lane."""
    with liar(broker) as victim, zmq.Context() as context:
        paths = broker.paths
        control, lane = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
        for socket, path in ((control, paths.workers_control), (lane, paths.workers_lane)):
            socket.linger = 0
            socket.connect(f"ipc://{path}")
        mine = opened()
        victim.send(mine)
        victim.receive_kind(frames.Accepted)
        unborn = Generation(Epoch(0), 0)
        finish = {"kind": "stop"}
        lies = (
            frames.Register(VERSION, PoolName("liar"), 0, unborn, os.getpid(), role="serving"),
            frames.Ended(mine.call, 0, 0, finish),
            frames.Ended(mine.call, 7, 2**40, finish),
            frames.Ended(CallId(os.urandom(16)), 0, 0, finish),
            frames.Reply(QueryId(os.urandom(16))),
            frames.Heartbeat(sent=(frames.Progress(mine.call, 0, 2**40),)),
        )
        for lie in lies:
            control.send_multipart(encode(lie))
        client = ClientId(victim.client)
        for first in (0, 1, 2**63):
            lane.send_multipart([client, encode_lane(StreamKey(os.urandom(8)), first, [[1, 2]])])
            lane.send_multipart([client, os.urandom(50)])
        await honest(broker)
        status = await asyncio.to_thread(broker.status)
        assert status["pid"] == broker.pid
        victim.send(frames.Cancel(mine.call, 0))
        victim.receive_kind(frames.Ended)  # of its own worker
        for socket in (control, lane):
            socket.close()


async def test_a_worker_without_its_token_takes_nobodys_place(broker: BrokerProcess) -> None:
    """A generation that lives is not to be had without what its process was handed."""
    status = broker.status()
    slot = status["pools"][0]["slots"][0]
    with zmq.Context() as context, context.socket(zmq.DEALER) as control:
        control.linger = 0
        control.connect(f"ipc://{broker.paths.workers_control}")
        born = Generation(Epoch(slot["generation"][0]), slot["generation"][1])
        lie = frames.Register(VERSION, PoolName("scripted"), 0, born, 1, role="serving")
        control.send_multipart(encode(lie))
        assert control.poll(int(5000 * SLOW))
        assert b"BAD_TOKEN" in b"".join(control.recv_multipart())
    await honest(broker)
