"""Readers that wake a turn late, over the real client core: none sleeps beside a chunk.

The order of everything (frames, turns of the loop, reads with a timeout, cancelled reads, a second
reader, an early exit) is drawn; the loop, the tasks and the core are real, the broker is a list of
frames.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st
from trunkline.core.effects import Effects, Wake
from trunkline.core.requests import CallRequest
from trunkline.stream import BlockStream, Stream
from trunkline_protocol import frames
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    FinishReason,
    StreamChunk,
    TextDelta,
)
from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.ids import CallId, RouteName

from tests.unit.client.a_mux import a_mux, accept
from tests.unit.client.a_stream import lane

TURNS: Final = 20  # in which a wake-up has surely come
BOUND_S: Final = 10.0


class Owner:
    """The shell's part that a stream needs, without sockets."""

    def __init__(self) -> None:
        self.mux = a_mux()
        self.waiters: dict[CallId, asyncio.Future[None]] = {}
        self.sent: list[Any] = []

    def perform(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Wake):
                waiter = self.waiters.pop(effect.call, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
            else:
                self.sent.append(effect)

    def wait_for(self, call: CallId) -> asyncio.Future[None]:
        waiter = self.waiters[call] = asyncio.get_running_loop().create_future()
        return waiter

    def stop_waiting(self, call: CallId) -> None:
        self.waiters.pop(call, None)

    def check_usable(self) -> None: ...

    def observe(self, call: CallId, observer: object) -> None: ...

    def cancel_later(self, state: object) -> None: ...


class Reading:
    """One stream, its frames to come, and the tasks that read it."""

    def __init__(self, count: int) -> None:
        self.owner = Owner()
        self.stream = Stream(self.owner, CallRequest(RouteName("r"), "m", b"body"))
        self.stream._start()
        accept(self.owner.mux, self.state, window=1024)
        self.whole: list[StreamChunk] = [
            BlockStart(0, "text"),
            *(TextDelta(0, f"<{at}>") for at in range(count)),
            BlockEnd(0, {"type": "text", "text": "".join(f"<{at}>" for at in range(count))}),
            Finish(FinishReason("stop")),
        ]
        self.fed = 0
        self.seen: list[StreamChunk] = []
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> Any:
        return self.stream._state

    def feed(self, count: int) -> None:
        some = self.whole[self.fed : self.fed + count]
        if some:
            effects = self.owner.mux.on_lane(
                lane(self.fed, some, self.stream._state.stream_key), 0.0
            )
            self.owner.perform(effects)
            self.fed += len(some)

    async def read_one(self) -> None:
        """Read one chunk; keep it before anything else can happen."""
        with contextlib.suppress(StopAsyncIteration, LocalProtocolError):
            self.seen.append(await anext(self.stream))

    async def read_batch(self) -> None:
        with contextlib.suppress(LocalProtocolError):
            self.seen.extend(await self.stream.next_batch())

    async def read_with_timeout(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await self.read_one()

    def start(self, how: str) -> None:
        read = {
            "one": self.read_one,
            "batch": self.read_batch,
            "timeout": self.read_with_timeout,
        }[how]
        self.tasks.append(asyncio.ensure_future(read()))

    def check(self) -> None:
        """After enough turns nobody sleeps beside a chunk, and nothing came out of order."""
        asleep = [task for task in self.tasks if not task.done()]
        assert len(asleep) <= 1, "two tasks wait for one stream"
        intake = self.state.intake
        if asleep:
            assert not intake.has_waiting, f"a reader sleeps beside {intake.waiting_chunks} chunks"
            assert not self.state.is_over, "a reader sleeps beside the end"
        assert self.seen == self.whole[: len(self.seen)]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 6)),
        st.tuples(st.just("turns"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["one", "batch", "timeout"]), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 3)),
        st.tuples(st.just("settle"), st.just(0)),
    ),
    max_size=40,
)


async def play(reading: Reading, steps: list[tuple[str, int]]) -> None:
    for what, number in steps:
        match what:
            case "feed":
                reading.feed(number)
            case "turns":
                await turns(number)
            case "cancel" if reading.tasks:
                reading.tasks[-1 - number % len(reading.tasks)].cancel()
            case "settle":
                await turns(TURNS)
                reading.check()
            case "one" | "batch" | "timeout":
                reading.start(what)
            case _:
                pass
    await turns(TURNS)
    reading.check()


@given(count=st.integers(0, 12), steps=STEPS)
def test_no_reader_sleeps_beside_a_chunk_and_nothing_is_lost(
    count: int, steps: list[tuple[str, int]]
) -> None:
    """Whatever is cancelled, timed out or read by two: the rest is read to its one finish."""

    async def job() -> None:
        reading = Reading(count)
        await play(reading, steps)
        for task in reading.tasks:
            task.cancel()
        await asyncio.gather(*reading.tasks, return_exceptions=True)
        reading.feed(len(reading.whole))
        async with asyncio.timeout(BOUND_S):
            reading.seen += [chunk async for chunk in reading.stream]
        assert reading.seen == reading.whole
        assert reading.owner.waiters == {}
        assert reading.owner.mux.open_count == 0

    asyncio.run(job())


@given(count=st.integers(0, 12), steps=STEPS, how=st.sampled_from(["cancel", "aclose", "close"]))
def test_leaving_at_any_moment_ends_every_reader(
    count: int, steps: list[tuple[str, int]], how: str
) -> None:
    """By `cancel`, `aclose` or the end of the runtime; the broker is told until it confirms."""

    async def job() -> None:
        reading = Reading(count)
        await play(reading, steps)
        owner, was_over = reading.owner, reading.state.is_over
        if how == "close":
            owner.perform(owner.mux.close(1.0))
        elif how == "cancel":
            reading.stream.cancel()
        else:
            await reading.stream.aclose()
        async with asyncio.timeout(BOUND_S):
            await asyncio.gather(*reading.tasks, return_exceptions=True)
            rest = [chunk async for chunk in reading.stream]
        finishes = [chunk for chunk in [*reading.seen, *rest] if isinstance(chunk, Finish)]
        assert len(finishes) <= 1
        assert reading.stream.finish is not None
        assert owner.waiters == {}
        cancels = [
            each for each in owner.sent if isinstance(getattr(each, "frame", 0), frames.Cancel)
        ]
        assert len(cancels) == (not was_over)
        ended = frames.Ended(reading.stream.call_id, 0, 0, {"kind": "aborted"})
        owner.perform(owner.mux.on_control(ended, 2.0))
        assert owner.mux.open_count == 0

    asyncio.run(job())


@given(sizes=st.lists(st.integers(1, 4), max_size=8), cancels=st.sets(st.integers(0, 12)))
def test_a_block_survives_the_cancelled_waits_before_it(
    sizes: list[int], cancels: set[int]
) -> None:
    async def job() -> None:
        reading = Reading(sum(sizes))
        blocks = BlockStream(reading.stream)
        got: list[Any] = []

        async def read() -> None:
            got.extend([block async for block in blocks])

        for at, size in enumerate([*sizes, len(reading.whole)]):
            reader = asyncio.ensure_future(read())
            await turns(at % 3)
            reading.feed(size)
            await turns((at + 1) % 3)
            if at in cancels or reading.fed < len(reading.whole):
                reader.cancel()
            await asyncio.wait((reader,), timeout=BOUND_S)
        async with asyncio.timeout(BOUND_S):
            await read()
        assert [block.text for block in got] == ["".join(f"<{at}>" for at in range(sum(sizes)))]
        assert blocks.finish is not None

    asyncio.run(job())
