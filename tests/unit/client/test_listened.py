"""The waterfalls and the stream that passes them, over provider calls that are lists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from trunkline import middleware
from trunkline.listened import ListenedStream
from trunkline.middleware import NextStream, Waterfalls
from trunkline.stream import GenerateResult, Stream
from trunkline_protocol.chunks import Finish, FinishReason, StreamChunk, TextDelta
from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.options import GenerateOptions

STOP = Finish(FinishReason("stop"))
OPTIONS = GenerateOptions(provider="p", model="m", messages=())


class Provided:
    """One provider call; hangs before its end if it `hangs`."""

    def __init__(self, options: GenerateOptions, *, hangs: bool = False) -> None:
        self.provider, self.model = options.provider, options.model
        self.finish: FinishReason | None = None
        self.attempts, self.served_by, self.retry_policy = 1, None, None
        self.notes: list[str] = []
        self._gate = asyncio.Event()
        if not hangs:
            self._gate.set()

    async def __aiter__(self) -> AsyncIterator[StreamChunk]:
        """Say the model, then stop."""
        yield TextDelta(0, self.model)
        await self._gate.wait()
        self.finish = STOP.reason
        yield STOP

    def cancel(self) -> None:
        """Note it."""
        self.notes.append("cancel")
        self._gate.set()

    async def aclose(self) -> None:
        """Note it."""
        self.notes.append("close")


class World:
    """Waterfalls, and the provider calls that were made."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.waterfalls = Waterfalls()
        self.calls: list[Provided] = []
        self.hangs = hangs

    def stream(self) -> ListenedStream:
        """Return a call through the listeners."""
        owner = SimpleNamespace(
            mux=SimpleNamespace(new_call_id=lambda: b"c" * 16), check_usable=lambda: None
        )
        return ListenedStream(cast("Any", owner), self.waterfalls, OPTIONS, self._dispatch)

    def _dispatch(self, options: GenerateOptions) -> Stream:
        self.calls.append(Provided(options, hangs=self.hangs))
        return cast("Stream", self.calls[-1])


async def chunks_of(stream: ListenedStream) -> list[StreamChunk]:
    async def read() -> list[StreamChunk]:
        return [chunk async for chunk in stream]

    return await asyncio.wait_for(read(), 5)


def through(options: GenerateOptions, next_: NextStream) -> Any:
    return next_()


async def test_it_is_a_stream_to_its_reader() -> None:
    world = World()
    world.waterfalls.use("llm/stream", through)
    stream = world.stream()
    assert stream.finish is None
    assert await chunks_of(stream) == [TextDelta(0, "m"), STOP]
    assert (stream.finish, stream.attempts) == (STOP.reason, 1)
    assert stream.message().to_dict()["content"] == [{"type": "text", "text": "m"}]
    assert await chunks_of(stream) == []
    assert world.calls[0].notes[-1] == "close"


async def test_listeners_of_its_beginning_take_part() -> None:
    """One that is added or taken out later changes nothing for this call."""
    world, order = World(), list[str]()

    def naming(name: str) -> Callable[..., Any]:
        def listener(options: GenerateOptions, next_: NextStream) -> Any:
            order.append(name)
            return next_()

        return listener

    dispose = world.waterfalls.use("llm/stream", naming("first"))
    stream = world.stream()
    world.waterfalls.use("llm/stream", naming("second"))
    dispose()
    await chunks_of(stream)
    await chunks_of(world.stream())
    assert order == ["first", "second"]


async def _says_nothing_of_ours(_: GenerateOptions, __: NextStream) -> AsyncIterator[Any]:
    yield 5


async def _says_none(_: GenerateOptions, __: NextStream) -> AsyncIterator[Any]:
    yield None


async def _raises_late(_: GenerateOptions, next_: NextStream) -> AsyncIterator[StreamChunk]:
    async for chunk in next_():
        yield chunk
        raise ZeroDivisionError


def _stops(_: GenerateOptions, __: NextStream) -> Any:
    raise StopIteration


def _stops_async(_: GenerateOptions, __: NextStream) -> Any:
    raise StopAsyncIteration


@pytest.mark.parametrize(
    ("listener", "error"),
    [
        (_says_nothing_of_ours, LocalProtocolError),
        (_says_none, LocalProtocolError),
        pytest.param(lambda _, __: 5, LocalProtocolError, id="no iterable"),
        pytest.param(lambda _, next_: next_(5), LocalProtocolError, id="number"),
        pytest.param(lambda _, next_: next_({"provider": "p"}), LocalProtocolError, id="map"),
        (_raises_late, ZeroDivisionError),
        (_stops, RuntimeError),
        (_stops_async, RuntimeError),
    ],
)
async def test_what_a_listener_does_wrong_is_raised(listener: Any, error: type[Exception]) -> None:
    """Never taken for the end of the call; provider calls are let go."""
    world = World(hangs=True)
    world.waterfalls.use("llm/stream", listener)
    stream = world.stream()
    with pytest.raises(error):
        await chunks_of(stream)
    await stream.aclose()
    assert all("cancel" in call.notes for call in world.calls)


async def test_cancelling_and_leaving() -> None:
    """One aborted finish for a reader; none for who left; harmless twice."""
    world = World(hangs=True)
    world.waterfalls.use("llm/stream", through)
    stream = world.stream()
    stream.cancel()
    stream.cancel()
    (finish,) = await chunks_of(stream)
    assert isinstance(finish, Finish)
    assert finish.reason.kind == "aborted"
    left = world.stream()
    async with left:
        assert await anext(left) == TextDelta(0, "m")
    await left.aclose()
    assert left.finish is not None
    assert left.finish.kind == "aborted"
    assert await chunks_of(left) == []
    assert "cancel" in world.calls[-1].notes


async def test_two_readers_are_told() -> None:
    world = World(hangs=True)
    world.waterfalls.use("llm/stream", through)
    stream = world.stream()
    await anext(stream)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    with pytest.raises(LocalProtocolError, match="one task"):
        await anext(stream)
    stream.cancel()
    assert isinstance(await reading, Finish)


async def test_generate_goes_through_its_own() -> None:
    """The first one outermost; another request may be passed on; only a result comes back."""
    waterfalls, asked = Waterfalls(), list[str]()
    result = cast("GenerateResult", object.__new__(GenerateResult))

    async def dispatch(options: GenerateOptions) -> GenerateResult:
        asked.append(options.model)
        return result

    async def rerouting(options: GenerateOptions, next_: Any) -> GenerateResult:
        return await next_(options.model_copy(update={"model": "other"}))

    async def nothing(_: GenerateOptions, __: Any) -> Any:
        return None

    assert not waterfalls.has_stream_listeners
    waterfalls.use("llm/generate", rerouting)
    assert await waterfalls.around_generate(dispatch)(OPTIONS) is result
    assert asked == ["other"]
    waterfalls.use("llm/generate", nothing)
    with pytest.raises(LocalProtocolError, match="GenerateResult"):
        await waterfalls.around_generate(dispatch)(OPTIONS)


def test_use_is_bounded_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same function may be added twice and is taken out once per disposer."""
    monkeypatch.setattr(middleware, "MAX_LISTENERS", 2)
    waterfalls = Waterfalls()
    dispose = waterfalls.use("llm/stream", through)
    waterfalls.use("llm/stream", through)
    with pytest.raises(LocalProtocolError, match="listeners already"):
        waterfalls.use("llm/stream", through)
    dispose()
    dispose()
    assert waterfalls.has_stream_listeners
    for wrong in ("llm/other", None, []):
        with pytest.raises(LocalProtocolError, match="waterfall"):
            waterfalls.use(cast("Any", wrong), through)
    with pytest.raises(LocalProtocolError, match="listener"):
        waterfalls.use("llm/stream", cast("Any", None))


async def test_a_reader_that_goes_on_after_a_timeout_gets_one_finish() -> None:
    """The listener has ended by it, and the provider call is cancelled."""
    world = World(hangs=True)
    world.waterfalls.use("llm/stream", _generator)
    stream = world.stream()
    assert await anext(stream) == TextDelta(0, "m")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await anext(stream)
    rest = await chunks_of(stream)
    assert [type(chunk) for chunk in rest] == [Finish]
    assert stream.finish is not None
    assert stream.finish.kind == "aborted"
    assert "cancel" in world.calls[0].notes
    assert await chunks_of(stream) == []


async def _generator(_: GenerateOptions, next_: NextStream) -> AsyncIterator[StreamChunk]:
    async for chunk in next_():
        yield chunk


async def test_a_listener_that_swallows_a_cancellation_leaves_none_in_the_reader() -> None:
    """Its timeouts and task groups would take it for their own."""

    async def deaf(_: GenerateOptions, next_: NextStream) -> AsyncIterator[StreamChunk]:
        try:
            async for chunk in next_():
                yield chunk
        except asyncio.CancelledError:
            yield TextDelta(0, "what?")

    world = World(hangs=True)
    world.waterfalls.use("llm/stream", deaf)
    stream = world.stream()
    await anext(stream)

    async def read() -> int:
        async for _ in stream:
            pass
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    reader = asyncio.ensure_future(read())
    for _ in range(3):
        await asyncio.sleep(0)
    stream.cancel()
    assert await asyncio.wait_for(reader, 5) == 0
    assert stream.finish is not None


async def test_a_stream_is_closed_while_another_task_reads() -> None:
    """The reader gets the finish, or the end."""
    world = World(hangs=True)
    world.waterfalls.use("llm/stream", _generator)
    stream = world.stream()
    await anext(stream)
    reader = asyncio.ensure_future(chunks_of(stream))
    for _ in range(3):
        await asyncio.sleep(0)
    await asyncio.wait_for(stream.aclose(), 5)
    assert [type(chunk) for chunk in await reader] == [Finish]
    assert world.calls[0].notes[-1] == "close"
    assert await chunks_of(stream) == []
