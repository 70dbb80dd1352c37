"""The two waterfalls around calls that a real broker serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trunkline
from trunkline import (
    Finish,
    FinishReason,
    GenerateOptions,
    GenerateResult,
    LlmRuntime,
    LocalProtocolError,
    NextResult,
    NextStream,
    StreamChunk,
    TextDelta,
)

from tests.support.broker import BrokerProcess
from tests.support.control import Control, controlled_broker
from tests.support.control_worker import changeable
from tests.support.timing import until_async

pytestmark = pytest.mark.integration

ASK = {"provider": "a", "model": "m", "messages": "hello"}
HANGING = [{"type": "block-start", "index": 0, "blockType": "text"}]


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[BrokerProcess, Control]]:
    """Yield one broker with one worker that obeys."""
    with controlled_broker(("double",)) as (broker, control):
        yield broker, control


@pytest.fixture
def control(world: tuple[BrokerProcess, Control]) -> Iterator[Control]:
    """Yield what commands the worker, with the routes `a` and `b` by two adapters."""
    control = world[1]
    for name in ("a", "b"):
        control.ask("double", "register", handle=name, adapter=name, providers=[name])
    yield control
    control.ask("double", "reset")


@pytest.fixture
async def llm(world: tuple[BrokerProcess, Control], control: Control) -> AsyncIterator[LlmRuntime]:
    """Yield a client of that broker."""
    async with trunkline.connect(world[0].endpoint) as runtime:
        yield runtime


def seen(control: Control, adapter: str) -> list[dict[str, Any]]:
    """Return the requests that an adapter got."""
    return control.ask("double", "seen", adapter=adapter)["requests"]


async def test_the_first_listener_is_the_outermost(llm: LlmRuntime) -> None:
    """Each sees what the one inside lets through, and code behind the last chunk runs."""
    order: list[str] = []

    def naming(name: str) -> trunkline.StreamListener:
        async def listener(options: GenerateOptions, next_: NextStream) -> Any:
            order.append(f"{name} asks {options.provider}")
            async for chunk in next_():
                if isinstance(chunk, TextDelta):
                    chunk = TextDelta(chunk.index, f"{name}({chunk.text})")  # noqa: PLW2901
                yield chunk
            order.append(f"{name} is through")

        return listener

    llm.use("llm/stream", naming("outer"))
    dispose = llm.use("llm/stream", naming("inner"))
    stream = llm.stream(**ASK)
    texts = [chunk.text async for chunk in stream if isinstance(chunk, TextDelta)]
    assert texts == ["outer(inner(hi))"]
    assert order == ["outer asks a", "inner asks a", "inner is through", "outer is through"]
    assert stream.finish == FinishReason("stop")
    assert stream.served_by is not None
    assert stream.retry_policy is not None
    assert stream.attempts == 1
    dispose()
    dispose()
    again = [chunk.text async for chunk in llm.stream(**ASK) if isinstance(chunk, TextDelta)]
    assert again == ["outer(hi)"]


async def test_a_listener_answers_by_itself(llm: LlmRuntime, control: Control) -> None:
    """Nothing reaches a provider; the call has been served by nobody."""

    async def cached(options: GenerateOptions, _: NextStream) -> AsyncIterator[StreamChunk]:
        yield TextDelta(0, f"cached for {options.provider}")
        yield Finish(FinishReason("stop"))

    llm.use("llm/stream", cached)
    result = await llm.generate(**{**ASK, "provider": "nobody at all"})
    assert result.text == "cached for nobody at all"
    assert (result.served_by, result.attempts) == (None, 0)
    blocks = [block async for block in llm.stream_blocks(**ASK)]
    assert [block.to_dict() for block in blocks] == [{"type": "text", "text": "cached for a"}]
    assert seen(control, "a") == []


async def test_a_listener_reroutes_before_the_route_is_looked_up(
    llm: LlmRuntime, control: Control
) -> None:
    """By a changed copy, and by a map; the message names who answered."""
    dispose = llm.use(
        "llm/stream", lambda options, next_: next_(options.model_copy(update={"provider": "b"}))
    )
    result = await llm.generate(**{**ASK, "provider": "nobody"})
    assert result.text == "hi"
    assert result.message.to_dict()["source"] == {"kind": "model", "provider": "b", "model": "m"}
    dispose()
    llm.use("llm/stream", lambda options, next_: next_({**options.to_dict(), "provider": "b"}))
    assert (await llm.generate(**{**ASK, "provider": "nobody"})).text == "hi"
    assert [len(seen(control, name)) for name in "ab"] == [0, 2]


async def test_what_a_listener_raises_is_raised(llm: LlmRuntime, control: Control) -> None:
    """Its own exception, before, amid and after the chunks; the provider call does not go on."""
    control.ask("double", "plan", adapter="a", plan={"chunks": HANGING, "hangAt": "next"})

    class OwnError(Exception):
        pass

    async def amid(_: GenerateOptions, next_: NextStream) -> AsyncIterator[StreamChunk]:
        async for chunk in next_():
            yield chunk
            raise OwnError

    def before(_: GenerateOptions, next_: NextStream) -> AsyncIterator[StreamChunk]:
        raise OwnError

    for listener in (amid, before):
        dispose = llm.use("llm/stream", listener)
        with pytest.raises(OwnError):
            async for _ in llm.stream(**ASK):
                pass
        with pytest.raises(OwnError):
            await llm.generate(**{**ASK, "provider": "b"})
        dispose()
    await until_async(lambda: llm._shell.mux.open_count == 0)

    async def after(_: GenerateOptions, next_: NextStream) -> AsyncIterator[StreamChunk]:
        async for chunk in next_({**ASK, "provider": "b"}):
            yield chunk
        raise OwnError

    llm.use("llm/stream", after)
    with pytest.raises(OwnError):
        await llm.generate(**ASK)


async def test_what_the_consumer_raises_is_raised(llm: LlmRuntime, control: Control) -> None:
    """And ends the provider call, through the listeners, which are closed."""
    control.ask("double", "plan", adapter="a", plan={"chunks": HANGING, "hangAt": "next"})
    closed: list[str] = []

    async def watching(_: GenerateOptions, next_: NextStream) -> AsyncIterator[StreamChunk]:
        try:
            async for chunk in next_():
                yield chunk
        finally:
            closed.append("listener")

    llm.use("llm/stream", watching)
    stream = llm.stream(**ASK)

    async def consume() -> None:
        async with stream:
            async for _ in stream:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await consume()
    assert closed == ["listener"]
    assert stream.finish is not None
    assert stream.finish.kind == "aborted"
    await until_async(
        lambda: control.ask("double", "seen", adapter="a")["notes"][1:] == ["next was cancelled"]
    )


async def test_a_listener_tries_again(llm: LlmRuntime, control: Control) -> None:
    """It may go on several times; every attempt counts."""
    failing = {"failAt": "next", "thrown": {"kind": "LlmError", "message": "m", "code": "AUTH"}}
    control.ask("double", "plan", adapter="a", plan={"attempts": [{"chunks": [], **failing}]})

    async def twice(_: GenerateOptions, next_: NextStream) -> AsyncIterator[StreamChunk]:
        async for chunk in next_():
            if isinstance(chunk, Finish) and chunk.reason.failure is not None:
                break
            yield chunk
        else:
            return
        async for chunk in next_():
            yield chunk

    llm.use("llm/stream", twice)
    result = await llm.generate(**ASK)
    assert (result.text, result.attempts) == ("hi", 2)


async def test_generate_passes_both_waterfalls(llm: LlmRuntime, control: Control) -> None:
    """A stream listener sees only the attempt that counted, however far a failed one got."""
    broken = {"failAt": "next", "thrown": {"kind": "LlmError", "message": "m", "code": "SERVER"}}
    policy = {"mode": "normal", "backoff": {"initialDelayMs": 1, "maxDelayMs": 5}}
    control.ask("double", "dispose", handle="a")
    plan = {"policy": policy, "attempts": [{"chunks": HANGING, **broken}]}
    control.ask("double", "register", handle="a", adapter="a", providers=["a"], plan=plan)
    passed: list[StreamChunk] = []

    async def listening(_: GenerateOptions, next_: NextStream) -> AsyncIterator[StreamChunk]:
        async for chunk in next_():
            passed.append(chunk)
            yield chunk

    async def around(options: GenerateOptions, next_: NextResult) -> GenerateResult:
        assert options.system is None
        return await next_({**options.to_dict(), "system": "be brief"})

    llm.use("llm/stream", listening)
    llm.use("llm/generate", around)
    result = await llm.generate(**ASK)
    assert (result.text, result.attempts) == ("hi", 2)
    assert len(passed) == 4
    assert [request.get("system") for request in seen(control, "a")] == ["be brief"] * 2
    stream = llm.stream(**ASK)
    assert len([chunk async for chunk in stream]) == 4
    assert seen(control, "a")[-1].get("system") is None


async def test_cancelling_reaches_through_a_listener(llm: LlmRuntime, control: Control) -> None:
    """A reader that waits gets one aborted finish, whatever the listener waits for."""
    control.ask("double", "plan", adapter="a", plan={"chunks": [], "hangAt": "next"})

    async def stuck(_: GenerateOptions, next_: NextStream) -> AsyncIterator[StreamChunk]:
        await asyncio.Event().wait()
        async for chunk in next_():
            yield chunk

    async def through(_: GenerateOptions, next_: NextStream) -> AsyncIterator[StreamChunk]:
        async for chunk in next_():
            yield chunk

    for listener in (stuck, through):
        dispose = llm.use("llm/stream", listener)
        stream = llm.stream(**ASK)
        reading = asyncio.ensure_future(_all(stream))
        await until_async(lambda stream=stream: stream._reader is not None)
        stream.cancel()
        chunks = await asyncio.wait_for(reading, 5)
        assert [type(chunk) for chunk in chunks] == [Finish]
        assert stream.finish is not None
        assert stream.finish.kind == "aborted"
        dispose()


async def _all(stream: trunkline.Stream) -> list[StreamChunk]:
    return [chunk async for chunk in stream]


async def test_cancelling_the_task_is_not_cancelling_the_stream(
    llm: LlmRuntime, control: Control
) -> None:
    """The reader's own cancellation stays one."""
    control.ask("double", "plan", adapter="a", plan={"chunks": [], "hangAt": "next"})
    llm.use("llm/stream", lambda _, next_: next_())
    stream = llm.stream(**ASK)
    reading = asyncio.ensure_future(_all(stream))
    await until_async(lambda: bool(control.ask("double", "seen", adapter="a")["notes"]))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await stream.aclose()


async def test_a_listener_that_ends_without_a_finish_has_stopped(llm: LlmRuntime) -> None:
    async def silent(_: GenerateOptions, __: NextStream) -> AsyncIterator[StreamChunk]:
        yield TextDelta(0, "that is all")

    llm.use("llm/stream", silent)
    result = await llm.generate(**ASK)
    assert (result.text, result.finish.kind) == ("that is all", "stop")


async def test_wrong_listeners_are_told(llm: LlmRuntime) -> None:
    with pytest.raises(LocalProtocolError, match="llm/generate"):
        llm.use("llm/nothing", lambda _, next_: next_())  # type: ignore[call-overload]
    dispose = llm.use("llm/stream", lambda _, __: 5)  # type: ignore[arg-type, return-value]
    with pytest.raises(LocalProtocolError, match="async iterable"):
        await llm.generate(**ASK)
    dispose()
    dispose = llm.use("llm/stream", lambda _, next_: next_({"provider": "a"}))
    with pytest.raises(LocalProtocolError, match="messages"):
        await llm.generate(**ASK)
    dispose()

    async def nothing(_: GenerateOptions, __: NextResult) -> Any:
        return None

    llm.use("llm/generate", nothing)
    with pytest.raises(LocalProtocolError, match="GenerateResult"):
        await llm.generate(**ASK)


async def test_the_loop_marks_its_requests(llm: LlmRuntime) -> None:
    """The mark is the object's: a listener sees it, a changed copy has none."""
    marks: list[bool] = []

    def observing(options: GenerateOptions, next_: NextStream) -> Any:
        marks.append(trunkline.is_agent_loop_request(options))
        return next_()

    llm.use("llm/stream", observing)
    plain = GenerateOptions.from_dict(
        {"provider": "a", "model": "m", "messages": [], "purpose": "compaction"}
    )
    marked = trunkline.mark_agent_loop_request(plain.model_copy())
    assert trunkline.mark_agent_loop_request(marked) is marked
    for options in (plain, marked, marked.model_copy()):
        await llm.generate(options)
    assert marks == [False, True, False]
    assert marked == plain


async def test_nothing_of_a_request_can_be_changed(llm: LlmRuntime, control: Control) -> None:
    """Neither by a listener nor by an adapter; unknown keys included."""
    found: list[str] = []

    def sneaking(options: GenerateOptions, next_: NextStream) -> Any:
        found.extend(changeable(options))
        return next_()

    llm.use("llm/stream", sneaking)
    source = {"kind": "model", "provider": "a", "model": "m", "replayState": {"k": [{"x": 1}]}}
    blocks = [
        {"type": "text", "text": "x"},
        {"type": "strange", "inside": {"deep": [1, {"y": 2}]}},
        {"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"},
    ]
    request = {
        "provider": "a",
        "model": "m",
        "messages": [{"id": "1", "role": "assistant", "content": blocks, "source": source}],
        "tools": [{"name": "t", "description": "d", "parameters": {"type": "object", "p": [1]}}],
        "stop": ["x"],
        "sessionId": "s",
        "purpose": "session-title",
    }
    await llm.generate(request)
    assert found == []
    assert control.ask("double", "mutate", adapter="a") == []
    assert seen(control, "a") == [request]
