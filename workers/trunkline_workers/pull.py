"""Pulling one adapter stream as fast as its reader has credit, and no faster.

Chunks that are ready in one loop turn leave as one frame: the first of a turn schedules a flush
for the end of it, so an idle stream has no added delay. In a burst, where every turn brings more,
turns share a frame until `_BURST_S` after the last one left; the first turn without more ends that.
There is no task, future or lock per chunk. What the adapter does wrong is turned into a finish by
`boundary.StreamGuard`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic
from typing import Any, Final, Protocol, cast

from trunkline_protocol.chunks import Finish, StreamChunk, TokenUsage
from trunkline_protocol.failure import Code, LlmError
from trunkline_protocol.frames import Start
from trunkline_protocol.ids import CallId
from trunkline_protocol.limits import CANCEL_S

from trunkline_workers.boundary import StreamGuard

_FLUSH_AT: Final = 256  # chunks; an adapter that is always ready lets others run this often
# Between two frames of a burst. Most of what a chunk costs is its frame (measured: 20 µs in the
# worker, 9 in the broker's lane, 14 in the agent), and nobody reads a token in less.
_BURST_S: Final = 0.0002

ChunkStream = AsyncIterator[StreamChunk | list[StreamChunk]]


class ChunkSink(Protocol):
    """What a puller needs of the host."""

    def ask_room(self, call: CallId, attempt: int) -> int:
        """Return how many chunks may be pulled now; after 0 the puller counts as waiting."""
        ...

    def push(self, call: CallId, attempt: int, arrays: Sequence[Sequence[Any]]) -> int:
        """Send chunks, or let them wait for credit; returns the room that is left."""
        ...

    def finish(
        self,
        call: CallId,
        attempt: int,
        finish: Finish,
        usage: TokenUsage | None,
        arrays: Sequence[Sequence[Any]],
    ) -> None:
        """Send the last chunks and the finish."""
        ...

    def report(self, diagnostic: str) -> None:
        """Take a line for the log."""
        ...


class Puller:
    """Pulls the stream of one attempt; `run` is the body of its task.

    Args:
        sink: takes the chunks.
        start: the attempt.
        guard: judges what the adapter emits.
    """

    __slots__ = (
        "_attempt",
        "_call",
        "_credit",
        "_flushed_s",
        "_guard",
        "_is_flushing",
        "_last_count",
        "_loop",
        "_room",
        "_sink",
    )

    def __init__(self, sink: ChunkSink, start: Start, guard: StreamGuard) -> None:
        self._sink = sink
        self._call = start.call
        self._attempt = start.attempt
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._credit: asyncio.Future[None] | None = None
        self._is_flushing = False
        self._flushed_s = float("-inf")
        self._last_count = 0  # chunks that waited when the last turn ended
        self._room = 0

    @property
    def usage(self) -> TokenUsage | None:
        """The last token counts that the adapter told."""
        return self._guard.usage

    def on_credit(self) -> None:
        """Ask for room again; a call that comes twice, or when nothing waits, changes nothing."""
        if self._credit is not None and not self._credit.done():
            self._credit.set_result(None)

    async def run(self, open_stream: Callable[[], Any]) -> None:
        """Pull to the end and hand over the one finish.

        Cancelling the task cancels the adapter, closes its stream and hands over nothing.

        Args:
            open_stream: a coroutine function that returns the adapter's stream; runs the checks
                before it.
        """
        stream: object = None
        try:
            stream = await open_stream()
            await self._pull(cast("ChunkStream", stream))
            finish = self._guard.end()
        except GeneratorExit:
            raise
        # The one place where any exception becomes a failure: an adapter's code may raise
        # anything, SystemExit included, and the worker lives on.
        except BaseException as exc:
            if _is_cancelled():
                await self._close(stream)
                raise asyncio.CancelledError from exc  # whatever the adapter made of it
            is_own = isinstance(exc, asyncio.CancelledError)
            finish = self._guard.fail(_SELF_CANCELLED if is_own else exc)
        self._end(finish)  # before the stream is closed: its reader need not wait for that
        await self._close(stream)

    async def _pull(self, stream: ChunkStream) -> None:
        guard, arrays = self._guard, self._guard.arrays
        take = guard.take
        await self._wait_for_credit()
        async for item in stream:
            if take(item):
                return
            count = len(arrays)
            if count >= self._room or count >= _FLUSH_AT:
                self._flush()
                # A turn for the sockets and the other streams, even if this one is always ready.
                await asyncio.sleep(0)
                if self._room == 0:
                    await self._wait_for_credit()
            elif not self._is_flushing:
                self._is_flushing = True
                self._loop.call_soon(self._flush_turn)

    async def _wait_for_credit(self) -> None:
        while (room := self._sink.ask_room(self._call, self._attempt)) == 0:
            self._credit = self._loop.create_future()
            await self._credit
        self._room = room

    def _flush_turn(self) -> None:
        """End a turn: send what waits, unless a frame has just left and more keeps coming."""
        count = len(self._guard.arrays)
        if count > self._last_count and monotonic() - self._flushed_s < _BURST_S:
            self._last_count = count
            self._loop.call_soon(self._flush_turn)
            return
        self._is_flushing = False
        self._flush()

    def _flush(self) -> None:
        arrays = self._guard.arrays
        if arrays:
            self._last_count = 0
            self._flushed_s = monotonic()
            # The room shrinks behind the back of the loop in _pull, which asks for it each time.
            self._room = self._sink.push(self._call, self._attempt, arrays)
            arrays.clear()

    def _end(self, finish: Finish) -> None:
        arrays = self._guard.arrays
        self._sink.finish(self._call, self._attempt, finish, self._guard.usage, arrays)
        arrays.clear()

    async def _close(self, stream: object) -> None:
        """Close the adapter's iterator, so that it gives its connection back now."""
        aclose = getattr(stream, "aclose", None)
        if aclose is None:
            return
        try:
            async with asyncio.timeout(CANCEL_S):
                await aclose()
        except GeneratorExit:
            raise
        # The stream is over and its finish is known: trouble while closing changes neither.
        except BaseException as exc:
            if isinstance(exc, asyncio.CancelledError) and _is_cancelled():
                raise
            self._sink.report(f"closing an adapter's stream failed: {type(exc).__name__}")


_SELF_CANCELLED: Final = LlmError.of("the adapter cancelled itself", Code.UNKNOWN)


def _is_cancelled() -> bool:
    """Tell whether somebody cancelled this task, rather than the adapter raising by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
