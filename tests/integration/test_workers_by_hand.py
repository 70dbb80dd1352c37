"""Workers that no broker started, and a broker that is killed: they are waited for, and come back.

One runs on this host, started by hand as under a debugger; one came over TCP, so its process is out
of sight and only its own word can tell the next broker that it lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import trunkline
from trunkline_workers.adapters.scripted.content import whole

from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.timing import SLOW, until, until_async

pytestmark = pytest.mark.integration
CHUNKS: Final = 250
CONFIG: Final = """\
[broker]
plain_tcp = true
tcp_workers = "127.0.0.1:{control}"
tcp_workers_lane = "127.0.0.1:{lane}"
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
"""


@contextlib.contextmanager
def a_worker(endpoint: str, pool: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "trunkline_workers", "--connect", endpoint, "--pool", pool]
    command += ["--adapter", "scripted", "--provider", pool]
    child = subprocess.Popen(command)  # noqa: S603  our own program
    try:
        yield child
    finally:
        child.send_signal(signal.SIGCONT)
        child.send_signal(signal.SIGTERM)
        child.wait(15 * SLOW)


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    """Yield a broker that will have the same ports when it is started again."""
    with run_directory() as root, broker_in(root, CONFIG.format(control=0, lane=0)) as broker:
        broker.start()
        tcp = broker.status()["endpoints"]["tcp"]
        ports = [urlsplit(tcp[name]).port for name in ("workersControl", "workersLane")]
        broker.config.write_text(CONFIG.format(control=ports[0], lane=ports[1]))
        yield broker


async def played(llm: trunkline.LlmRuntime, provider: str, **script: Any) -> tuple[str, str]:
    """Return what a stream brought, and how it ended."""
    text, end = "", ""
    messages = json.dumps({"script": script})
    async for chunk in llm.stream(provider=provider, model="any", messages=messages):
        if isinstance(chunk, trunkline.TextDelta):
            text += chunk.text
        elif isinstance(chunk, trunkline.Finish):
            end = f"{chunk.reason.kind} {chunk.reason.failure or ''}".strip()
    return text, end


async def test_they_are_waited_for_and_serve_the_next_broker(broker: BrokerProcess) -> None:
    """The one out of sight comes late: its stream goes on, and nobody else's worker is blamed."""
    endpoints = broker.status()["endpoints"]
    pools = ("hand", "far")
    with (
        a_worker(endpoints["workersControl"], "hand"),
        a_worker(endpoints["tcp"]["workersControl"], "far") as far,
    ):
        for pool in ("scripted", *pools):
            await asyncio.to_thread(broker.until_ready, pool)
        async with trunkline.connect(broker.endpoint) as llm:
            streams = [
                asyncio.ensure_future(played(llm, pool, chunks=CHUNKS, pace_ms=8)) for pool in pools
            ]
            await until_async(lambda: broker.status()["calls"]["running"] == len(pools))
            far.send_signal(signal.SIGSTOP)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            for pool in ("scripted", "hand"):
                await asyncio.to_thread(broker.until_ready, pool)
            assert broker.status()["settling"]
            far.send_signal(signal.SIGCONT)
            for stream in streams:
                assert await asyncio.wait_for(stream, 30 * SLOW) == (whole(CHUNKS, 40), "stop")
            for pool in pools:
                assert (await played(llm, pool, chunks=3))[1] == "stop"
    until(lambda: [pool["name"] for pool in broker.status()["pools"]] == ["scripted"])
