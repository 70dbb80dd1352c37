"""A restart under clients and workers of an older minor version than the broker's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trunkline
from trunkline_protocol import codec, frames
from trunkline_protocol.ids import CallId, RouteName, StreamKey
from trunkline_workers.adapters.scripted.content import sha256, whole

from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.previous import previous_codec
from tests.support.timing import SLOW, until_async

pytestmark = pytest.mark.integration
STREAMS: Final = 10
CHUNKS: Final = 80
NEWER: Final = """\
import sys
from trunkline_protocol import limits
limits.PROTOCOL_MINOR += 1
from trunkline_broker.__main__ import main
sys.exit(main())
"""
WORKER: Final = """\
#!/bin/sh
while [ "$1" != trunkline_workers ]; do shift; done
shift
exec {python} -m tests.support.previous "$@"
"""
CONFIG: Final = """\
[worker.old]
adapter = "scripted"
providers = ["old"]
concurrency = {streams}
python = "{python}"
env = ["PYTHONPATH"]
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker of a newer minor version whose worker is of the previous one."""
    script = tmp_path_factory.mktemp("old") / "python"
    script.write_text(WORKER.format(python=sys.executable))
    script.chmod(0o700)
    environ = {"PYTHONPATH": str(Path(__file__).parents[2])}
    config = CONFIG.format(python=script, streams=STREAMS)
    with run_directory() as root:
        command = [sys.executable, "-c", NEWER, "--config", str(root / "test.toml")]
        with broker_in(root, config, environ, command) as running:
            running.start()
            running.until_ready("old")
            yield running


async def _texts(llm: trunkline.LlmRuntime, seed: int, heard: list[str]) -> str | None:
    """Read a stream; return how it ended."""
    script = {"chunks": CHUNKS, "pace_ms": 10, "seed": seed}
    stream = llm.stream(provider="old", model="any", messages=json.dumps({"script": script}))
    async for chunk in stream:
        heard += [chunk.text] if isinstance(chunk, trunkline.TextDelta) else []
    return stream.finish.kind if stream.finish is not None else None


@pytest.mark.parametrize("how", ["SIGUSR2", "SIGKILL"])
async def test_a_restart_costs_older_peers_nothing(broker: BrokerProcess, how: str) -> None:
    """Running streams go on at the same worker, queued calls wait on; all of it is whole."""
    with previous_codec():
        async with trunkline.connect(broker.endpoint) as llm:
            workers = await asyncio.to_thread(broker.worker_pids)
            heard: list[list[str]] = [[] for _ in range(STREAMS + 2)]  # two have to wait
            reads = [
                asyncio.ensure_future(_texts(llm, seed, texts)) for seed, texts in enumerate(heard)
            ]
            await until_async(lambda: sum(len(texts) > 5 for texts in heard) == STREAMS, 15)
            os.kill(broker.pid, signal.Signals[how])
            await asyncio.to_thread(broker.wait)
            await asyncio.to_thread(broker.start)
            assert await asyncio.wait_for(asyncio.gather(*reads), 30 * SLOW) == ["stop"] * len(
                reads
            )
            for seed, texts in enumerate(heard):
                assert sha256("".join(texts)) == sha256(whole(CHUNKS, 40, seed))
            assert await asyncio.to_thread(broker.worker_pids) == workers


def test_what_an_older_peer_sends_lacks_what_was_appended() -> None:
    """So the test above is about something; the reader puts the defaults in."""
    call, key, route = CallId(bytes(16)), StreamKey(bytes(8)), RouteName("r")
    entry = frames.Restated(call, 0, key, route, 1, 1, 9, is_recovered=True)
    restate = frames.Restate((entry,))
    opened = frames.Open(call, 0, key, route, "m", traceparent="00-x")
    with previous_codec():
        old = [codec.encode(frame) for frame in (restate, opened)]
    way = codec.Direction.CLIENT_TO_BROKER
    assert codec.decode(codec.encode(restate), way) == restate
    assert [codec.decode(parts, way) for parts in old] == [
        frames.Restate((frames.Restated(call, 0, key, route, 1, 1, 9),)),
        frames.Open(call, 0, key, route, "m"),
    ]
