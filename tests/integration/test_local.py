"""The local adapter: llama.cpp's real server and a real small model."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from trunkline_protocol.chunks import BlockEnd, Finish, TextDelta, Usage
from trunkline_protocol.failure import LlmError
from trunkline_protocol.options import ToolSchema
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.local.adapter import LocalAdapter
from trunkline_workers.adapters.local.model_file import find_model

from tests.field.scenarios import read
from tests.support.calls import a_request, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None or find_model() is None,
        reason="the local engine and model are not installed (trunkline setup local)",
    ),
]
SLOTS = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local() -> AsyncIterator[LocalAdapter]:
    """Start the engine once: loading takes most of a second."""
    adapter = LocalAdapter.create(
        AdapterContext(name="local", options={"slots": SLOTS, "contextWindow": 512})
    )
    await adapter.open()
    yield adapter
    await adapter.close()


async def busy_slots(adapter: LocalAdapter) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        slots = (await client.get(f"{adapter.base_url}/slots")).json()
    return sum(slot["is_processing"] for slot in slots)


async def is_idle(adapter: LocalAdapter) -> bool:
    return await busy_slots(adapter) == 0


async def test_a_chat_answer(local: LocalAdapter) -> None:
    """Text arrives in many chunks, with usage and a finish."""
    lists = [some async for some in local.stream(a_request("Say hello.", max_tokens=24))]
    chunks = [chunk for some in lists for chunk in some]
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))
    assert text.strip()
    assert len(lists) > 1
    ends = [chunk for chunk in chunks if isinstance(chunk, BlockEnd)]
    assert [dict(end.block or {}) for end in ends] == [{"type": "text", "text": text}]
    usage = next(chunk.usage for chunk in chunks if isinstance(chunk, Usage))
    assert usage.input_tokens + (usage.cache_read_tokens or 0) > 0
    assert 0 < usage.output_tokens <= 24
    last = chunks[-1]
    assert isinstance(last, Finish)
    assert last.reason.kind in {"stop", "max-tokens"}


async def test_the_limit_of_the_output(local: LocalAdapter) -> None:
    """Few tokens end in `max-tokens`."""
    chunks, failure = await read(local, a_request("Tell me a long story.", max_tokens=4))  # type: ignore[arg-type]
    assert failure is None
    assert chunks[-1].to_dict() == {"type": "finish", "reason": {"kind": "max-tokens"}}


async def test_stop_sequences(local: LocalAdapter) -> None:
    """Generation halts at the text, which is no part of the answer."""
    request = a_request("Count: one two three four five six.", stop=("a", "e", "o"), max_tokens=64)
    chunks, failure = await read(local, request)  # type: ignore[arg-type]
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))
    # An answer that begins with a stop text is empty, and said to be.
    assert failure is None or failure.code == "EMPTY_RESPONSE"
    assert not set(text) & {"a", "e", "o"}


async def test_a_request_beyond_the_window(local: LocalAdapter) -> None:
    """HTTP 400 with a numeric code is an overflow, told before any chunk."""
    chunks, failure = await read(local, a_request("word " * 2000))  # type: ignore[arg-type]
    assert not chunks
    assert failure is not None
    assert (failure.code, failure.status) == ("CONTEXT_WINDOW_EXCEEDED", 400)


async def test_a_cancel_frees_its_slot(local: LocalAdapter) -> None:
    """The engine stops generating soon after the reader has gone."""
    request = a_request("Write a very long story about a river.", max_tokens=400)
    streams = [local.stream(request) for _ in range(SLOTS)]
    await asyncio.gather(*(anext(stream) for stream in streams))
    assert await busy_slots(local) == SLOTS
    await asyncio.gather(*(stream.aclose() for stream in streams))  # type: ignore[attr-defined]
    await until(lambda: is_idle(local))
    chunks, failure = await read(local, a_request("Hi", max_tokens=2))  # type: ignore[arg-type]
    assert failure is None
    assert chunks


async def test_a_call_that_waits_for_a_slot(local: LocalAdapter) -> None:
    """More calls than slots all end well."""
    requests = [a_request(f"Say {n}.", max_tokens=8) for n in range(SLOTS * 2)]
    results = await asyncio.gather(*(read(local, request) for request in requests))  # type: ignore[arg-type]
    assert [failure for _, failure in results] == [None] * len(requests)


async def test_tools_are_sent(local: LocalAdapter) -> None:
    """A tool call comes where the model yields one; this small one answers in text mostly."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = ToolSchema(name="weather", description="Weather of a city", parameters=parameters)
    request = a_request("What is the weather in Oslo?", tools=(tool,), max_tokens=16)
    chunks, failure = await read(local, request)  # type: ignore[arg-type]
    assert failure is None
    last = chunks[-1]
    assert isinstance(last, Finish)
    if last.reason.kind == "tool-calls":
        ends = [dict(c.block or {}) for c in chunks if isinstance(c, BlockEnd)]
        calls = [block for block in ends if block["type"] == "tool-call"]
        assert all(isinstance(json.loads(str(call["arguments"])), dict) for call in calls)


async def test_the_model_is_described(local: LocalAdapter) -> None:
    """Catalog and resolution know the file and its limits."""
    (model,) = await local.list_models("local")
    assert model.id.startswith("SmolLM2")
    found = await local.resolve_model("local", model.id)
    assert found.context is not None
    assert found.context.context_window == 512
    assert found.default_max_tokens
    assert found.reasoning is None


async def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """No file, or one that is no model: the error says what to do."""
    absent, broken = tmp_path / "absent.gguf", tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF nonsense")
    for path, said in ((absent, "trunkline setup local"), (broken, "could not be loaded")):
        options: dict[str, Any] = {"modelPath": str(path)}
        adapter = LocalAdapter.create(AdapterContext(name="local", options=options))
        with pytest.raises(LlmError, match=said):
            await adapter.open()
        await adapter.close()
