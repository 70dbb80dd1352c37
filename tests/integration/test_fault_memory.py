"""Readers that stop: whatever a provider could send, nobody keeps more than the windows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.support.broker import SCRIPTED, BrokerProcess, running_broker
from tests.support.processes import cpu_s, rss_bytes
from tests.support.timing import SLOW, until

pytestmark = pytest.mark.integration
MIB: Final = 1 << 20
STILL_S: Final = 0.5  # a process that has used next to no time for so long has nothing to do


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    """Yield a broker of its own: memory that another test has used would not be seen again."""
    with running_broker(SCRIPTED) as running:
        running.until_ready("scripted")
        yield running


@contextmanager
def reader(broker: BrokerProcess, orders: list[dict[str, Any]]) -> Iterator[subprocess.Popen[str]]:
    """Yield an agent process; it is gone afterwards."""
    command = [sys.executable, "-m", "tests.support.reader", broker.endpoint, json.dumps(orders)]
    with subprocess.Popen(  # noqa: S603  our own program
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def said(child: subprocess.Popen[str]) -> str:
    """Return the next line of an agent."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


def go_on(child: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Let an agent read to the end; return what its streams have brought."""
    out, _ = child.communicate("\n", timeout=60 * SLOW)
    return json.loads(out)


def until_still(*pids: int) -> None:
    """Wait until processes have stopped working: everything that may be sent was sent."""

    def still() -> bool:
        before = [cpu_s(pid) for pid in pids]
        deadline_s = time.monotonic() + STILL_S
        while time.monotonic() < deadline_s:
            time.sleep(0.05)
        return all(cpu_s(pid) - used < 0.1 for pid, used in zip(pids, before, strict=True))

    until(still, 30, "they do not come to rest")


def worker_of(broker: BrokerProcess) -> int:
    (worker,) = broker.worker_pids()["scripted"]
    return worker


def script(chunks: int) -> dict[str, Any]:
    return {"chunks": chunks, "is_constant": True, "batch": 64}


def test_a_stopped_reader_of_a_million_chunks_costs_nobody_memory(broker: BrokerProcess) -> None:
    """Broker, worker and agent stay within 30 MiB of idle; another stream of the agent goes on."""
    worker = worker_of(broker)
    warm = {"script": script(2_000), "stop_after": 1}
    with reader(broker, [warm]) as child:
        assert said(child) == "ready"
        until_still(child.pid)
        idle = {pid: rss_bytes(pid) for pid in (broker.pid, worker)}
        idle_agent = rss_bytes(child.pid)
        go_on(child)
    orders = [
        {"script": script(1_000_000), "stop_after": 1},
        {"script": script(20_000), "stop_after": None},
    ]
    with reader(broker, orders) as child:
        assert said(child) == "ready"  # also means: the other stream was read to its end
        until_still(broker.pid, worker, child.pid)
        grown = {pid: rss_bytes(pid) - before for pid, before in idle.items()}
        assert grown[broker.pid] < 30 * MIB
        assert grown[worker] < 30 * MIB
        assert rss_bytes(child.pid) - idle_agent < 30 * MIB
        assert go_on(child) == [
            {"chunks": 1_000_000, "finish": "stop"},
            {"chunks": 20_000, "finish": "stop"},
        ]


def test_two_hundred_streams_to_a_stopped_agent(broker: BrokerProcess) -> None:
    """SIGSTOP: the broker stays within 64 MiB of idle, nothing ends, all go on after SIGCONT."""
    worker = worker_of(broker)
    until_still(broker.pid, worker)
    idle = rss_bytes(broker.pid)
    orders = [{"script": script(2_000), "stop_after": 1} for _ in range(200)]
    with reader(broker, orders) as child:
        assert said(child) == "ready"
        os.kill(child.pid, signal.SIGSTOP)
        until_still(broker.pid, worker)
        assert rss_bytes(broker.pid) - idle < 64 * MIB
        # Far beyond every lease: a stopped client is never dead.
        assert broker.status()["calls"]["running"] == 200
        os.kill(child.pid, signal.SIGCONT)
        assert go_on(child) == [{"chunks": 2_000, "finish": "stop"}] * 200
    assert rss_bytes(broker.pid) - idle < 64 * MIB


def test_a_stopped_agent_with_large_chunks(broker: BrokerProcess) -> None:
    """The window in bytes is a bound too: 50 streams of 64 KiB chunks, still within 64 MiB."""
    worker = worker_of(broker)
    until_still(broker.pid, worker)
    idle = rss_bytes(broker.pid)
    large = {"chunks": 100, "chunk_chars": 64 * 1024, "is_constant": True}
    with reader(broker, [{"script": large, "stop_after": 1} for _ in range(50)]) as child:
        assert said(child) == "ready"
        os.kill(child.pid, signal.SIGSTOP)
        until_still(broker.pid, worker)
        assert rss_bytes(broker.pid) - idle < 64 * MIB
        os.kill(child.pid, signal.SIGCONT)
        assert go_on(child) == [{"chunks": 100, "finish": "stop"}] * 50
