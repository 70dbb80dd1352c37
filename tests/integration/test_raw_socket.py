"""The worker's raw socket on real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import zmq
from trunkline_workers.raw_socket import RawSocket

pytestmark = pytest.mark.integration


async def test_the_first_connection_is_told_without_any_traffic(tmp_path: Path) -> None:
    """An event that came before the first look makes no edge: it must not wait for a tick."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(f"ipc://{tmp_path}/s")
    connected, arrived = asyncio.Event(), asyncio.Event()
    raw = RawSocket(
        asyncio.get_running_loop(),
        context.socket(zmq.DEALER),
        lambda parts: arrived.set(),
        connected.set,
    )
    try:
        raw.connect(f"ipc://{tmp_path}/s")
        await asyncio.wait_for(connected.wait(), 10)
        assert raw.send([b"hello"])
        peer, hello = await asyncio.to_thread(router.recv_multipart)
        router.send_multipart([peer, hello])
        await asyncio.wait_for(arrived.wait(), 10)
    finally:
        raw.close(0)
        router.close(0)
        context.term()
