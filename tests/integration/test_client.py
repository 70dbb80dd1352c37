"""The client library against a real broker and a real worker, on both kinds of loop."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import trunkline
from trunkline import (
    BlockEnd,
    BlockStart,
    BrokerUnreachableError,
    Finish,
    ForkedClientError,
    LlmError,
    LlmRuntime,
    LocalProtocolError,
    RetryEvent,
    TextDelta,
    Usage,
)

from tests.support.broker import BrokerProcess, broker_in, run_directory, running_broker
from tests.support.loops import run_on
from tests.support.raw_peer import RawClient
from tests.support.timing import SLOW, until_async

pytestmark = pytest.mark.integration

CONFIG = """\
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
[worker.scripted.options.retryPolicy]
mode = "normal"
maxRetries = 2
backoff = { initialDelayMs = 20, maxDelayMs = 40, jitterRatio = 0 }
"""
Loops = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """Yield one broker with one scripted worker for all tests that leave it alive."""
    with running_broker(CONFIG) as running:
        running.until_ready("scripted")
        yield running


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Loops:
    """Yield a runner of coroutines."""
    return lambda job: run_on(request.param, job)


def scripted(**script: Any) -> dict[str, Any]:
    """Return the fields of a request that plays a script."""
    text = json.dumps({"script": script})
    return {"provider": "scripted", "model": "demo", "messages": text}


def open_calls(broker: BrokerProcess) -> int:
    """Return the calls that the broker holds or its workers run."""
    with RawClient(broker.endpoint) as client:
        client.hello()
        status = client.status()
    slots = [slot for pool in status["pools"] for slot in pool["slots"]]
    return status["calls"]["open"] + sum(slot["inFlight"] for slot in slots)


# --- streams --------------------------------------------------------------------------------


def test_a_stream_yields_every_chunk_once_and_one_finish(broker: BrokerProcess, run: Loops) -> None:
    """Start, pieces, end with the block filled in, usage, finish; and what is known of the call."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint, name="a") as llm:
            stream = llm.stream(**scripted(chunks=200, batch=7))
            chunks = [chunk async for chunk in stream]
            kinds = [type(chunk) for chunk in chunks]
            assert kinds == [BlockStart, *[TextDelta] * 200, BlockEnd, Usage, Finish]
            text = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))
            block = chunks[-3]
            assert isinstance(block, BlockEnd)
            assert block.block == {"type": "text", "text": text}
            assert stream.finish is not None
            assert stream.finish.kind == "stop"
            assert stream.usage is not None
            assert stream.usage.output_tokens == 200
            assert stream.served_by is not None
            assert stream.served_by.pool == "scripted"
            assert stream.retry_policy is not None
            assert stream.retry_policy.mode == "normal"
            assert stream.message().to_dict()["content"] == [{"type": "text", "text": text}]
            with pytest.raises(StopAsyncIteration):
                await anext(stream)

    run(job())


def test_generate_returns_the_message_and_never_raises_for_the_adapter(
    broker: BrokerProcess, run: Loops
) -> None:
    """A good call, one whose adapter raises, and a route nobody serves."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            good = await llm.generate(**scripted(text="one two"))
            assert good.text == "one two"
            assert good.attempts == 1
            assert good.raise_for_failure() is good
            source = good.message.to_dict()["source"]
            assert source == {"kind": "model", "provider": "scripted", "model": "demo"}

            steps = [{"raise": {"code": "AUTH", "message": "no", "status": 401}}]
            bad = await llm.generate(**scripted(steps=steps))
            assert bad.finish.kind == "error"
            assert bad.failure is not None
            assert (bad.failure.code, bad.failure.status) == ("AUTH", 401)
            with pytest.raises(LlmError):
                bad.raise_for_failure()

            nobody = await llm.generate(provider="nobody", model="m", messages="hi")
            assert nobody.failure is not None
            assert nobody.failure.code == "NO_ADAPTER"

    run(job())


def test_stream_blocks_yields_whole_blocks_in_order(broker: BrokerProcess, run: Loops) -> None:
    """Reasoning, text, tool call; the finish stays readable."""

    async def job() -> None:
        call = {"id": "c1", "name": "look", "arguments": '{"a": 1}'}
        async with trunkline.connect(broker.endpoint) as llm:
            request = scripted(text="hello", reasoning_chunks=2, tool_calls=[call])
            async with llm.stream_blocks(**request) as blocks:
                seen = [block async for block in blocks]
            assert [block.type for block in seen] == ["reasoning", "text", "tool-call"]
            assert blocks.finish is not None
            assert blocks.finish.kind == "tool-calls"
            assert blocks.usage is not None

    run(job())


def test_batches_are_the_same_chunks(broker: BrokerProcess, run: Loops) -> None:
    """The cheap way to read loses nothing, also behind a first chunk taken alone."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            stream = llm.stream(**scripted(chunks=300, batch=50))
            first = await anext(stream)
            rest = [chunk async for chunks in stream.batches() for chunk in chunks]
            assert isinstance(first, BlockStart)
            assert len([chunk for chunk in rest if isinstance(chunk, TextDelta)]) == 300
            assert isinstance(rest[-1], Finish)

    run(job())


def test_many_streams_at_once(broker: BrokerProcess, run: Loops) -> None:
    """A hundred streams of one client, each whole."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            asked = [llm.generate(**scripted(chunks=50, seed=at, pace_ms=1)) for at in range(100)]
            results = await asyncio.gather(*asked)
            assert {result.finish.kind for result in results} == {"stop"}
            assert len({result.text for result in results}) == 100

    run(job())


def test_a_large_request_and_a_large_block_pass(broker: BrokerProcess, run: Loops) -> None:
    """A megabyte out, a block beyond the byte window back."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            history = ["x" * 1_000_000]
            steps = [
                {"huge_block": 3_000_000},
                {"chunk": {"type": "finish", "reason": {"kind": "stop"}}},
            ]
            messages = [*history, json.dumps({"script": {"steps": steps}})]
            result = await llm.generate(provider="scripted", model="demo", messages=messages)
            assert result.finish.kind == "stop"
            assert len(result.text) == 3_000_000

    run(job())


# --- leaving --------------------------------------------------------------------------------


def test_leaving_the_context_cancels(broker: BrokerProcess, run: Loops) -> None:
    """The provider request stops although nobody reads on; the finish says aborted."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            async with llm.stream(**scripted(chunks=100_000, pace_ms=5)) as stream:
                async for chunk in stream:
                    if isinstance(chunk, TextDelta):
                        break
                assert await asyncio.to_thread(open_calls, broker) > 0
            assert stream.finish is not None
            assert stream.finish.kind == "aborted"
            await until_async(lambda: open_calls(broker) == 0, 2.0, "the call is cancelled")

    run(job())


def test_breaking_out_of_a_bare_loop_cancels_too(broker: BrokerProcess, run: Loops) -> None:
    """A stream that nobody holds any more is cancelled."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            async for chunk in llm.stream(**scripted(chunks=100_000, pace_ms=5)):
                if isinstance(chunk, TextDelta):
                    break
            gc.collect()
            await until_async(lambda: open_calls(broker) == 0, 2.0, "the call is cancelled")

    run(job())


def test_a_stream_that_nobody_reads_leaves_nothing_behind(
    broker: BrokerProcess, run: Loops
) -> None:
    """Entered, ended by itself, dropped: its observer goes with it."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            stream = llm.stream(**scripted(text="hi"), recovery="policy", on_retry=lambda _: None)
            await stream.__aenter__()
            assert len(llm._shell._observers) == 1
            await until_async(lambda: llm._shell.mux.open_count == 0)
            del stream
            gc.collect()
            assert not llm._shell._observers

    run(job())


def test_cancel_while_somebody_reads(broker: BrokerProcess, run: Loops) -> None:
    """The reader gets one aborted finish, at once, also before the first chunk; twice is fine."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            stream = llm.stream(**scripted(steps=[{"stall": True}]))
            reading = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            stream.cancel()
            stream.cancel()
            chunk = await asyncio.wait_for(reading, 1.0 * SLOW)
            assert isinstance(chunk, Finish)
            assert chunk.reason.kind == "aborted"
            assert [one async for one in stream] == []
            await until_async(lambda: open_calls(broker) == 0, 2.0, "the call is cancelled")

    run(job())


def test_cancelling_generate_cancels_the_call(broker: BrokerProcess, run: Loops) -> None:
    """A cancelled task takes its provider request with it."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            task = asyncio.ensure_future(llm.generate(**scripted(steps=[{"stall": True}])))
            await until_async(lambda: open_calls(broker) > 0, 2.0, "the call is open")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until_async(lambda: open_calls(broker) == 0, 2.0, "the call is cancelled")

    run(job())


def test_closing_the_connection_ends_open_streams(broker: BrokerProcess, run: Loops) -> None:
    """A task that waits gets its aborted finish; a later use is refused."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            stream = llm.stream(**scripted(steps=[{"stall": True}]))
            reading = asyncio.ensure_future(anext(stream))
            await until_async(lambda: open_calls(broker) > 0, 2.0, "the call is open")
        chunk = await asyncio.wait_for(reading, 1.0 * SLOW)
        assert isinstance(chunk, Finish)
        assert chunk.reason.kind == "aborted"
        with pytest.raises(LocalProtocolError, match="closed"):
            llm.stream(**scripted())
        await until_async(lambda: open_calls(broker) == 0, 2.0, "the call is cancelled")

    run(job())


def test_a_task_cancelled_while_it_waits_loses_nothing(broker: BrokerProcess, run: Loops) -> None:
    """`wait_for` around one chunk may run out; the next read goes on where it was."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            request = scripted(chunks=5, first_delay_ms=150)
            async with llm.stream(**request) as stream:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(stream), 0.02)
                chunks = [chunk async for chunk in stream]
            assert [type(chunk) for chunk in chunks].count(TextDelta) == 5

    run(job())


def test_a_slow_reader_slows_the_worker_and_keeps_little(broker: BrokerProcess, run: Loops) -> None:
    """What waits in a client that does not read is bounded by the window."""

    async def job() -> None:
        async with (
            trunkline.connect(broker.endpoint) as llm,
            llm.stream(**scripted(chunks=200_000, batch=64)) as stream,
        ):
            await anext(stream)
            state = stream._state  # pyright: ignore[reportPrivateUsage]  # the bound is inside
            assert state is not None
            intake = state.intake
            await until_async(lambda: intake.expected == 1024, 5.0, "the window is used up")
            other = await llm.generate(**scripted(chunks=20))
            assert other.finish.kind == "stop"
            assert intake.expected == intake.window_chunks == 1024
            count = 0
            async for chunk in stream:
                count += isinstance(chunk, TextDelta)
            assert count == 200_000

    run(job())


# --- retry ----------------------------------------------------------------------------------


def test_recovery_repeats_a_failed_attempt_and_tells(broker: BrokerProcess, run: Loops) -> None:
    """`generate` recovers by default: the policy's two retries, then the failure as the finish."""

    async def job() -> None:
        events: list[RetryEvent] = []
        steps = [{"raise": {"code": "SERVER", "message": "busy", "status": 503}}]
        async with trunkline.connect(broker.endpoint) as llm:
            result = await llm.generate(**scripted(steps=steps), on_retry=events.append)
        assert result.finish.kind == "error"
        assert result.attempts == 3
        assert [event.type for event in events] == ["retry", "retry-started"] * 2
        assert [event.retry.retry for event in events] == [1, 1, 2, 2]
        assert events[0].retry.failure.code == "SERVER"
        assert events[0].retry.max_retries == 2

    run(job())


def test_a_stream_recovers_only_before_its_first_chunk(broker: BrokerProcess, run: Loops) -> None:
    """After a chunk was delivered the failure is delivered too, and one attempt was made."""

    async def job() -> None:
        late = scripted(
            chunks=4, pace_ms=20, at={"3": {"raise": {"code": "SERVER", "message": "x"}}}
        )
        early = scripted(steps=[{"raise": {"code": "SERVER", "message": "x"}}])
        async with trunkline.connect(broker.endpoint) as llm:
            seen = llm.stream(**late, recovery="policy")
            chunks = [chunk async for chunk in seen]
            assert any(isinstance(chunk, TextDelta) for chunk in chunks)
            assert [type(chunk) for chunk in chunks].count(Finish) == 1
            assert seen.attempts == 1
            unseen = llm.stream(**early, recovery="policy")
            assert len([chunk async for chunk in unseen]) == 1
            assert unseen.attempts == 3
            await until_async(lambda: open_calls(broker) == 0, 2.0, "nothing is left")

    run(job())


# --- queries --------------------------------------------------------------------------------


def test_queries_have_typed_answers(broker: BrokerProcess, run: Loops) -> None:
    """Routes, catalog, exact model, call config, policy, status; and a failure with its code."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint, name="asker") as llm:
            assert [one.id for one in await llm.list_providers()] == ["scripted"]
            assert await llm.models() == ["scripted"]
            assert (await llm.list_models("scripted"))[0].provider == "scripted"
            assert (await llm.resolve_model_info("scripted", "m")).id == "m"
            config = {"provider": "scripted", "model": "m", "maxTokens": 5}
            assert (await llm.resolve_call_config(config)).max_tokens == 5
            assert (await llm.provider_retry_policy("scripted")).mode == "normal"
            status = await llm.status()
            assert "asker" in {client["name"] for client in status["clients"]}
            with pytest.raises(LlmError) as caught:
                await llm.list_models("nobody")
            assert caught.value.code == "NO_ADAPTER"

    run(job())


# --- no broker, other processes -------------------------------------------------------------


def test_no_broker_is_said_within_two_seconds(run: Loops) -> None:
    """The text names the address and the command to run."""

    async def job() -> None:
        with run_directory() as root:
            began_s = time.monotonic()
            with pytest.raises(BrokerUnreachableError, match="trunkline up") as caught:
                async with trunkline.connect(f"ipc://{root}/control"):
                    raise AssertionError("nobody is there")
            assert time.monotonic() - began_s < 2.0 * SLOW
            assert str(root) in str(caught.value)

    run(job())


def test_a_request_that_is_wrong_is_refused_here(broker: BrokerProcess, run: Loops) -> None:
    """Nothing is sent, and the text names the field."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            wrong: list[tuple[dict[str, Any], str]] = [
                ({}, "options"),
                ({"provider": "p", "model": "m"}, "messages"),
                ({"provider": "p", "model": "m", "messages": [5]}, "messages.0"),
                ({"provider": "p", "model": 5, "messages": "x"}, "model"),
                ({"provider": "p", "model": "m", "messages": "x", "colour": 1}, "colour"),
                ({"provider": "p" * 300, "model": "m", "messages": "x"}, "provider"),
            ]
            for fields, name in wrong:
                with pytest.raises(LocalProtocolError, match=name):
                    llm.stream(**fields)

    run(job())


def test_a_forked_child_gets_a_clear_error(broker: BrokerProcess) -> None:
    """The child may connect for itself, and the parent's client goes on."""
    program = f"""
import asyncio, os, sys, trunkline
async def child():
    async with trunkline.connect({broker.endpoint!r}) as llm:
        return (await llm.generate({scripted(text="child")!r})).text
async def main():
    async with trunkline.connect({broker.endpoint!r}) as llm:
        pid = os.fork()
        if pid == 0:
            try:
                llm.stream({scripted()!r})
            except trunkline.ForkedClientError as exc:
                print(type(exc).__name__, flush=True)
            asyncio.events._set_running_loop(None)
            print(asyncio.Runner().run(child()), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print((await llm.generate({scripted(text="parent")!r})).text, flush=True)
asyncio.run(main())
"""
    done = subprocess.run(  # noqa: S603  our own program
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=20 * SLOW,
        check=False,
    )
    assert done.stdout.split() == [ForkedClientError.__name__, "child", "parent"], done.stderr


def test_exit_does_not_hang_with_an_open_stream_and_a_dead_broker() -> None:
    """A program that ends without closing anything ends."""
    program = """
import asyncio, os, sys, trunkline
async def main():
    llm = await trunkline.connect(sys.argv[1]).__aenter__()
    script = '{"script": {"steps": [{"stall": true}]}}'
    stream = llm.stream(provider="scripted", model="m", messages=script)
    reading = asyncio.ensure_future(anext(stream))
    while not (await llm.status())["calls"]["running"]:
        pass
    print("ready", flush=True)
    sys.stdin.readline()
    os._exit(0) if len(sys.argv) > 2 else sys.exit(3)
asyncio.run(main())
"""
    with running_broker(CONFIG) as running:
        running.until_ready("scripted")
        with subprocess.Popen(  # noqa: S603  our own program
            [sys.executable, "-W", "ignore", "-c", program, running.endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            assert child.stdout.readline() == b"ready\n"
            running.kill()
            child.stdin.write(b"\n")
            child.stdin.close()
            assert child.wait(5 * SLOW) == 3


def test_streams_outlive_the_broker(run: Loops) -> None:
    """SIGKILL it mid-stream, start it again: every stream goes on, nothing lost or doubled."""

    async def job(running: BrokerProcess) -> None:
        async with trunkline.connect(running.endpoint) as llm:
            request = scripted(chunks=300, pace_ms=10)
            streams = [llm.stream(**request) for _ in range(5)]
            firsts = [await anext(stream) for stream in streams]
            assert all(isinstance(chunk, BlockStart) for chunk in firsts)
            await asyncio.to_thread(running.kill)
            await asyncio.to_thread(running.start)
            for stream in streams:
                chunks = [chunk async for chunk in stream]
                texts = [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)]
                assert stream.finish is not None
                assert stream.finish.kind == "stop", stream.finish
                assert len(texts) == 300
            again = await llm.generate(**scripted(text="after"))
            assert again.text == "after"

    with run_directory() as root, broker_in(root, CONFIG) as running:
        running.start()
        running.until_ready("scripted")
        run(job(running))


def test_a_stopped_broker_ends_nothing(broker: BrokerProcess, run: Loops) -> None:
    """SIGSTOP and SIGCONT: streams and a call opened meanwhile go on."""

    async def job() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            stream = llm.stream(**scripted(chunks=100, pace_ms=10))
            await anext(stream)
            broker.signal(signal.SIGSTOP)
            task = asyncio.ensure_future(llm.generate(**scripted(text="late")))
            await asyncio.sleep(1.5)  # the fault itself: nothing can be waited for
            broker.signal(signal.SIGCONT)
            assert (await task).text == "late"
            chunks = [chunk async for chunk in stream]
            assert len([chunk for chunk in chunks if isinstance(chunk, TextDelta)]) == 100

    run(job())


def test_nothing_is_left_behind(broker: BrokerProcess, run: Loops) -> None:
    """After closing, no descriptor of the client remains."""

    async def connected() -> LlmRuntime:
        async with trunkline.connect(broker.endpoint) as llm:
            await llm.generate(**scripted(text="x"))
        return llm

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def job() -> None:
        await connected()
        before = count()
        for _ in range(5):
            await connected()
        await until_async(lambda: count() <= before, 2.0, "descriptors are closed")

    run(job())
