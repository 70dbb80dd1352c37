"""A call outlives the agent that began it, and another one takes it over."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trunkline
from trunkline_workers.adapters.scripted.content import whole

from tests.support.broker import BrokerProcess, running_broker
from tests.support.timing import SLOW, until_async

pytestmark = pytest.mark.integration
CONFIG: Final = """\
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
[worker.scripted.options]
journal = "{journal}"
"""
AGENT: Final = """\
import asyncio, json, sys, trunkline
async def main():
    async with trunkline.connect(sys.argv[1]) as llm:
        stream = llm.stream(**json.loads(sys.argv[2]), detachable=True)
        await anext(stream)
        while stream.ticket is None:
            await asyncio.sleep(0.01)
        print(stream.ticket, flush=True)
        async for chunk in stream:
            pass
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal") / "journal"


@pytest.fixture(scope="module")
def broker(journal: Path) -> Iterator[BrokerProcess]:
    """Yield one broker for all tests."""
    with running_broker(CONFIG.format(journal=journal)) as running:
        running.until_ready("scripted")
        yield running


def asked(session: str, **script: Any) -> dict[str, Any]:
    text = json.dumps({"script": script})
    return {"provider": "scripted", "model": "m", "messages": text, "session_id": session}


def ends(journal: Path, session: str) -> list[str]:
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    return [line["event"] for line in lines if line["sessionId"] == session]


async def ticket_of(stream: trunkline.Stream) -> str:
    await until_async(lambda: stream.ticket is not None)
    assert stream.ticket is not None
    return stream.ticket


async def text_of(stream: trunkline.Stream) -> tuple[str, trunkline.FinishReason]:
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, trunkline.TextDelta))
    assert isinstance(chunks[-1], trunkline.Finish)
    return text, chunks[-1].reason


async def test_the_call_of_a_killed_agent_is_taken_over(
    broker: BrokerProcess, journal: Path
) -> None:
    """It goes on far beyond its window, and the second agent gets all of it, to the letter."""
    script = {"chunks": 4_000, "batch": 8, "pace_ms": 1}
    command = [sys.executable, "-c", AGENT, broker.endpoint, json.dumps(asked("killed", **script))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:  # noqa: ASYNC220, S603
        assert agent.stdout is not None
        ticket = (await asyncio.to_thread(agent.stdout.readline)).strip()
        agent.kill()
    async with trunkline.connect(broker.endpoint) as llm:
        stream = llm.attach(ticket)
        text, finish = await asyncio.wait_for(text_of(stream), 20 * SLOW)
        assert finish.kind == "stop"
        assert text == whole(4_000, 40)
        assert stream.provider == "scripted"
    # Read to its finish, not cancelled; the worker writes that after the finish has left.
    await until_async(lambda: ends(journal, "killed") == ["start", "closed"])


async def test_nobody_attached_and_then_somebody(broker: BrokerProcess, journal: Path) -> None:
    """Leaving the runtime ends the stream here only; the result waits for whoever comes."""
    async with trunkline.connect(broker.endpoint) as first:
        stream = first.stream(**asked("left", chunks=3_000, batch=16), detachable=True)
        await anext(stream)
        ticket = await ticket_of(stream)
    assert [chunk async for chunk in stream][-1].reason.kind == "aborted"
    await until_async(lambda: ends(journal, "left") == ["start", "closed"])
    async with trunkline.connect(broker.endpoint) as second:
        attached = second.attach(ticket)
        text, finish = await text_of(attached)
        assert (text, finish.kind) == (whole(3_000, 40), "stop")
        assert attached.usage is not None
    await until_async(lambda: broker.status()["calls"]["open"] == 0)


async def test_attaching_to_a_call_that_is_read_takes_it_away(broker: BrokerProcess) -> None:
    """The first reader's stream ends in `aborted` and says why."""
    async with (
        trunkline.connect(broker.endpoint) as first,
        trunkline.connect(broker.endpoint) as second,
    ):
        stream = first.stream(**asked("taken", chunks=300, pace_ms=5), detachable=True)
        await anext(stream)
        ticket = await ticket_of(stream)
        attached = asyncio.ensure_future(text_of(second.attach(ticket)))
        _, finish = await text_of(stream)
        assert finish.kind == "aborted"
        assert finish.failure is not None
        assert "another client" in finish.failure.message
        text, finish = await attached
        assert (text, finish.kind) == (whole(300, 40), "stop")


async def test_a_detached_call_can_be_cancelled(broker: BrokerProcess, journal: Path) -> None:
    """By whoever has the ticket."""
    async with trunkline.connect(broker.endpoint) as first:
        stream = first.stream(**asked("stopped", chunks=10_000, pace_ms=5), detachable=True)
        await anext(stream)
        ticket = await ticket_of(stream)
    async with trunkline.connect(broker.endpoint) as second:
        attached = second.attach(ticket)
        await anext(attached)
        attached.cancel()
        await until_async(lambda: ends(journal, "stopped") == ["start", "cancelled"])


async def test_a_call_with_more_than_may_be_kept_ends(broker: BrokerProcess) -> None:
    """16 MiB, then `OVERLOADED`; whoever attaches hears it."""
    script = {"chunks": 400, "chunk_chars": 64 * 1024, "is_constant": True, "pace_ms": 1}
    async with trunkline.connect(broker.endpoint) as first:
        stream = first.stream(**asked("large", **script), detachable=True)
        await anext(stream)
        ticket = await ticket_of(stream)
    await until_async(lambda: broker.status()["calls"]["running"] == 0, 20)
    async with trunkline.connect(broker.endpoint) as second:
        _, finish = await text_of(second.attach(ticket))
        assert finish.failure is not None
        assert finish.failure.code == "OVERLOADED"


async def test_a_stream_survives_a_killed_broker_after_it_was_attached(
    broker: BrokerProcess,
) -> None:
    """It is a stream like any other then."""
    async with trunkline.connect(broker.endpoint) as first:
        stream = first.stream(**asked("both", chunks=600, pace_ms=5), detachable=True)
        await anext(stream)
        ticket = await ticket_of(stream)
    async with trunkline.connect(broker.endpoint) as second:
        attached = second.attach(ticket)
        await anext(attached)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        chunks = [chunk async for chunk in attached]
        assert chunks[-1].reason.kind == "stop"


async def test_a_call_that_nobody_reads_survives_a_killed_broker(broker: BrokerProcess) -> None:
    """The new broker waits for no client of it, and knows its ticket."""

    def is_alone() -> bool:
        document = broker.status()
        readers = [row for row in document["clients"] if row["openCalls"]]
        return document["calls"]["running"] == 1 and not readers

    async with trunkline.connect(broker.endpoint) as first:
        # Longer than any restart takes on a busy machine; it is cancelled at last.
        stream = first.stream(**asked("alone", chunks=10_000, pace_ms=8), detachable=True)
        await anext(stream)
        ticket = await ticket_of(stream)
    await until_async(is_alone)
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)
    await until_async(is_alone)
    wrong = ticket.replace(ticket.split(".")[1], "00" * 16)
    async with trunkline.connect(broker.endpoint) as second:
        _, finish = await text_of(second.attach(wrong))
        assert finish.failure is not None
        assert finish.failure.code == "STREAM_CLOSED"
    async with trunkline.connect(broker.endpoint) as third:
        attached = third.attach(ticket)
        pieces: list[str] = []
        async with asyncio.timeout(20 * SLOW):
            async for chunk in attached:
                if isinstance(chunk, trunkline.TextDelta):
                    pieces.append(chunk.text)
                if len(pieces) == 20:  # the first one is all that was said before
                    attached.cancel()
        assert whole(10_000, 40).startswith("".join(pieces))
        assert len(pieces) >= 20
    await until_async(lambda: broker.status()["calls"]["open"] == 0)


@pytest.mark.parametrize("what", ["wrong token", "unknown call", "not detachable"])
async def test_a_ticket_that_nobody_honours(broker: BrokerProcess, what: str) -> None:
    """One failed finish; the call itself is not touched."""
    async with (
        trunkline.connect(broker.endpoint) as first,
        trunkline.connect(broker.endpoint) as second,
    ):
        is_detachable = what != "not detachable"
        stream = first.stream(**asked(what, chunks=60, pace_ms=5), detachable=is_detachable)
        await anext(stream)
        call, token = stream.call_id.hex(), "00" * 16
        if what == "unknown call":
            call = "11" * 16
        _, finish = await text_of(second.attach(f"{call}.{token}.scripted/m"))
        assert finish.failure is not None
        assert finish.failure.code == "STREAM_CLOSED"
        assert (await text_of(stream))[1].kind == "stop"
        with pytest.raises(trunkline.LocalProtocolError):
            second.attach("no ticket")
