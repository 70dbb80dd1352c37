"""The fault table of ARCHITECTURE 6 against real processes, where no other module shows a row.

Elsewhere: killed brokers, handovers, stops, swaps and killed workers in `test_streams_survive`;
stopped readers in `test_fault_memory`; cut and stalled links, second holders and all of it together
in `tests/chaos`; stalls and trickles of a provider in `test_chat_completions`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trunkline
import zmq

from tests.support.broker import BrokerProcess, running_broker
from tests.support.processes import (
    cpu_s,
    has_its_ledger,
    is_alive,
    open_files,
    rss_bytes,
    with_environment,
)
from tests.support.timing import SLOW, until, until_async

pytestmark = pytest.mark.integration
LEASE_S: Final = 3.0
CONFIG: Final = """\
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
{more}
[worker.scripted.options]
journal = "{journal}"
[worker.other]
adapter = "scripted"
providers = ["other"]
"""
WITH_HELPER: Final = """\
import subprocess
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter

class Adapter(ScriptedAdapter):
    \"\"\"Starts a program that ignores SIGTERM, and forgets it.\"\"\"

    async def open(self):
        self.child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600; true"])
"""
Line = dict[str, Any]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file in which the fake provider notes its requests."""
    return tmp_path_factory.mktemp("journal") / "journal"


@pytest.fixture(scope="module")
def broker(journal: Path) -> Iterator[BrokerProcess]:
    """Yield one broker with two pools; each test leaves it serving."""
    with running_broker(CONFIG.format(journal=journal, more="")) as running:
        yield running


@pytest.fixture
def serving(broker: BrokerProcess) -> BrokerProcess:
    """Yield it when both pools serve."""
    for pool in ("scripted", "other"):
        broker.until_ready(pool)
    return broker


def noted(journal: Path, session: str) -> list[Line]:
    """Return what the fake provider noted of one call."""
    text = journal.read_text() if journal.exists() else ""  # the first line makes the file
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["sessionId"] == session]


def asked(session: str = "", provider: str = "scripted", **script: Any) -> dict[str, Any]:
    """Return the fields of a request that plays a script."""
    text = json.dumps({"script": script})
    return {"provider": provider, "model": "any", "messages": text, "session_id": session}


async def played(llm: trunkline.LlmRuntime, request: dict[str, Any]) -> list[Any]:
    """Return every chunk of a call."""
    return [chunk async for chunk in llm.stream(**request)]


async def worker_of(broker: BrokerProcess, pool: str) -> int:
    """Return the worker that serves a pool; one that drains after a swap is none."""
    document = await asyncio.to_thread(broker.status)
    (found,) = [entry for entry in document["pools"] if entry["name"] == pool]
    return found["slots"][0]["pid"]


# --- a worker that hangs -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["SIGSTOP", "blocked loop"])
async def test_a_hanging_worker_is_killed_after_its_lease(serving: BrokerProcess, how: str) -> None:
    """Its calls end in `TRANSPORT`, a new one serves, the other route does not notice."""
    async with trunkline.connect(serving.endpoint) as llm:
        worker = await worker_of(serving, "scripted")
        blocked = {20: {"block_ms": 60_000}} if how == "blocked loop" else {}
        victim = llm.stream(**asked(chunks=400, pace_ms=10, at=blocked))
        other = asyncio.ensure_future(played(llm, asked(provider="other", chunks=400, pace_ms=10)))
        await anext(victim)
        if how == "SIGSTOP":
            os.kill(worker, signal.SIGSTOP)
        struck_s = time.monotonic()
        chunks = [chunk async for chunk in victim]
        taken_s = time.monotonic() - struck_s
        failure = chunks[-1].reason.failure
        assert failure.code == "TRANSPORT"
        assert "no frame for 3 s" in failure.message
        assert LEASE_S - 1.1 < taken_s < (LEASE_S + 1.5) * SLOW
        assert (await other)[-1].reason.kind == "stop"
        await until_async(lambda: not is_alive(worker))
        assert (await played(llm, asked(chunks=3)))[-1].reason.kind == "stop"
    if how == "blocked loop":  # the log says where
        (said,) = [
            line for line in serving.log_text().splitlines() if f"pid={worker} exit=" in line
        ]
        assert 'why="no frame for 3 s"' in said
        assert "scripted/play.py" in said


# --- an adapter that misbehaves ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "kind", "code"),
    [
        ({"at": {5: {"raise": {"exception": "KeyError"}}}}, "error", None),
        ({"at": {5: {"raise": {"code": "RATE_LIMIT", "message": "no"}}}}, "error", "RATE_LIMIT"),
        ({"at": {5: {"raise": {"exception": "SystemExit"}}}}, "error", None),
        ({"at": {5: {"end": True}}}, "error", None),
        ({"at": {5: {"garbage": 17}}}, "error", None),
        ({"at": {5: {"garbage": [None]}}}, "error", None),
        ({"after": [{"chunk": {"type": "text-delta", "index": 0, "text": "!"}}]}, "stop", None),
    ],
)
async def test_whatever_an_adapter_does_one_finish_comes_and_the_worker_lives(
    serving: BrokerProcess, script: dict[str, Any], kind: str, code: str | None
) -> None:
    """It raises, ends early, emits garbage, or goes on after its finish."""
    async with trunkline.connect(serving.endpoint) as llm:
        worker = await worker_of(serving, "scripted")
        chunks = await played(llm, asked(chunks=10, **script))
        finishes = [chunk for chunk in chunks if isinstance(chunk, trunkline.Finish)]
        assert finishes == chunks[-1:]
        assert finishes[0].reason.kind == kind
        if kind == "error":
            assert finishes[0].reason.failure is not None
            assert finishes[0].reason.failure.code
            assert code in (None, finishes[0].reason.failure.code)
        assert await worker_of(serving, "scripted") == worker


# --- the broker stops --------------------------------------------------------------------------


async def test_ten_seconds_of_a_stopped_broker_end_nothing(serving: BrokerProcess) -> None:
    """Longer than every lease: streams wait and go on, workers stay, queued calls begin."""
    async with trunkline.connect(serving.endpoint) as llm:
        workers = await asyncio.to_thread(serving.worker_pids)
        running = [
            asyncio.ensure_future(played(llm, asked(chunks=3_000, batch=8, pace_ms=5)))
            for _ in range(5)
        ]
        first = llm.stream(**asked(chunks=3))
        await anext(first)
        serving.signal(signal.SIGSTOP)
        late = asyncio.ensure_future(played(llm, asked(chunks=3)))
        await asyncio.sleep(10)  # the fault itself: nothing can be waited for
        serving.signal(signal.SIGCONT)
        for chunks in await asyncio.wait_for(asyncio.gather(*running, late), 30 * SLOW):
            assert chunks[-1].reason.kind == "stop"
        assert [chunk async for chunk in first][-1].reason.kind == "stop"
        assert await asyncio.to_thread(serving.worker_pids) == workers
        assert (await llm.status())["counters"]["late_ticks"] >= 1


# --- clients -----------------------------------------------------------------------------------

AGENT: Final = """\
import asyncio, json, sys, trunkline
async def main():
    async with trunkline.connect(sys.argv[1]) as llm:
        async for chunk in llm.stream(**json.loads(sys.argv[2])):
            print("chunk", flush=True)
asyncio.run(main())
"""


def test_a_killed_client_stops_the_provider_within_a_second(
    serving: BrokerProcess, journal: Path
) -> None:
    """And the broker forgets all of it."""
    request = json.dumps(asked("killed", chunks=10_000, pace_ms=10))
    command = [sys.executable, "-c", AGENT, serving.endpoint, request]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as agent:  # noqa: S603  our own text
        assert agent.stdout is not None
        assert agent.stdout.readline()
        agent.kill()
        killed_s = time.monotonic()
    (_, end) = until(lambda: len(found := noted(journal, "killed")) == 2 and found)
    assert end["event"] == "cancelled"
    assert end["atS"] - killed_s < 1.0 * SLOW
    until(lambda: serving.status()["calls"]["open"] == 0)


@pytest.mark.parametrize("at", ["before the first chunk", "in the middle", "twice"])
async def test_a_cancel_stops_the_provider_within_a_second(
    serving: BrokerProcess, journal: Path, at: str
) -> None:
    """One `aborted` finish at once; the place of the call is free again."""
    script: dict[str, Any] = {"chunks": 1_000, "pace_ms": 10}
    if at == "before the first chunk":
        script = {"steps": [{"stall": True}]}
    async with trunkline.connect(serving.endpoint) as llm:
        stream = llm.stream(**asked(at, **script))
        async with stream:
            if at == "before the first chunk":
                await until_async(lambda: noted(journal, at))
            else:
                await anext(stream)
            cancelled_s = time.monotonic()
            stream.cancel()
            if at == "twice":
                stream.cancel()
            rest = [chunk async for chunk in stream]
            assert [chunk.reason.kind for chunk in rest] == ["aborted"]
            assert time.monotonic() - cancelled_s < 0.2 * SLOW
        (_, end) = await until_async(lambda: len(found := noted(journal, at)) == 2 and found)
        assert end["event"] == "cancelled"
        assert end["atS"] - cancelled_s < 1.0 * SLOW
        status = await llm.status()
        assert [row["inFlight"] for row in status["routes"] if row["provider"] == "scripted"] == [0]


# --- swap --------------------------------------------------------------------------------------


async def test_streams_outlive_swap_after_swap(serving: BrokerProcess) -> None:
    """Ten swaps under sixty streams: no call fails, no chunk is missing."""
    async with trunkline.connect(serving.endpoint) as llm:
        failed = (await llm.status())["counters"].get("calls_failed", 0)
        streams = [
            asyncio.ensure_future(played(llm, asked(chunks=200, pace_ms=15, seed=number)))
            for number in range(60)
        ]
        for _ in range(10):
            await llm.query("swap", {"pool": "scripted"}, timeout_s=30 * SLOW)
            streams.append(asyncio.ensure_future(played(llm, asked(chunks=200, pace_ms=1))))
        for chunks in await asyncio.wait_for(asyncio.gather(*streams), 60 * SLOW):
            assert chunks[-1].reason.kind == "stop"
            assert sum(isinstance(chunk, trunkline.TextDelta) for chunk in chunks) == 200
        assert (await llm.status())["counters"].get("calls_failed", 0) == failed


async def test_a_broken_new_version_leaves_the_old_one_serving(
    serving: BrokerProcess, tmp_path: Path
) -> None:
    """`swap` says why, in the words of the worker."""
    broken = tmp_path / "broken.toml"
    options = '[worker.scripted.options]\nopen_error = "the model file is gone"\n'
    broken.write_text(f'[worker.scripted]\nadapter = "scripted"\n{options}')
    async with trunkline.connect(serving.endpoint) as llm:
        worker = await worker_of(serving, "scripted")
        running = asyncio.ensure_future(played(llm, asked(chunks=100, pace_ms=10)))
        argument = {"pool": "scripted", "config": str(broken)}
        with pytest.raises(trunkline.LlmError) as caught:
            await llm.query("swap", argument, timeout_s=30 * SLOW)
        assert caught.value.code == "SWAP_FAILED"
        assert "the model file is gone" in str(caught.value)
        assert (await running)[-1].reason.kind == "stop"
        assert await worker_of(serving, "scripted") == worker


# --- hostile bytes -----------------------------------------------------------------------------


async def test_nonsense_on_every_socket_harms_no_stream(serving: BrokerProcess) -> None:
    """Raw bytes and wrong frames on all four: counted; no spin, no leak, the stream is whole."""
    paths = serving.paths
    async with trunkline.connect(serving.endpoint) as llm:
        stream = asyncio.ensure_future(played(llm, asked(chunks=300, pace_ms=10)))
        await until_async(lambda: has_its_ledger(serving.pid), 20)
        files, memory = open_files(serving.pid), rss_bytes(serving.pid)
        for path in paths.sockets:
            await asyncio.to_thread(_abuse, path)
        assert (await stream)[-1].reason.kind == "stop"
        await until_async(lambda: open_files(serving.pid) <= files + 1)
        assert rss_bytes(serving.pid) - memory < 16 << 20
        used_s = cpu_s(serving.pid)
        await asyncio.sleep(0.5)
        assert cpu_s(serving.pid) - used_s < 0.25
        assert (await llm.status())["counters"]["refused"] > 0


_WRONG_FRAMES: Final = (
    [b""],
    [b"HELLO"],
    [b"OPEN", b"\xc1"],
    [b"START", b"\x80", b"x"],
    [b"x"] * 9,
    [os.urandom(100)],
)


def _abuse(path: Path) -> None:
    for data in (b"\0" * 100, b"GET / HTTP/1.1\r\n\r\n", os.urandom(1_000), b"\xff" * 10):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(path))
            raw.sendall(data)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.SNDTIMEO, 300)
        dealer.connect(f"ipc://{path}")
        with contextlib.suppress(zmq.Again):  # nobody takes any more of it
            for _ in range(200):
                for parts in _WRONG_FRAMES:
                    dealer.send_multipart(parts)
        dealer.poll(300)
    finally:
        context.destroy(100)


# --- disk full ---------------------------------------------------------------------------------


def test_a_full_disk_stops_no_stream(journal: Path) -> None:
    """Nothing can be written any more: streams go on, and what was not written is counted."""
    with running_broker(CONFIG.format(journal=os.devnull, more="")) as broker:
        broker.until_ready("scripted")
        (worker,) = broker.worker_pids()["scripted"]
        for pid in (broker.pid, worker):  # EFBIG instead of ENOSPC, which needs a disk
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

        async def job() -> None:
            async with trunkline.connect(broker.endpoint) as llm:
                assert (await played(llm, asked(chunks=100)))[-1].reason.kind == "stop"
                (other,) = broker.worker_pids()["other"]
                os.kill(other, signal.SIGKILL)
                await until_async(lambda: broker.status()["counters"].get("hints.lost"))
                counters = (await llm.status())["counters"]
                assert counters["log.lost"] > 0
                assert (await played(llm, asked(chunks=100)))[-1].reason.kind == "stop"

        asyncio.run(job())
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (-1, -1))


# --- nobody is left ----------------------------------------------------------------------------


def test_workers_leave_when_no_broker_comes() -> None:
    """`orphan_timeout`: they cancel what runs and exit; nothing of the run directory lives on."""
    config = "[broker]\norphan_timeout_s = 2\n" + CONFIG.format(
        journal=os.devnull, more='env = ["ORPHAN"]'
    )
    name = f"orphan-{os.getpid()}"
    with running_broker(config, {"ORPHAN": name}) as broker:
        broker.until_ready("scripted")
        (worker,) = broker.worker_pids()["scripted"]
        broker.kill()
        killed_s = time.monotonic()
        until(lambda: not is_alive(worker), 10)
        assert time.monotonic() - killed_s > 1.9
        until(lambda: with_environment("ORPHAN", name) == [])


def test_what_an_orphan_has_started_leaves_with_it(tmp_path: Path) -> None:
    """The processes of its group, for which nobody else cares any more."""
    (tmp_path / "helped.py").write_text(WITH_HELPER)
    config = (
        "[broker]\norphan_timeout_s = 1\n"
        f'[worker.helped]\nadapter = "{tmp_path}/helped.py:Adapter"\nenv = ["ORPHAN"]\n'
    )
    name = f"helped-{os.getpid()}"
    with running_broker(config, {"ORPHAN": name}) as broker:
        broker.until_ready("helped")
        (worker,) = broker.worker_pids()["helped"]
        until(lambda: len(with_environment("ORPHAN", name)) >= 4)  # broker, worker, sh, sleep
        broker.kill()
        until(lambda: not is_alive(worker), 10)
        until(lambda: with_environment("ORPHAN", name) == [])
