"""Broker SIGKILL with everything under way: many streams, queues, budgets, prepared calls, swaps.

A few streams by default. `SCALE=5 pytest tests/integration/test_broker_killed.py` is the full
figure: 200 streams, killed three times; 100 swaps under 200 streams.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import trunkline
from trunkline_workers.adapters.scripted.content import sha256, whole

from tests.support.broker import BrokerProcess, running_broker
from tests.support.timing import SLOW, until_async

pytestmark = pytest.mark.integration
SCALE: Final = int(os.environ.get("SCALE", "1"))
STREAMS: Final = 40 * SCALE
KILLS: Final = 1 if SCALE == 1 else 3
SWAPS: Final = 4 if SCALE == 1 else 20 * SCALE
CHUNKS: Final = 100 if SCALE == 1 else 250
PACE_MS: Final = 20 if SCALE == 1 else 100
CHARS: Final = 40
CONFIG: Final = """\
[worker.many]
adapter = "scripted"
providers = ["many"]
replicas = 2
[worker.many.options]
journal = "{journal}"
[worker.one]
adapter = "scripted"
providers = ["one"]
concurrency = 1
[worker.one.options]
journal = "{journal}"
"""
FAILING: Final = """\
[worker.{name}]
adapter = "scripted"
providers = ["{name}"]
[worker.{name}.options]
journal = "{journal}"
script = {{ at = {{ 0 = {{ raise = {{ code = "SERVER", message = "no" }} }} }} }}
[worker.{name}.options.retryPolicy]
mode = "normal"
maxRetries = 2
backoff = {{ initialDelayMs = {delay_ms}, maxDelayMs = {delay_ms}, jitterRatio = 0 }}
"""
DELAYS_MS: Final = {"soon": 300, "late": 1700}


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file in which the fake provider notes its requests."""
    return tmp_path_factory.mktemp("journal") / "journal"


@pytest.fixture(scope="module")
def broker(journal: Path) -> Iterator[BrokerProcess]:
    """Yield one broker for all tests; each leaves it serving."""
    config = CONFIG.format(journal=journal)
    for name, delay_ms in DELAYS_MS.items():
        config += FAILING.format(journal=journal, name=name, delay_ms=delay_ms)
    with running_broker(config) as running:
        for pool in ("many", "one", *DELAYS_MS):
            running.until_ready(pool)
        yield running


class Stream:
    """A stream that runs in the background, and the hash of what it must bring."""

    def __init__(self, llm: trunkline.LlmRuntime, provider: str, seed: int, **script: Any) -> None:
        text = json.dumps({"script": {"chunk_chars": CHARS, "seed": seed, **script}})
        self.session = f"{provider}-{seed}"  # a seed is of one call only
        self.expected = sha256(whole(script["chunks"], CHARS, seed))
        self.pieces: list[str] = []
        self.finish: trunkline.FinishReason | None = None
        self._stream = llm.stream(
            provider=provider, model="any", messages=text, session_id=self.session
        )
        self.task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for chunk in self._stream:
            if isinstance(chunk, trunkline.TextDelta):
                self.pieces.append(chunk.text)
            elif isinstance(chunk, trunkline.Finish):
                self.finish = chunk.reason

    def fault(self) -> str:
        """Say what is wrong with how it ended; nothing if all is well."""
        if self.finish is None or self.finish.kind != "stop":
            return f"{self.session}: {self.finish}"
        is_whole = sha256("".join(self.pieces)) == self.expected
        return "" if is_whole else f"{self.session}: {len(self.pieces)} pieces, not as played"


def noted(journal: Path) -> list[tuple[str, str]]:
    """Return what the fake provider noted: the call, and that it starts or how it ends."""
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    return [(line["sessionId"], line["event"]) for line in lines]


def starts(journal: Path) -> Counter[str]:
    """Return how often the provider was asked, by call."""
    return Counter(session for session, event in noted(journal) if event == "start")


async def exchange(broker: BrokerProcess) -> None:
    """Kill the broker and start the next one."""
    broker.signal(signal.SIGKILL)
    await asyncio.to_thread(broker.wait)
    await asyncio.to_thread(broker.start)


async def ended(streams: list[Stream], journal: Path) -> None:
    """Wait for the end of each: whole, and asked of the provider once."""
    tasks = [stream.task for stream in streams]
    await asyncio.wait_for(asyncio.gather(*tasks), 60 * SLOW)
    assert [fault for stream in streams if (fault := stream.fault())] == []
    count = starts(journal)
    assert {stream.session: count[stream.session] for stream in streams} == {
        stream.session: 1 for stream in streams
    }


async def test_every_stream_survives_a_killed_broker(broker: BrokerProcess, journal: Path) -> None:
    """Byte for byte, from the workers that had them, at a moment that a seed draws."""
    random = Random(6)  # noqa: S311  no secret
    async with trunkline.connect(broker.endpoint) as llm:
        await asyncio.to_thread(broker.until_ready, "many")
        workers = (await asyncio.to_thread(broker.worker_pids))["many"]
        streams = [
            Stream(llm, "many", seed, chunks=CHUNKS, pace_ms=PACE_MS) for seed in range(STREAMS)
        ]
        part = CHUNKS // (KILLS + 1)
        for number in range(KILLS):
            mark = number * part + random.randrange(1, part)
            await until_async(lambda mark=mark: all(len(s.pieces) > mark for s in streams), 60)
            assert not any(stream.finish for stream in streams)
            await exchange(broker)
        await ended(streams, journal)
        assert sorted((await asyncio.to_thread(broker.worker_pids))["many"]) == sorted(workers)


async def test_queued_calls_survive_a_killed_broker(broker: BrokerProcess, journal: Path) -> None:
    """They wait on, still one at a time, and each is asked of the provider once."""
    async with trunkline.connect(broker.endpoint) as llm:
        first = Stream(llm, "one", 0, chunks=int(150 * SLOW), pace_ms=20)
        await until_async(lambda: first.pieces)
        queued = [Stream(llm, "one", seed, chunks=10) for seed in range(1, 6)]
        await until_async(lambda: broker.status()["calls"]["queued"] == len(queued))
        await exchange(broker)
        await until_async(lambda: broker.status()["calls"]["queued"] == len(queued))
        assert first.finish is None
        await ended([first, *queued], journal)

        def events() -> list[bool]:
            return [what == "start" for name, what in noted(journal) if name.startswith("one-")]

        # The provider notes an end after its last chunk was sent.
        await until_async(lambda: len(events()) == 2 * (1 + len(queued)))
        assert events() == [True, False] * (1 + len(queued))


@pytest.mark.parametrize("name", DELAYS_MS)
async def test_a_budget_survives_a_killed_broker(
    broker: BrokerProcess, journal: Path, name: str
) -> None:
    """Two retries in all, whether the delay is over when the next broker comes or not."""
    async with trunkline.connect(broker.endpoint) as llm:
        events: list[trunkline.RetryEvent] = []
        called = llm.generate(
            provider=name,
            model="any",
            messages="x",
            session_id=name,
            on_retry=events.append,
        )
        call = asyncio.ensure_future(called)
        for attempts in (1, 2):
            waiting = 2 * attempts - 1  # `retry`, then `retry-started` and `retry`
            await until_async(lambda waiting=waiting: len(events) >= waiting, 25)
            assert starts(journal)[name] == attempts
            await exchange(broker)
        result = await asyncio.wait_for(call, 20 * SLOW)
        assert (result.finish.kind, result.attempts) == ("error", 3)
        assert result.failure is not None
        assert result.failure.code == "SERVER"
        assert starts(journal)[name] == 3
        assert [(event.type, event.retry.retry) for event in events] == [
            ("retry", 1), ("retry-started", 1), ("retry", 2), ("retry-started", 2),
        ]  # fmt: skip
        assert {event.retry.failure.code for event in events} == {"SERVER"}


async def test_a_prepared_call_survives_a_killed_broker(
    broker: BrokerProcess, journal: Path
) -> None:
    """Its worker holds it; it is dispatched by the next broker, to that worker, once."""
    async with trunkline.connect(broker.endpoint) as llm:
        await asyncio.to_thread(broker.until_ready, "many")
        prepared = await llm.prepare_call({"provider": "many", "model": "any"})
        await exchange(broker)
        chunks = [chunk async for chunk in prepared.stream(messages="x", session_id="kept")]
        assert isinstance(chunks[-1], trunkline.Finish)
        assert chunks[-1].reason.kind == "stop"
        assert starts(journal)["kept"] == 1


async def test_swap_after_swap_under_many_streams(broker: BrokerProcess, journal: Path) -> None:
    """Streams run all the time, each ends whole, and no call fails."""
    async with trunkline.connect(broker.endpoint) as llm:
        await asyncio.to_thread(broker.until_ready, "many")
        running: list[Stream] = []
        over: list[Stream] = []
        seed = 10_000
        failed = (await llm.status())["counters"].get("calls_failed", 0)
        for _ in range(SWAPS):
            over += [stream for stream in running if stream.task.done()]
            running = [stream for stream in running if not stream.task.done()]
            while len(running) < STREAMS:
                running.append(Stream(llm, "many", seed, chunks=CHUNKS, pace_ms=PACE_MS))
                seed += 1
            await llm.query("swap", {"pool": "many"}, timeout_s=60 * SLOW)
        await ended([*over, *running], journal)
        assert (await llm.status())["counters"].get("calls_failed", 0) == failed


async def test_the_status_shows_every_queue(broker: BrokerProcess) -> None:
    """With depth, high-water mark and bound; those of workers and agents as they said last."""
    async with trunkline.connect(broker.endpoint, name="reads nothing") as llm:
        stream = llm.stream(
            provider="many",
            model="any",
            messages=json.dumps({"script": {"chunks": 50_000, "batch": 64}}),
        )
        async with stream:  # nobody reads: its window fills

            def kept() -> list[dict[str, Any]]:
                rows = broker.status()["queues"]
                found = [r for r in rows if r["name"].endswith("kept bytes") and r["depth"]]
                return found if len(found) == 1 else []  # a second one's heartbeat is old

            (row,) = await until_async(kept)
            assert 0 < row["depth"] <= row["highWater"]
            assert row["bound"] >= 1 << 20

            def unread() -> dict[str, Any]:
                """Return what the agent has told of itself, some time after it fell quiet."""
                rows = broker.status()["queues"]
                said = {r["name"]: r for r in rows if " reads nothing " in r["name"]}
                return {name.rpartition("nothing ")[2]: row for name, row in said.items()}

            told = await until_async(unread)
            own = {queue.name: queue for queue in llm.queues()}
            assert own["chunks"].depth == told["chunks"]["depth"] > 100
            assert set(told) == set(own)
            document = await llm.status()
        rows = document["queues"] + document["tables"]
        assert {
            "attachment steps",
            "calls",
            "claims",
            "clients",
            "frames to clients",
            "frames to workers",
            "held queries",
            "held uploads",
            "log lines",
            "queries",
            "queued bytes",
            "unsettled calls",
            "usage ledger",
            "workers",
        } <= {row["name"] for row in rows}
        of_workers = {row["name"].partition(" pid ")[2].partition(" ")[2] for row in rows}
        assert {"queries", "kept bytes", "waiting items", "calls", "leases"} <= of_workers
        for row in rows:
            assert 0 <= row["depth"] <= row["highWater"] <= row["bound"], row
        peers = {row["name"]: row["bound"] for row in document["peerQueues"]}
        assert peers["frames to each client"] == peers["frames to each worker"] == 8192
        assert peers["chunks to each client"] == 4096
