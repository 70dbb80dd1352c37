"""Prepared calls: one registration from preparation to dispatch, whatever happens in between."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import trunkline
from trunkline import Code, Finish, GenerateOptions, LlmError, LlmRuntime

from tests.support.broker import BrokerProcess, running_broker
from tests.support.processes import is_alive
from tests.support.timing import until_answered, until_async

pytestmark = pytest.mark.integration

CONFIG = """\
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
[worker.scripted.options.models.big]
context = { contextWindow = 1000 }
defaultMaxTokens = 77
inputModalities = ["text"]
"""
SHORT = """\
[worker.short]
adapter = "scripted"
providers = ["short"]
lease_s = 0.25
"""
BIG = {"provider": "scripted", "model": "big"}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """Yield one broker with one scripted worker."""
    with running_broker(CONFIG) as running:
        running.until_ready("scripted")
        yield running


@pytest.fixture
async def llm(broker: BrokerProcess) -> AsyncIterator[LlmRuntime]:
    """Yield a client of that broker."""
    async with trunkline.connect(broker.endpoint) as runtime:
        yield runtime


def invalid(call: Callable[[], Any]) -> str:
    """Return the code with which something is refused."""
    with pytest.raises(LlmError) as seen:
        call()
    return seen.value.code


async def finish_of(stream: trunkline.Stream) -> trunkline.FinishReason:
    """Read a stream to its end."""
    chunks = [chunk async for chunk in stream]
    assert isinstance(chunks[-1], Finish)
    return chunks[-1].reason


async def test_a_prepared_call_carries_what_was_resolved(llm: LlmRuntime) -> None:
    """Config with defaults, and which those are; policy, context, modalities; all frozen."""
    prepared = await llm.prepare_call({**BIG, "temperature": 0.5})
    assert prepared.config.to_dict() == {**BIG, "temperature": 0.5, "maxTokens": 77}
    assert prepared.adapter_defaults.to_dict() == {"maxTokens": True}
    assert prepared.context is not None
    assert prepared.context.context_window == 1000
    assert prepared.input_modalities == ("text",)
    assert prepared.retry_policy == await llm.provider_retry_policy("scripted")
    assert 50 < prepared.expires_in_s <= 60
    with pytest.raises(ValueError, match="frozen"):
        prepared.config.model = "other"
    stream = prepared.stream(messages="hello", system="be brief")
    assert (await finish_of(stream)).kind == "stop"
    assert stream.retry_policy == prepared.retry_policy


async def test_it_is_dispatched_once(llm: LlmRuntime) -> None:
    prepared = await llm.prepare_call(BIG)
    assert (await finish_of(prepared.stream(messages="hello"))).kind == "stop"
    again = invalid(lambda: prepared.stream(messages="hello"))
    assert again == Code.INVALID_PREPARED_CALL
    with pytest.raises(LlmError, match="before"):
        await prepared.renew()
    await prepared.release()


@pytest.mark.parametrize(
    "change", [{"model": "other"}, {"max_tokens": 5}, {"max_tokens": None}, {"stop": ["x"]}]
)
async def test_the_request_carries_the_prepared_config(
    llm: LlmRuntime, change: dict[str, Any]
) -> None:
    """A mismatch is refused before anything is sent and does not use the call up."""
    prepared = await llm.prepare_call(BIG)
    fields = {**BIG, "max_tokens": 77, "messages": [], **change}
    options = GenerateOptions(**fields)
    assert invalid(lambda: prepared.stream(options)) == Code.INVALID_PREPARED_CALL
    assert (await finish_of(prepared.stream(messages="hello"))).kind == "stop"


async def test_a_listener_may_not_change_a_prepared_request(llm: LlmRuntime) -> None:
    """It is a mistake of the application's own code, so it is raised."""
    prepared = await llm.prepare_call(BIG)
    dispose = llm.use(
        "llm/stream", lambda options, next_: next_({**options.to_dict(), "model": "other"})
    )
    with pytest.raises(LlmError) as seen:
        await finish_of(prepared.stream(messages="hello"))
    assert seen.value.code == Code.INVALID_PREPARED_CALL
    dispose()
    await prepared.release()


async def test_a_listener_may_not_dispatch_it_twice(llm: LlmRuntime) -> None:
    async def twice(options: GenerateOptions, next_: trunkline.NextStream) -> Any:
        async for _ in next_():
            pass
        async for chunk in next_():
            yield chunk

    prepared = await llm.prepare_call(BIG)
    dispose = llm.use("llm/stream", twice)
    with pytest.raises(LlmError) as seen:
        await finish_of(prepared.stream(messages="hello"))
    assert seen.value.code == Code.INVALID_PREPARED_CALL
    dispose()


async def test_what_can_not_be_prepared_is_refused_at_once(llm: LlmRuntime) -> None:
    with pytest.raises(LlmError) as seen:
        await llm.prepare_call({"provider": "nobody", "model": "m"})
    assert seen.value.code == Code.NO_ADAPTER
    with pytest.raises(LlmError) as seen:
        await llm.prepare_call({**BIG, "reasoningEffort": "high"})
    assert seen.value.code == Code.UNSUPPORTED_REASONING_EFFORT
    with pytest.raises(trunkline.LocalProtocolError, match="model"):
        await llm.prepare_call({"provider": "scripted"})


async def test_a_lease_that_is_gone_is_a_clear_finish(llm: LlmRuntime) -> None:
    """Given back behind the call's back, it is what a lease is that has run out."""
    prepared = await llm.prepare_call(BIG)
    other = await llm.prepare_call(BIG)
    await llm.query("releaseCall", {"lease": prepared._lease})
    finish = await finish_of(prepared.stream(messages="hello"))
    assert finish.kind == "error"
    assert finish.failure is not None
    assert finish.failure.code == Code.INVALID_PREPARED_CALL
    await llm.query("releaseCall", {"lease": other._lease})
    with pytest.raises(LlmError) as seen:
        await other.renew()
    assert seen.value.code == Code.INVALID_PREPARED_CALL
    await other.release()  # gone as it was to be


async def test_a_lease_runs_out_by_time() -> None:
    """A clear finish, and a renewal says the same."""
    with running_broker(CONFIG + SHORT) as broker:
        broker.until_ready("short")
        async with trunkline.connect(broker.endpoint) as llm:
            short = {"provider": "short", "model": "m"}
            used, renewed = await llm.prepare_call(short), await llm.prepare_call(short)
            assert 0 < used.expires_in_s <= 0.25
            await until_async(lambda: renewed.expires_in_s == 0)
            finish = await finish_of(used.stream(messages="hello"))
            assert finish.failure is not None
            assert (finish.kind, finish.failure.code) == ("error", Code.INVALID_PREPARED_CALL)
            assert "run out (0.25 s" in finish.failure.message
            with pytest.raises(LlmError) as seen:
                await renewed.renew()
            assert seen.value.code == Code.INVALID_PREPARED_CALL
            assert "0.25 s" in str(seen.value)
            await renewed.release()
            assert (await llm.prepare_call(BIG)).expires_in_s > 50


async def test_a_lease_is_renewed(llm: LlmRuntime) -> None:
    prepared = await llm.prepare_call(BIG)
    prepared._until_s -= 30
    assert prepared.expires_in_s < 31
    await prepared.renew()
    assert prepared.expires_in_s > 50
    assert (await finish_of(prepared.stream(messages="hello"))).kind == "stop"


async def test_the_generation_that_prepared_it_serves_it(
    broker: BrokerProcess, llm: LlmRuntime
) -> None:
    """Across a hot swap; the old worker leaves when its last prepared call was used or released."""
    (old_pid,) = broker.worker_pids()["scripted"]
    used, released = await llm.prepare_call(BIG), await llm.prepare_call(BIG)
    before = await llm.generate(**BIG, messages="hello")
    await llm.query("swap", {"pool": "scripted"}, timeout_s=20)
    after = await llm.generate(**BIG, messages="hello")
    assert before.served_by is not None
    assert after.served_by is not None
    assert before.served_by.generation != after.served_by.generation
    assert is_alive(old_pid)
    script = json.dumps({"script": {"text": "from the old one"}})
    stream = used.stream(messages=script)
    assert (await finish_of(stream)).kind == "stop"
    assert stream.served_by is not None
    assert stream.served_by.generation == before.served_by.generation
    assert is_alive(old_pid)
    async with released:
        pass
    await until_async(lambda: not is_alive(old_pid), 15)


async def test_a_prepared_call_outlives_the_broker() -> None:
    """Its worker tells the next broker of it."""
    with running_broker(CONFIG) as broker:
        broker.until_ready("scripted")
        async with trunkline.connect(broker.endpoint) as llm:
            prepared = await llm.prepare_call(BIG)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            await prepared.renew(timeout_s=20)
            stream = prepared.stream(messages="hello")
            assert (await finish_of(stream)).kind == "stop"
            assert invalid(lambda: prepared.stream(messages="x")) == Code.INVALID_PREPARED_CALL


AGENT = """
import asyncio, sys, trunkline

async def main():
    async with trunkline.connect(sys.argv[1]) as llm:
        await llm.prepare_call({"provider": "scripted", "model": "big"})
        print("prepared", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_the_prepared_call_of_an_agent_that_dies_with_its_broker_is_given_back() -> None:
    """At once: the worker tells the next broker whose process it was, which is gone."""
    with running_broker(CONFIG) as broker:
        broker.until_ready("scripted")
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", AGENT, broker.endpoint, stdout=asyncio.subprocess.PIPE
        )
        assert agent.stdout is not None
        assert await agent.stdout.readline() == b"prepared\n"
        await asyncio.to_thread(broker.kill)
        agent.kill()
        await agent.wait()
        await asyncio.to_thread(broker.start)
        async with trunkline.connect(broker.endpoint) as llm:

            async def is_given_back() -> bool:
                status = await llm.query("status")
                slot: dict[str, Any] = status["pools"][0]["slots"][0]
                at_worker = slot["load"].get("leases", 1)  # with its next heartbeat
                ended = status["counters"].get("leases_of_the_dead", 0)
                return (ended, slot["leases"], at_worker) == (1, 0, 0)

            await until_answered(is_given_back)  # the lease is of a minute


async def test_cancelling_the_preparation_leaves_nothing(llm: LlmRuntime) -> None:
    task = asyncio.ensure_future(llm.prepare_call(BIG))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert llm._shell.mux.question_count == 0
