"""Each end of a worker with everything open: it exits in time, whatever its adapter's end does."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from trunkline_protocol.frames import Bye, Committed, Register, Registered, Registrations, Role
from trunkline_protocol.ids import Epoch
from trunkline_workers.core.link import EXIT_ORPHANED
from trunkline_workers.leaving import HARD_LIMIT_S

from tests.integration.test_host import Worker, a_worker
from tests.support.broker import run_directory
from tests.support.timing import SLOW

pytestmark = pytest.mark.integration

PLUGIN = """
import asyncio, threading, time
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter

WAY = "{way}"

async def nothing(draft):
    return []

async def setup(runtime, context):
    first = await runtime.register_adapter(["a"], ScriptedAdapter())
    second = await runtime.register_adapter(["b"], ScriptedAdapter())

    async def change():
        if WAY == "registers":
            await runtime.register_model_discovery("ns", nothing)
        elif WAY == "replaces":
            await first.replace(["c"])
        elif WAY == "behind":
            await asyncio.gather(first.replace(["c"]), second.dispose(), first.dispose(),
                                 return_exceptions=True)
        else:
            await first.dispose()

    async def for_ever():
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    async def close():
        if WAY == "task":
            await asyncio.gather(asyncio.ensure_future(change()), return_exceptions=True)
        elif WAY == "blocks":
            time.sleep(3600)
        elif WAY == "deaf":
            await for_ever()
        elif WAY == "thread":
            threading.Thread(target=time.sleep, args=(3600,)).start()
        elif WAY == "leaves-task":
            asyncio.ensure_future(for_ever())
        elif WAY == "cancels-all":
            for task in asyncio.all_tasks():
                task.cancel()
            await asyncio.sleep(3600)
        elif WAY == "exits":
            raise SystemExit(7)
        else:
            try:
                await change()
            finally:
                context.report("the change was answered")
    if WAY == "open":
        asyncio.get_running_loop().call_later(0.3, lambda: asyncio.ensure_future(change()))
        asyncio.get_running_loop().call_later(0.3, lambda: asyncio.ensure_future(change()))
    return close
"""
CHANGES = ("registers", "replaces", "disposes", "task", "behind", "open", "cancels-all", "exits")
HOLDS = ("blocks", "deaf", "thread", "leaves-task")
ENDS = ("bye", "term", "int", "orphaned")


async def serve(worker: Worker) -> None:
    """Take the worker to serving, and then answer nothing that it asks."""
    broker = worker.broker
    register = await broker.receive(Register)
    await broker.send(Registered(Epoch(1), broker.lane_endpoint, register.generation))
    registrations = await broker.receive(Registrations)
    await broker.send(Committed(registrations.request))
    await broker.send(Role("serving"))


async def end(worker: Worker, how: str) -> int:
    if how == "bye":
        await worker.broker.send(Bye())
    elif how == "orphaned":
        worker.broker.unbind()
    else:
        worker.child.send_signal(signal.SIGTERM if how == "term" else signal.SIGINT)
    try:
        return await worker.exited()
    finally:
        if how == "orphaned":
            worker.broker.bind()


async def ended_after_s(path: Path, way: str, how: str) -> float:
    """Return how long a worker took that was told to end with a stream and a change open."""
    file = path / f"{way}_{how.replace('-', '_')}.py"
    file.write_text(PLUGIN.replace("{way}", way))
    async with a_worker(
        greet=False, adapter=f"{file}:setup", orphanTimeoutMs=1500 if how == "orphaned" else 60_000
    ) as worker:
        await serve(worker)
        await worker.start({"steps": [{"stall": True}]}, provider="b")
        if way == "open":
            await worker.broker.receive(Registrations)
        began_s = time.monotonic()
        code = await end(worker, how)
        took_s = time.monotonic() - began_s
        wanted = EXIT_ORPHANED if how == "orphaned" else 0
        assert code == wanted, f"{way}, {how}: exit code {code}: {worker.output}"
        if way in {"registers", "replaces", "disposes", "behind"}:
            assert "the change was answered" in worker.output, f"{way}, {how}"
    return took_s - (1.5 if how == "orphaned" else 0.0)


@pytest.mark.parametrize("how", ENDS)
async def test_a_worker_leaves_at_once_whatever_its_close_registers(how: str) -> None:
    with run_directory() as path:
        took = await asyncio.gather(*(ended_after_s(path, way, how) for way in CHANGES))
    # No wait for a broker that does not answer is part of it.
    assert max(took) < HARD_LIMIT_S + 3 * SLOW, dict(zip(CHANGES, took, strict=True))


@pytest.mark.parametrize("how", ENDS)
async def test_a_hard_limit_ends_a_worker_whose_code_holds_on(how: str) -> None:
    with run_directory() as path:
        took = await asyncio.gather(*(ended_after_s(path, way, how) for way in HOLDS))
    assert max(took) < HARD_LIMIT_S + 5 * SLOW, dict(zip(HOLDS, took, strict=True))
