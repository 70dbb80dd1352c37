"""The puller: which chunks share a frame, and when a frame leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from trunkline_protocol.chunks import Finish, FinishReason, StreamChunk, TextDelta, TokenUsage
from trunkline_protocol.frames import Start
from trunkline_protocol.ids import CallId, ClientId, RouteName, StreamKey
from trunkline_workers.boundary import StreamGuard
from trunkline_workers.pull import Puller

START = Start(
    CallId(b"c" * 16),
    0,
    ClientId(b"i" * 16),
    StreamKey(b"k" * 8),
    RouteName("r"),
    "m",
    window_chunks=1024,
    window_bytes=1 << 20,
)


class Sink:
    """Notes the frames; `left` is set by each, so that a test can wait for one."""

    def __init__(self, room: int = 1024) -> None:
        self.frames: list[int] = []
        self.left = asyncio.Event()
        self.room_left = room

    def ask_room(self, call: CallId, attempt: int) -> int:
        return self.room_left

    def push(self, call: CallId, attempt: int, arrays: Sequence[Sequence[Any]]) -> int:
        self.frames.append(len(arrays))
        self.left.set()
        return self.room_left

    def finish(
        self,
        call: CallId,
        attempt: int,
        finish: Finish,
        usage: TokenUsage | None,
        arrays: Sequence[Sequence[Any]],
    ) -> None:
        self.frames.append(len(arrays) + 1)

    def report(self, diagnostic: str) -> None:
        raise AssertionError(diagnostic)


async def pulled(sink: Sink, stream: AsyncIterator[StreamChunk | list[StreamChunk]]) -> list[int]:
    async def open_stream() -> object:
        return stream

    await Puller(sink, START, StreamGuard(str)).run(open_stream)
    return sink.frames


async def test_a_turn_without_more_sends_what_waits() -> None:
    """Alone in its turn, a chunk leaves at once, also the first of a burst."""
    sink = Sink()

    async def stream() -> AsyncIterator[StreamChunk]:
        for _ in range(3):
            yield TextDelta(0, "a")
            await asyncio.wait_for(sink.left.wait(), 5)
            sink.left.clear()
        yield Finish(FinishReason("stop"))

    assert await pulled(sink, stream()) == [1, 1, 1, 1]


async def test_turns_of_a_burst_share_frames() -> None:
    async def stream() -> AsyncIterator[StreamChunk]:
        for _ in range(2000):
            yield TextDelta(0, "a")
            await asyncio.sleep(0)
        yield Finish(FinishReason("stop"))

    frames = await pulled(Sink(), stream())
    assert sum(frames) == 2001
    assert frames[0] == 1
    assert len(frames) < 1000


async def test_a_frame_never_has_more_chunks_than_credit() -> None:
    async def stream() -> AsyncIterator[StreamChunk]:
        for _ in range(20):
            yield TextDelta(0, "a")
            await asyncio.sleep(0)
        yield Finish(FinishReason("stop"))

    assert max(await pulled(Sink(room=4), stream())) <= 5  # the finish joins the last ones


async def test_chunks_that_need_no_turn_share_a_frame() -> None:
    async def stream() -> AsyncIterator[list[StreamChunk]]:
        yield [TextDelta(0, "a")] * 10
        yield [TextDelta(0, "a")] * 10
        yield [Finish(FinishReason("stop"))]

    assert await pulled(Sink(), stream()) == [21]


async def test_a_puller_waits_while_there_is_no_room_and_asks_again_when_woken() -> None:
    """Woken without room it waits again; a wake-up that comes twice changes nothing."""
    sink = Sink(room=0)

    async def open_stream() -> object:
        return stream()

    async def stream() -> AsyncIterator[StreamChunk]:
        yield Finish(FinishReason("stop"))

    puller = Puller(sink, START, StreamGuard(str))
    running = asyncio.ensure_future(puller.run(open_stream))
    for _ in range(3):
        await asyncio.sleep(0)
        assert puller.is_waiting
        puller.on_credit()
        puller.on_credit()
        await asyncio.sleep(0)
    assert puller.is_waiting
    sink.room_left = 4
    puller.on_credit()
    await asyncio.wait_for(running, 30)
    assert not puller.is_waiting
    assert sink.frames == [1]
