"""A worker that gets no CPU keeps its lease and its streams; one that hangs loses both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import trunkline

from tests.support.broker import BrokerProcess, running_broker
from tests.support.cpu_group import CpuGroup, NoCpuGroupError, cpu_group
from tests.support.processes import is_alive
from tests.support.timing import SLOW, until_async

pytestmark = pytest.mark.integration
CONFIG = """\
[broker]
liveness_s = {liveness_s}
[worker.scripted]
adapter = "scripted"
[worker.scripted.options]
"""
LEASE_S = 2.0
BURNERS = 16


@pytest.fixture
def serving() -> Iterator[BrokerProcess]:
    """Yield a broker with one worker and the shortest lease."""
    with running_broker(CONFIG.format(liveness_s=LEASE_S)) as broker:
        broker.until_ready("scripted")
        yield broker


@pytest.fixture
def group() -> Iterator[CpuGroup]:
    """Yield a control group without CPU, or skip."""
    try:
        with cpu_group() as made:
            yield made
    except NoCpuGroupError as exc:
        pytest.skip(str(exc))


@contextlib.contextmanager
def burners(count: int) -> Iterator[list[int]]:
    """Run programs that only burn CPU, for half a minute at most."""
    code = "import time; end = time.monotonic() + 30\nwhile time.monotonic() < end: pass"
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", code])  # noqa: S603  our own program
        for _ in range(count)
    ]
    try:
        yield [burner.pid for burner in started]
    finally:
        for burner in started:
            burner.kill()
            burner.wait()


def asked(chunks: int) -> dict[str, str]:
    """Return a request for numbered chunks, 20 ms apart."""
    script = {"chunks": chunks, "pace_ms": 20}
    return {
        "provider": "scripted",
        "model": "any",
        "messages": json.dumps({"script": script}),
    }


def counter(broker: BrokerProcess, name: str) -> int:
    """Return a counter of the broker."""
    return broker.status()["counters"].get(name, 0)


async def test_a_worker_without_cpu_keeps_its_lease(
    serving: BrokerProcess, group: CpuGroup
) -> None:
    """The kernel gives it 1 ms per second beside a burner for some leases; its stream goes on."""
    (pid,) = serving.worker_pids()["scripted"]
    async with trunkline.connect(serving.endpoint) as llm:
        stream = llm.stream(**asked(100))
        seen = [await anext(stream)]
        with burners(1) as (burner,):
            group.take(burner)
            group.take(pid)
            await until_async(
                lambda: counter(serving, "leases_extended_for_cpu") >= 3,
                timeout_s=20.0,
                what=f"the lease is not extended: {serving.log_text()[-2000:]}",
            )
        group.free(pid)
        async with asyncio.timeout(20 * SLOW):
            seen += [chunk async for chunk in stream]
        assert seen[-1].reason.kind == "stop"
        assert is_alive(pid)
        assert serving.worker_pids()["scripted"] == [pid]
        assert "worker_starved" in serving.log_text()


async def test_a_stopped_worker_in_the_same_group_is_killed(
    serving: BrokerProcess, group: CpuGroup
) -> None:
    """What does not want to run does not wait for CPU: the lease ends as everywhere."""
    (pid,) = serving.worker_pids()["scripted"]
    async with trunkline.connect(serving.endpoint) as llm:
        stream = llm.stream(**asked(1000))
        await anext(stream)
        os.kill(pid, signal.SIGSTOP)
        group.take(pid)
        async with asyncio.timeout(20 * SLOW):
            last = [chunk async for chunk in stream][-1]
        assert last.reason.failure.code == "TRANSPORT"
        assert "no frame for 2 s" in last.reason.failure.message
        await until_async(lambda: not is_alive(pid))


async def test_a_worker_among_burners_is_not_killed(serving: BrokerProcess) -> None:
    """It gets little CPU, and what it sends comes late; it lives through several leases."""
    (pid,) = serving.worker_pids()["scripted"]
    os.setpriority(os.PRIO_PROCESS, pid, 19)
    async with trunkline.connect(serving.endpoint) as llm:
        with burners(BURNERS):
            stream = llm.stream(**asked(300))
            async with asyncio.timeout(60 * SLOW):
                last = [chunk async for chunk in stream][-1]
    assert last.reason.kind == "stop"
    assert serving.worker_pids()["scripted"] == [pid]
    assert counter(serving, "workers_killed") == 0
