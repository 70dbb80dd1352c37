"""Adapter-private replay state: to whom it goes, also after the adapter's worker was replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import trunkline

from tests.support.broker import BrokerProcess
from tests.support.control import Control, controlled_broker

pytestmark = pytest.mark.integration

STATE = {"response": {"id": "r-1", "native": [1, {"x": None}]}, "blocks": ["text", "call"]}
CALL = {"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"}
CHUNKS = [
    {"type": "block-end", "index": 0, "block": {"type": "text", "text": "hi"}},
    {"type": "block-end", "index": 1, "block": CALL},
    {"type": "usage", "usage": {"inputTokens": 1, "outputTokens": 2}},
]


def finish(kind: str) -> dict[str, Any]:
    """Return a finish that carries the state."""
    return {"type": "finish", "reason": {"kind": kind}, "replayState": STATE}


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[BrokerProcess, Control]]:
    """Yield one broker with two workers that obey."""
    with controlled_broker(("one", "two")) as (broker, control):
        yield broker, control


def register(control: Control, pool: str, route: str, **plan: Any) -> None:
    """Register a route of its own adapter."""
    control.ask(pool, "register", handle=route, adapter=route, providers=[route], plan=plan)


def sources(control: Control, pool: str, route: str) -> list[Any]:
    """Return the source of the assistant message in each request that an adapter saw."""
    seen = control.ask(pool, "seen", adapter=route)["requests"]
    return [request["messages"][1]["source"] for request in seen if len(request["messages"]) > 1]


async def test_the_state_reaches_its_owner_and_nobody_else(
    world: tuple[BrokerProcess, Control],
) -> None:
    """The result prunes it with the blocks; a new worker of the same pool still owns it."""
    broker, control = world
    register(control, "one", "a", chunks=[*CHUNKS, finish("tool-calls")])
    register(control, "one", "same worker")
    register(control, "two", "other worker")
    async with trunkline.connect(broker.endpoint) as llm:
        whole = await llm.generate(provider="a", model="m", messages="hello")
        source = whole.message.to_dict()["source"]
        assert source == {"kind": "model", "provider": "a", "model": "m", "replayState": STATE}
        assert whole.usage is not None
        assert (whole.usage.output_tokens, whole.attempts) == (2, 1)
        control.ask("one", "plan", adapter="a", plan={"chunks": [*CHUNKS, finish("max-tokens")]})
        cut = await llm.generate(provider="a", model="m", messages="hello")
        kept = cut.message.to_dict()
        assert kept["content"] == [{"type": "text", "text": "hi"}]
        assert kept["source"]["replayState"] == {**STATE, "blocks": ["text"]}  # type: ignore[index]
        conversation = ["hello", whole.message, "go on"]
        for route in ("a", "same worker", "other worker"):
            await llm.generate(provider=route, model="m", messages=conversation)
        bare = {"kind": "model", "provider": "a", "model": "m"}
        assert sources(control, "one", "a") == [source]
        assert sources(control, "one", "same worker") == [bare]
        assert sources(control, "two", "other worker") == [bare]
        await llm.query("swap", {"pool": "one"}, timeout_s=20)
        await asyncio.to_thread(control.await_worker, "one")
        register(control, "one", "a")
        await llm.generate(provider="a", model="m", messages=conversation)
        assert sources(control, "one", "a") == [source]
