"""Each adapter in a process of its own: its packages, its faults and its keys stay there."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trunkline

from tests.support.broker import BrokerProcess, running_broker
from tests.support.processes import (
    has_its_ledger,
    is_alive,
    open_files,
    rss_bytes,
    with_environment,
)
from tests.support.timing import SLOW, until, until_async
from tests.support.wheels import a_wheel, worker_venv

pytestmark = pytest.mark.integration

# --- conflicting packages -------------------------------------------------------------------

ADAPTER = '''
import sys

import conflicted
from trunkline_protocol.chunks import BlockEnd, BlockStart, Finish, FinishReason, TextDelta
from trunkline_workers.adapter import LlmAdapter


class Adapter(LlmAdapter):
    """Says which version it sees, by the interface that this version has."""

    async def stream(self, options):
        text = f"{conflicted.speak()} {sys.prefix}"
        yield [
            BlockStart(0, "text"),
            TextDelta(0, text),
            BlockEnd(0, {"type": "text", "text": text}),
            Finish(FinishReason("stop")),
        ]
'''
OLD = "def speak():\n    return 'one'\n"
NEW = "def speak(*, loud=False):\n    return 'two'\n"


async def test_two_versions_of_one_package_serve_side_by_side(tmp_path: Path) -> None:
    """Each worker has its own interpreter with its own version; one broker serves them all.

    The adapters are found in each of the three ways: entry point, module and class, file.
    """
    a_wheel(tmp_path, "conflicted", "1.0", OLD)
    a_wheel(tmp_path, "conflicted", "2.0", NEW)
    a_wheel(tmp_path, "speaker", "1.0", ADAPTER, adapter="Adapter")
    first = worker_venv(tmp_path / "first", tmp_path, "conflicted==1.0", "speaker")
    second = worker_venv(tmp_path / "second", tmp_path, "conflicted==2.0", "speaker")
    (tmp_path / "adapter.py").write_text(ADAPTER)
    ways = {
        "old": ("speaker", first),
        "new": ("speaker:Adapter", second),
        "filed": (f"{tmp_path}/adapter.py:Adapter", first),
    }
    config = "".join(
        f"""
        [worker.{name}]
        adapter = "{adapter}"
        providers = ["{name}"]
        python = "{place}"
        """
        for name, (adapter, place) in ways.items()
    )
    with running_broker(config, {"PYTHONWARNINGS": ""}) as broker:
        for name in ways:
            await asyncio.to_thread(broker.until_ready, name, 30 * SLOW)
        async with trunkline.connect(broker.endpoint) as llm:
            for _ in range(3):
                assert await _said(llm, "old") == f"one {first}"
                assert await _said(llm, "new") == f"two {second}"
                assert await _said(llm, "filed") == f"one {first}"


async def _said(llm: trunkline.LlmRuntime, provider: str) -> str:
    result = await llm.generate(provider=provider, model="m", messages="Hello.")
    return result.text


# --- faults ---------------------------------------------------------------------------------

BAD = '''
import asyncio
import ctypes

from trunkline_protocol.chunks import BlockStart, TextDelta
from trunkline_workers.adapter import LlmAdapter


class Adapter(LlmAdapter):
    """Does harm, as the model's name says, after a first chunk."""

    held = []

    async def stream(self, options):
        yield [BlockStart(0, "text"), TextDelta(0, "so far so good")]
        await asyncio.sleep(0.05)  # so that it leaves before the harm is done
        if options.model == "memory":
            while True:
                self.held.append(bytearray(64 * 1024 * 1024))
        elif options.model == "descriptors":
            while True:
                self.held.append(open("/dev/null"))
        elif options.model == "segfault":
            ctypes.string_at(0)
        elif options.model == "recursion":
            await self.deeper()
        raise RuntimeError(options.model)

    async def deeper(self):
        await self.deeper()
'''
CONFIG = """
[broker]
memory_limit_mib = 3072
open_files_limit = 256

[worker.good]
adapter = "scripted"
providers = ["good"]

[worker.bad]
adapter = "{path}:Adapter"
providers = ["bad"]

[worker.bad.restart]
intensity = 20
initial_delay_s = 0.05
"""
PIECES = 150


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield one broker with a good and a bad worker."""
    path = tmp_path_factory.mktemp("bad") / "bad.py"
    path.write_text(BAD)
    with running_broker(CONFIG.format(path=path), {"PYTHONWARNINGS": ""}) as running:
        running.until_ready("good")
        running.until_ready("bad")
        until(lambda: has_its_ledger(running.pid), 20)
        yield running


@pytest.mark.parametrize("harm", ["memory", "descriptors", "segfault", "recursion"])
async def test_an_adapter_that_does_harm_takes_nothing_down(
    broker: BrokerProcess, harm: str
) -> None:
    """Its own call fails with a clear code; a stream of the other worker loses nothing."""
    for name in ("good", "bad"):
        await asyncio.to_thread(broker.until_ready, name)
        async with trunkline.connect(broker.endpoint) as llm:
            await _texts(llm, name, "nothing", "Hello.")  # who serves has all its connections
    before = broker.worker_pids()["good"], rss_bytes(broker.pid), open_files(broker.pid)
    async with trunkline.connect(broker.endpoint) as llm:
        script = json.dumps({"script": {"chunks": PIECES, "pace_ms": 10, "chunk_chars": 8}})
        good = asyncio.ensure_future(_texts(llm, "good", "any", script))
        failed = await _texts(llm, "bad", harm, "Hello.")
        assert failed.finish is not None
        assert failed.finish.kind == "error"
        assert failed.finish.failure is not None
        assert failed.finish.failure.code in {"TRANSPORT", "UNKNOWN"}
        assert failed.texts == ["so far so good"]
        whole = await asyncio.wait_for(good, 30 * SLOW)
        assert whole.finish is not None
        assert (len(whole.texts), whole.finish.kind) == (PIECES, "stop")
        # The bad one serves again: the same process, or the next one.
        await asyncio.to_thread(broker.until_ready, "bad")
        again = await _texts(llm, "bad", "nothing", "Hello.")
        assert again.texts == ["so far so good"]
    pids, memory, files = before
    assert broker.worker_pids()["good"] == pids
    await until_async(lambda: open_files(broker.pid) <= files, 10)
    assert rss_bytes(broker.pid) < memory + 16 * 1024 * 1024


class _Read:
    """What a stream brought."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.finish: trunkline.FinishReason | None = None


async def _texts(llm: trunkline.LlmRuntime, provider: str, model: str, text: str) -> _Read:
    read = _Read()
    async for chunk in llm.stream(provider=provider, model=model, messages=text):
        if isinstance(chunk, trunkline.TextDelta):
            read.texts.append(chunk.text)
        elif isinstance(chunk, trunkline.Finish):
            read.finish = chunk.reason
    return read


# --- keys -----------------------------------------------------------------------------------

FIRST, SECOND, FILED = "canary-first-5e1f", "canary-second-77ab", "canary-filed-90cd"
KEYS = """
[worker.one]
adapter = "scripted"
providers = ["one"]
env = ["FIRST_KEY"]

[worker.two]
adapter = "scripted"
providers = ["two"]
env = ["SECOND_KEY"]

[worker.three]
adapter = "scripted"
providers = ["three"]
env_file = "{path}"
"""
AGENT = "import sys, trunkline; print('here', flush=True); sys.stdin.read()"


def test_a_worker_s_key_is_in_no_other_process(tmp_path: Path) -> None:
    """Not in another worker, not in an agent; a key of a file is not even in the broker."""
    path = tmp_path / "three.env"
    path.write_text(f"THIRD_KEY={FILED}\n")
    path.chmod(0o600)
    environ = {"FIRST_KEY": FIRST, "SECOND_KEY": SECOND}
    with running_broker(KEYS.format(path=path), environ) as broker:
        for name in ("one", "two", "three"):
            broker.until_ready(name)
        pids = {name: each[0] for name, each in broker.worker_pids().items()}
        bare = {k: v for k, v in os.environ.items() if k not in environ}
        agent = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-c", AGENT],
            env={**bare, "TRUNKLINE_ENDPOINT": broker.endpoint},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert agent.stdout is not None
            assert agent.stdout.readline() == b"here\n"
            assert set(with_environment("FIRST_KEY", FIRST)) == {broker.pid, pids["one"]}
            assert set(with_environment("SECOND_KEY", SECOND)) == {broker.pid, pids["two"]}
            assert set(with_environment("THIRD_KEY", FILED)) == {pids["three"]}
            for canary in (FIRST, SECOND, FILED):
                _nowhere_else(canary, broker)
        finally:
            assert agent.stdin is not None
            agent.stdin.close()
            agent.wait(10 * SLOW)
            agent.stdout.close()
    until(lambda: not any(is_alive(pid) for pid in pids.values()), 10)


def _nowhere_else(canary: str, broker: BrokerProcess) -> None:
    """Neither in a log nor in any other file of the run directory, nor in a command line."""
    for file in broker.run_dir.rglob("*"):
        if file.is_file():
            assert canary.encode() not in file.read_bytes(), file
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            assert canary.encode() not in line
