"""Twenty streams through client, broker and worker, while one of the three goes away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import trunkline

from tests.support.broker import SCRIPTED, BrokerProcess, running_broker
from tests.support.processes import is_alive
from tests.support.timing import SLOW, until_async

pytestmark = pytest.mark.integration
STREAMS = 20
PIECES = 200
PACE_MS = 10


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """Yield one broker for all tests; each leaves it serving."""
    with running_broker(SCRIPTED) as running:
        yield running


@dataclass(slots=True)
class Seen:
    """What one stream has brought."""

    text: str = ""
    chunks: int = 0
    finish: trunkline.FinishReason | None = None
    ended_s: float = 0.0


async def _play(llm: trunkline.LlmRuntime, seen: Seen, pace_ms: int = PACE_MS) -> None:
    script = {"chunks": PIECES, "pace_ms": pace_ms}
    messages = json.dumps({"script": script})
    async for chunk in llm.stream(provider="scripted", model="any", messages=messages):
        seen.chunks += 1
        if isinstance(chunk, trunkline.TextDelta):
            seen.text += chunk.text
        elif isinstance(chunk, trunkline.Finish):
            seen.finish = chunk.reason
            seen.ended_s = time.monotonic()


class Streams:
    """Streams that run in the background; `whole` is what each must bring."""

    def __init__(self, llm: trunkline.LlmRuntime, whole: Seen) -> None:
        self.seen = [Seen() for _ in range(STREAMS)]
        self.whole = whole
        self.tasks = [asyncio.ensure_future(_play(llm, seen)) for seen in self.seen]

    async def begun(self) -> None:
        """Wait until each has brought chunks and none has ended."""
        await until_async(lambda: all(seen.chunks > 10 for seen in self.seen), 15)
        assert not any(seen.finish for seen in self.seen)

    async def ended(self) -> None:
        """Wait for the end of each."""
        await asyncio.wait_for(asyncio.gather(*self.tasks), 30 * SLOW)

    def assert_whole(self) -> None:
        """Nothing lost, nothing twice, in order, ended as undisturbed."""
        for seen in self.seen:
            assert seen.text == self.whole.text
            assert (seen.chunks, seen.finish) == (self.whole.chunks, self.whole.finish)


async def _streams(llm: trunkline.LlmRuntime, broker: BrokerProcess) -> Streams:
    await asyncio.to_thread(broker.until_ready, "scripted")
    whole = Seen()
    await _play(llm, whole, 0)
    assert whole.finish is not None
    assert whole.finish.kind == "stop"
    streams = Streams(llm, whole)
    await streams.begun()
    return streams


async def test_a_killed_broker_costs_no_chunk(broker: BrokerProcess) -> None:
    """SIGKILL, a new one half a second later: the same worker goes on, every stream is whole."""
    async with trunkline.connect(broker.endpoint) as llm:
        streams = await _streams(llm, broker)
        workers = await asyncio.to_thread(broker.worker_pids)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await streams.ended()
        streams.assert_whole()
        assert await asyncio.to_thread(broker.worker_pids) == workers


async def test_a_handover_costs_no_chunk(broker: BrokerProcess) -> None:
    """SIGUSR2, which is what a restart on purpose sends."""
    async with trunkline.connect(broker.endpoint) as llm:
        streams = await _streams(llm, broker)
        broker.signal(signal.SIGUSR2)
        assert await asyncio.to_thread(broker.wait) == 0
        await asyncio.to_thread(broker.start)
        await streams.ended()
        streams.assert_whole()


async def test_a_stop_lets_streams_end(broker: BrokerProcess) -> None:
    """SIGTERM drains: what runs ends whole, a new call is refused, then all of it is gone."""
    async with trunkline.connect(broker.endpoint) as llm:
        streams = await _streams(llm, broker)
        (worker,) = (await asyncio.to_thread(broker.worker_pids))["scripted"]
        broker.signal(signal.SIGTERM)
        late = Seen()
        await until_async(lambda: "stopping" in broker.log_text())
        await _play(llm, late)
        assert late.finish is not None
        assert late.finish.kind == "error"
        await streams.ended()
        streams.assert_whole()
        assert await asyncio.to_thread(broker.wait) == 0
        assert not is_alive(worker)
    await asyncio.to_thread(broker.start)


async def test_a_swap_costs_no_chunk(broker: BrokerProcess) -> None:
    """The old worker finishes what it has, the new one gets what comes."""
    async with trunkline.connect(broker.endpoint) as llm:
        streams = await _streams(llm, broker)
        report = await llm.query("swap", {"pool": "scripted"}, timeout_s=20 * SLOW)
        (slot,) = report["slots"]
        assert slot["newPid"] != slot["oldPid"]
        after = Seen()
        await _play(llm, after, 0)
        await streams.ended()
        streams.assert_whole()
        assert after.text == streams.whole.text
        await until_async(lambda: not is_alive(slot["oldPid"]), 10)


async def test_a_killed_worker_ends_its_calls_at_once(broker: BrokerProcess) -> None:
    """Each with one `TRANSPORT` finish that says how it died; what arrived was delivered."""
    async with trunkline.connect(broker.endpoint) as llm:
        streams = await _streams(llm, broker)
        (worker,) = (await asyncio.to_thread(broker.worker_pids))["scripted"]
        killed_s = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        await streams.ended()
        for seen in streams.seen:
            assert seen.finish is not None
            assert seen.finish.failure is not None
            assert seen.finish.failure.code == "TRANSPORT"
            assert "signal 9" in seen.finish.failure.message
            assert streams.whole.text.startswith(seen.text)
            assert seen.ended_s - killed_s < 0.2 * SLOW
        again = Seen()
        await _play(llm, again, 0)
        assert again.text == streams.whole.text
