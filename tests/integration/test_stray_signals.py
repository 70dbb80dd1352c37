"""Signals that mean nothing to broker or worker end neither; stop signals still stop both."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trunkline
from trunkline_workers.stray_signals import MEANINGLESS

from tests.support.broker import BrokerProcess, broker_in, run_directory, running_broker
from tests.support.timing import SLOW, until

pytestmark = pytest.mark.integration

# SIGUSR2 tells a broker to make room for the next one.
OF_BROKER = tuple(number for number in MEANINGLESS if number != signal.SIGUSR2)
ADAPTER = """\
import asyncio, os, signal
from trunkline_protocol.chunks import BlockEnd, BlockStart, Finish, FinishReason, TextDelta
from trunkline_protocol.models import LlmProviderInfo
from trunkline_workers.adapter import LlmAdapter

class Signalling(LlmAdapter):
    def provider_info(self, provider):
        return LlmProviderInfo(id=provider, name=provider)
    async def list_models(self, provider):
        return ()
    async def stream(self, options):
        yield BlockStart(0, "text")
        yield TextDelta(0, "a")
        way, _, number = options.model.partition(":")
        if way == "kill":
            os.kill(os.getpid(), int(number))
        elif way == "timer":
            signal.setitimer(int(number), 0.01)
            for _ in range(20):
                sum(range(200_000))
                await asyncio.sleep(0.005)
        elif way == "default":
            signal.signal(int(number), signal.SIG_DFL)
            await asyncio.sleep(2.5)
            os.kill(os.getpid(), int(number))
        await asyncio.sleep(0.05)
        yield BlockEnd(0, {"type": "text", "text": "a"})
        yield Finish(FinishReason("stop"))
"""
POOL = '[worker.s]\nadapter = "adapter_file.py:Signalling"\nproviders = ["s"]\n'
MODELS = (
    *(f"kill:{int(number)}" for number in (*MEANINGLESS, signal.SIGPIPE, signal.SIGXFSZ)),
    *(
        f"timer:{which}"
        for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    ),
    *(f"default:{int(n)}" for n in (signal.SIGPIPE, signal.SIGUSR1, signal.SIGPROF)),
)


def calls(broker: BrokerProcess, *models: str) -> list[str]:
    """Make one call per model, one after the other; return how each ended."""

    async def make() -> list[str]:
        messages: Any = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        found: list[str] = []
        async with trunkline.connect(broker.endpoint) as llm:
            for model in models:
                done = await llm.generate(provider="s", model=model, messages=messages)
                found.append(done.finish.kind)
        return found

    return asyncio.run(asyncio.wait_for(make(), 60 * SLOW))


def test_an_adapter_that_signals_its_process_ends_nothing() -> None:
    with run_directory() as root, broker_in(root, POOL) as broker:
        (root / "adapter_file.py").write_text(ADAPTER)
        broker.start()
        broker.until_ready("s")
        (worker,) = broker.worker_pids()["s"]
        assert calls(broker, *MODELS) == ["stop"] * len(MODELS), broker.log_text()[-3000:]
        assert broker.worker_pids()["s"] == [worker]
        os.kill(worker, signal.SIGHUP)  # a stop, as SIGTERM: another one takes over
        until(lambda: broker.worker_pids().get("s", [worker]) != [worker], 20)
        assert calls(broker, "good") == ["stop"]


def test_no_meaningless_signal_ends_the_broker() -> None:
    with running_broker() as broker:
        broker.until_ready("scripted")
        for number in OF_BROKER:
            for _ in range(20):
                os.kill(broker.pid, number)
        assert broker.status()["pid"] == broker.pid, broker.log_text()
        assert broker.stop() == 0


def test_a_timer_that_a_parent_has_left_running_ends_no_broker() -> None:
    """It survives `exec`."""
    start = (
        "import os, signal, sys\n"
        "signal.setitimer(signal.ITIMER_REAL, 4, 0.2)\n"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\n"
    )
    with run_directory() as root, broker_in(root) as broker:
        ours = ["-m", "trunkline_broker", "--config", str(broker.config)]
        broker.command = [sys.executable, "-c", start, *ours]
        broker.start()
        broker.until_ready("scripted")
        ticks = Path(f"/proc/{broker.pid}/status")

        def voluntary() -> int:
            return int(ticks.read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0])

        began = voluntary()
        until(lambda: voluntary() > began + 40, 30)  # the timer runs: five wake-ups a second
        assert broker.status()["pid"] == broker.pid, broker.log_text()
        assert broker.stop() == 0
