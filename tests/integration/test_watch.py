"""`--watch`: whoever writes an adapter saves a file, and the next call is answered by it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trunkline
from trunkline_broker.cli.exits import ExitCode

from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.timing import SLOW, NotSoonEnoughError, until, until_async

pytestmark = pytest.mark.integration
COMMAND: Final = [sys.executable, "-m", "trunkline_broker.cli.entry"]
CONFIG: Final = """\
[worker.mine]
adapter = "mine.py:Mine"
providers = ["mine"]
options = { mark = "!" }
"""
ADAPTER: Final = """\
import asyncio
from pathlib import Path
from trunkline_protocol.chunks import BlockEnd, BlockStart, Finish, FinishReason, TextDelta
from trunkline_workers.adapter import LlmAdapter

HERE = Path(__file__).parent

async def until_there(name):
    while not (HERE / name).exists():
        await asyncio.sleep(0.005)

class Mine(LlmAdapter):
    def __init__(self, mark):
        self.mark = mark

    @classmethod
    def create(cls, context):
        return cls(context.options["mark"])

    async def open(self):
        if "slow" in ("WORD", self.mark):
            await until_there("opened")

    async def stream(self, options):
        yield [BlockStart(0, "text"), TextDelta(0, "WORD")]
        if options.model == "held":
            await until_there("released")
        yield [TextDelta(0, self.mark), BlockEnd(0, {"type": "text", "text": "WORD" + self.mark})]
        yield [Finish(FinishReason("stop"))]
"""


class Author:
    """Saves the adapter as an editor does: a new file takes the place of the old one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.save("one")

    def save(self, word: str) -> None:
        self.write(ADAPTER.replace("WORD", word))

    def write(self, text: str) -> None:
        fresh = self.directory / "mine.py.swp"
        fresh.write_text(text)
        fresh.replace(self.directory / "mine.py")

    def touch(self, name: str) -> None:
        (self.directory / name).touch()


@pytest.fixture
def root() -> Iterator[Path]:
    with run_directory() as directory:
        yield directory


async def said(llm: trunkline.LlmRuntime, model: str = "any") -> str:
    stream = llm.stream(provider="mine", model=model, messages="hi")
    chunks = [chunk async for chunk in stream]
    assert isinstance(chunks[-1], trunkline.Finish)
    assert chunks[-1].reason.kind == "stop"
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, trunkline.TextDelta))


def swaps(broker: BrokerProcess) -> int:
    return broker.status()["counters"].get("swaps", 0)


async def test_up_swaps_what_was_saved_and_keeps_what_serves(root: Path) -> None:
    """A stream goes on across a save; a broken file is refused; saves while a swap runs are one."""
    author = Author(root)
    command = [*COMMAND, "up", "--watch", "--config", str(root / "test.toml")]
    with broker_in(root, CONFIG, command=command) as broker:

        async def until_said(text: str) -> None:
            try:
                await until_async(lambda: text in broker.log_text(), 15)
            except NotSoonEnoughError:  # the log tells more than what was waited for
                pytest.fail(f"{text!r} is not in {broker.log_text()}")

        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(broker.until_ready, "mine")
        await until_said("watching the files of mine")
        async with trunkline.connect(broker.endpoint) as llm:
            held = llm.stream(provider="mine", model="held", messages="hi")
            first = [await anext(held), await anext(held)]
            author.save("two")
            await until_said("1 stream goes on with the old one")
            assert await said(llm) == "two!"
            author.touch("released")
            chunks = [*first, *[chunk async for chunk in held]]
            texts = [chunk.text for chunk in chunks if isinstance(chunk, trunkline.TextDelta)]
            assert texts == ["one", "!"]

            author.write("class Mine(:\n")
            await until_said("mine: not swapped, what served before goes on")
            assert "SyntaxError" in broker.log_text()
            assert await said(llm) == "two!"

            before = swaps(broker)
            author.save("slow")
            await until_async(lambda: swaps(broker) == before + 1)
            for word in ("three", "four", "five"):
                author.save(word)
            author.touch("opened")
            await until_async(lambda: broker.log_text().count(" -> pid ") == 3, 15)
            assert await said(llm) == "five!"
        assert broker.stop() == 0
        assert broker.log_text().count(" -> pid ") == 3


async def test_swap_follows_the_configuration_too(root: Path) -> None:
    """It waits for a swap that somebody else began. Ctrl-C ends the watching and nothing else."""
    author = Author(root)
    with broker_in(root, CONFIG) as broker:
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(broker.until_ready, "mine")
        environ = {**broker.environ, "TRUNKLINE_RUN_DIR": str(broker.run_dir)}
        output = root / "output"
        with output.open("wb") as sink:
            watch = subprocess.Popen(  # noqa: ASYNC220, S603  # our own program
                [*COMMAND, "swap", "mine", "--watch"], env=environ, stdout=sink, stderr=sink
            )
        try:
            await until_async(lambda: " -> pid " in output.read_text(), 15)
            broker.config.write_text(CONFIG.replace("!", "?"))
            await until_async(lambda: output.read_text().count(" -> pid ") == 2, 15)
            async with trunkline.connect(broker.endpoint) as llm:
                assert await said(llm) == "one?"
                other = root / "other.toml"
                other.write_text(CONFIG.replace("!", "slow"))
                argument = {"pool": "mine", "config": str(other)}
                swapping = asyncio.ensure_future(llm.query("swap", argument, timeout_s=30 * SLOW))
                await until_async(lambda: broker.status()["pools"][0]["swapping"])
                author.save("two")
                await until_async(lambda: "mine.py changed" in output.read_text(), 15)
                author.touch("opened")
                await swapping
                await until_async(lambda: output.read_text().count(" -> pid ") == 3, 15)
                assert await said(llm) == "twoslow"
                assert "SWAP_RUNNING" not in broker.status()["refused"]
            watch.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(watch.wait, 10 * SLOW) == ExitCode.INTERRUPTED
        finally:
            watch.kill()
            watch.wait()
        assert "Traceback" not in output.read_text()
        until(lambda: broker.status()["pools"][0]["state"] == "serving")
