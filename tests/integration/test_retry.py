"""Retries from end to end: a broker decides, a worker fails as told, a client goes on or not."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trunkline
from trunkline import Code, LlmRuntime, RetryEvent, TextDelta

from tests.support.broker import BrokerProcess, running_broker
from tests.support.control import Control, controlled_broker
from tests.support.timing import SLOW, until_async

pytestmark = pytest.mark.integration

ASK = {"provider": "a", "model": "m", "messages": "hello"}
BEGUN = [
    {"type": "block-start", "index": 0, "blockType": "text"},
    {"type": "text-delta", "index": 0, "text": "half"},
]
FAST = {"initialDelayMs": 5, "maxDelayMs": 20, "jitterRatio": 0}
NORMAL = {"mode": "normal", "maxRetries": 2, "backoff": FAST}


def failing(code: str = "SERVER", chunks: Any = (), **options: Any) -> dict[str, Any]:
    """Return the plan of an attempt that fails."""
    thrown = {"kind": "LlmError", "message": "no", "code": code, "options": options}
    return {"chunks": list(chunks), "failAt": "next", "thrown": thrown}


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[BrokerProcess, Control]]:
    """Yield one broker with one worker that obeys."""
    with controlled_broker(("one",)) as (broker, control):
        yield broker, control


@pytest.fixture
def control(world: tuple[BrokerProcess, Control]) -> Iterator[Control]:
    yield world[1]
    world[1].ask("one", "reset")


@pytest.fixture
async def llm(world: tuple[BrokerProcess, Control], control: Control) -> AsyncIterator[LlmRuntime]:
    """Yield a client of that broker."""
    async with trunkline.connect(world[0].endpoint) as runtime:
        yield runtime


def register(
    control: Control, *attempts: dict[str, Any], policy: Any = None, route: str = "a"
) -> None:
    """Register a route whose attempts go like this, and well when none is left."""
    plan = {"policy": policy or NORMAL, "attempts": list(attempts)}
    control.ask("one", "register", handle=route, adapter=route, providers=[route], plan=plan)


def begun(control: Control, route: str = "a") -> int:
    """Return how many attempts have reached the adapter."""
    return len(control.ask("one", "seen", adapter=route)["requests"])


async def test_generate_recovers_by_default(llm: LlmRuntime, control: Control) -> None:
    """Also after chunks of a failed attempt; the result is of the last attempt alone."""
    register(control, failing(chunks=BEGUN), failing("TRANSPORT"))
    events: list[RetryEvent] = []
    result = await llm.generate(**ASK, on_retry=events.append)
    assert (result.text, result.finish.kind, result.attempts) == ("hi", "stop", 3)
    assert [(event.type, event.retry.retry) for event in events] == [
        ("retry", 1), ("retry-started", 1), ("retry", 2), ("retry-started", 2),
    ]  # fmt: skip
    first, second = events[0].retry, events[2].retry
    assert (first.provider, first.mode, first.max_retries) == ("a", "normal", 2)
    assert (first.delay_ms, second.delay_ms) == (5, 10)
    assert (first.failure.code, second.failure.code) == ("SERVER", "TRANSPORT")
    assert first.retry_id != second.retry_id
    assert events[0].retry.retry_id == events[1].retry.retry_id
    assert first.policy_key == trunkline.policy_key(await llm.provider_retry_policy("a"))


async def test_a_budget_is_of_the_call(llm: LlmRuntime, control: Control) -> None:
    """Two retries and no third, whatever the failures are."""
    register(control, *[failing()] * 9)
    result = await llm.generate(**ASK)
    assert (result.attempts, result.finish.kind) == (3, "error")
    assert result.failure is not None
    assert result.failure.code == "SERVER"
    assert begun(control) == 3


async def test_what_the_policy_does_not_name_is_not_retried(
    llm: LlmRuntime, control: Control
) -> None:
    register(control, failing("AUTH", status=401, requestId="r-1"))
    result = await llm.generate(**ASK)
    assert result.attempts == 1
    assert result.failure is not None
    assert (result.failure.status, result.failure.request_id) == (401, "r-1")


async def test_one_stream_is_one_attempt(llm: LlmRuntime, control: Control) -> None:
    """Unless it asks for recovery; `generate` can decline it."""
    register(control, failing(), failing())
    stream = llm.stream(**ASK)
    assert len([chunk async for chunk in stream]) == 1
    assert stream.attempts == 1
    assert (await llm.generate(**ASK, recovery="none")).attempts == 1
    assert begun(control) == 2


async def test_a_stream_recovers_only_before_its_first_chunk(
    llm: LlmRuntime, control: Control
) -> None:
    """A chunk that was delivered is never taken back."""
    register(control, failing(), {**failing(chunks=BEGUN), "waitAt": "next"})
    stream = llm.stream(**ASK, recovery="policy")
    texts: list[str] = []
    async for chunk in stream:
        if isinstance(chunk, TextDelta):
            texts.append(chunk.text)
            control.ask("one", "go", adapter="a")
    assert (texts, stream.attempts) == (["half"], 2)
    assert stream.finish is not None
    assert stream.finish.failure is not None
    assert stream.finish.failure.code == "SERVER"
    await until_async(lambda: llm._shell.mux.open_count == 0)
    assert begun(control) == 2


async def test_always_has_no_limit(llm: LlmRuntime, control: Control) -> None:
    """And no list of codes."""
    register(control, *[failing("AUTH")] * 12, policy={"mode": "always", "backoff": FAST})
    events: list[RetryEvent] = []
    result = await llm.generate(**ASK, on_retry=events.append)
    assert (result.text, result.attempts) == ("hi", 13)
    assert {event.retry.max_retries for event in events} == {None}
    assert {event.retry.mode for event in events} == {"always"}


async def test_cancelling_in_backoff_is_immediate_and_starts_nothing(
    llm: LlmRuntime, control: Control
) -> None:
    slow = {"initialDelayMs": 60_000, "maxDelayMs": 60_000, "jitterRatio": 0}
    register(control, failing(), policy={"mode": "normal", "backoff": slow})
    offered = asyncio.Event()
    stream = llm.stream(**ASK, recovery="policy", on_retry=lambda _: offered.set())
    reading = asyncio.ensure_future(_kinds(stream))
    await asyncio.wait_for(offered.wait(), 5 * SLOW)
    begun_s = time.monotonic()
    stream.cancel()
    assert await reading == ["aborted"]
    assert time.monotonic() - begun_s < 0.5 * SLOW
    await until_async(lambda: llm._shell.mux.open_count == 0)
    status = await llm.status()
    assert status["calls"]["backoff"] == 0
    assert begun(control) == 1


async def _kinds(stream: trunkline.Stream) -> list[str]:
    return [chunk.reason.kind async for chunk in stream if isinstance(chunk, trunkline.Finish)]


async def test_a_short_retry_after_pauses_the_route_for_everybody(
    llm: LlmRuntime, control: Control, world: tuple[BrokerProcess, Control]
) -> None:
    """The call that was told waits that long; a call of another client waits along."""
    policy = {"mode": "normal", "backoff": {"initialDelayMs": 5, "maxDelayMs": 5000}}
    register(control, failing("RATE_LIMIT", status=429, providerRetryAfterMs=700), policy=policy)
    register(control, route="free")
    events: list[RetryEvent] = []
    begun_s = time.monotonic()
    told = asyncio.ensure_future(llm.generate(**ASK, on_retry=events.append))
    await until_async(lambda: bool(events))
    async with trunkline.connect(world[0].endpoint) as other:
        assert (await other.generate(**{**ASK, "provider": "free"})).text == "hi"
        assert time.monotonic() - begun_s < 0.6 * SLOW
        assert (await other.generate(**ASK)).text == "hi"
    assert time.monotonic() - begun_s > 0.69
    assert (await told).attempts == 2
    assert events[0].retry.delay_ms == 700


async def test_a_long_retry_after_closes_the_route(llm: LlmRuntime, control: Control) -> None:
    """Nobody waits: the call ends, and new ones at once, with the delay that remains."""
    policy = {"mode": "normal", "backoff": {"initialDelayMs": 5, "maxDelayMs": 100}}
    register(
        control,
        failing("RATE_LIMIT", status=429, providerRetryAfterMs=1500),
        policy=policy,
        route="long",
    )
    ask = {**ASK, "provider": "long"}
    first = await llm.generate(**ask)
    assert first.attempts == 1
    assert first.failure is not None
    assert first.failure.provider_retry_after_ms == 1500
    begun_s = time.monotonic()
    second = await llm.generate(**ask, recovery="none")
    assert time.monotonic() - begun_s < 0.5 * SLOW
    assert second.failure is not None
    assert second.failure.code == Code.RATE_LIMIT
    assert second.failure.provider_retry_after_ms is not None
    assert 0 < second.failure.provider_retry_after_ms < 1500
    assert begun(control, "long") == 1
    await asyncio.sleep(second.failure.provider_retry_after_ms / 1000)
    assert (await llm.generate(**ask)).text == "hi"


async def test_the_policy_is_the_one_captured_with_the_failed_attempt(
    llm: LlmRuntime, control: Control
) -> None:
    """A route that is registered anew meanwhile changes nothing for a call under way."""
    waiting = {"mode": "normal", "maxRetries": 1, "backoff": {"initialDelayMs": 400}}
    register(control, failing(), failing(), failing(), policy=waiting)
    events: list[RetryEvent] = []
    calling = asyncio.ensure_future(llm.generate(**ASK, on_retry=events.append))
    await until_async(lambda: bool(events))
    control.ask("one", "dispose", handle="a")
    plan = {"policy": {"mode": "normal", "maxRetries": 3, "backoff": FAST}}
    control.ask("one", "register", handle="a2", adapter="a2", providers=["a"], plan=plan)
    result = await calling
    assert (result.text, result.attempts) == ("hi", 2)
    assert events[0].retry.max_retries == 1
    captured = trunkline.NormalRetryPolicy(max_retries=1, initial_delay_ms=400)
    assert events[0].retry.policy_key == trunkline.policy_key(captured)


async def test_the_death_of_a_worker_is_retried() -> None:
    """By the worker that comes next; the code is TRANSPORT."""
    config = """\
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
[worker.scripted.options.retryPolicy]
mode = "normal"
backoff = { initialDelayMs = 20, maxDelayMs = 40 }
[worker.scripted.options.script]
first_delay_ms = 500
"""
    with running_broker(config) as broker:
        broker.until_ready("scripted")
        (pid,) = broker.worker_pids()["scripted"]
        async with trunkline.connect(broker.endpoint) as llm:
            events: list[RetryEvent] = []
            ask = {"provider": "scripted", "model": "m", "messages": "hello"}
            calling = asyncio.ensure_future(llm.generate(**ask, on_retry=events.append))
            await until_async(lambda: broker.status()["calls"]["open"] == 1)
            os.kill(pid, signal.SIGKILL)
            result = await asyncio.wait_for(calling, 20 * SLOW)
            assert (result.finish.kind, result.attempts) == ("stop", 2)
            assert events[0].retry.failure.code == Code.TRANSPORT
            assert "signal 9" in events[0].retry.failure.message
