"""A real model behind broker and worker process, called by a client."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import trunkline
from trunkline_protocol.chunks import Finish
from trunkline_workers.adapters.local.model_file import find_model

from tests.support.broker import BrokerProcess, broker_process
from tests.support.calls import a_request, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None or find_model() is None,
        reason="the local engine and model are not installed (trunkline setup local)",
    ),
]
CONFIG = """\
[worker.local]
adapter = "local"
options = { slots = 1, contextWindow = 512 }
"""


@dataclass
class World:
    """A broker whose worker holds the model, and a client."""

    broker: BrokerProcess
    runtime: trunkline.LlmRuntime
    engine_url: str

    async def busy_slots(self) -> int:
        """Ask the engine how many conversations it generates."""
        async with httpx.AsyncClient(trust_env=False) as client:
            slots = (await client.get(f"{self.engine_url}/slots")).json()
        return sum(slot["is_processing"] for slot in slots)

    async def generate(self, text: str, **fields: object) -> trunkline.GenerateResult:
        request = a_request(text, provider="local", model="any", **fields)
        return await self.runtime.generate(request, recovery="none")


def _listening_port(pid: int) -> int:
    """Return the port on which a process listens, as the kernel knows it."""
    links = [entry.readlink() for entry in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {str(link)[8:-1] for link in links if str(link).startswith("socket:[")}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            return int(fields[1].rpartition(":")[2], 16)
    raise AssertionError("the worker listens on no port")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    """Load the model once."""
    async with broker_process(CONFIG) as broker:
        await asyncio.to_thread(broker.until_ready, "local", 60)
        (pid,) = broker.worker_pids()["local"]
        async with trunkline.connect(broker.endpoint, timeout_s=10) as runtime:
            yield World(broker, runtime, f"http://127.0.0.1:{_listening_port(pid)}")


async def test_a_chat_answer(world: World) -> None:
    """Text comes in many chunks, with usage and a finish."""
    async with world.runtime.stream(
        a_request("Say hello.", provider="local", model="any", max_tokens=24)
    ) as stream:
        chunks = [chunk async for chunk in stream]
    texts = [chunk.text for chunk in chunks if isinstance(chunk, trunkline.TextDelta)]
    assert len(texts) > 1
    assert stream.usage is not None
    assert 0 < stream.usage.output_tokens <= 24
    assert isinstance(chunks[-1], Finish)
    assert chunks[-1].reason.kind in {"stop", "max-tokens"}


async def test_stop_sequences(world: World) -> None:
    """The text that stops the answer is no part of it."""
    result = await world.generate("Count from one to nine.", stop=("e",), max_tokens=48)
    assert result.failure is None or result.failure.code == "EMPTY_RESPONSE"
    assert "e" not in result.text


async def test_a_request_beyond_the_window(world: World) -> None:
    """The engine refuses it with HTTP 400 and a numeric code."""
    result = await world.generate("word " * 2000)
    assert result.failure is not None
    assert (result.failure.code, result.failure.status) == ("CONTEXT_WINDOW_EXCEEDED", 400)


async def test_a_cancel_in_mid_stream_frees_the_slot(world: World) -> None:
    """The engine stops generating when the client has gone."""
    request = a_request(
        "Write a very long story about a river.", provider="local", model="any", max_tokens=450
    )
    async with world.runtime.stream(request) as stream:
        async for chunk in stream:
            if isinstance(chunk, trunkline.TextDelta):
                break
        assert await world.busy_slots() == 1
    await until(lambda: _is_idle(world))
    result = await world.generate("Hi", max_tokens=2)
    assert result.failure is None


async def _is_idle(world: World) -> bool:
    return await world.busy_slots() == 0


async def test_a_cancel_while_waiting_for_the_slot(world: World) -> None:
    """A call that the engine has not begun goes away as well."""
    long = a_request("Tell a long story.", provider="local", model="any", max_tokens=450)
    async with world.runtime.stream(long) as first:
        await anext(first)
        waiting = world.runtime.stream(long)
        reading = asyncio.ensure_future(anext(waiting))
        await until(lambda: _in_flight(world) == 2)
        waiting.cancel()
        await waiting.aclose()
        await asyncio.wait({reading})
        reading.exception()
        await until(lambda: _in_flight(world) == 1)
    await until(lambda: _is_idle(world))


def _in_flight(world: World) -> int:
    routes = {entry["provider"]: entry for entry in world.broker.status()["routes"]}
    return routes["local"]["inFlight"]
