"""Pulling one adapter stream as fast as its reader has credit, and no faster.

Chunks that are ready in one loop turn leave as one frame: the first of a turn schedules a flush
for the end of it, so an idle stream has no added delay. In a burst, where every turn brings more,
turns share a frame until `_BURST_S` after the last one left; the first turn without more ends that.
There is no task, future or lock per chunk. What the adapter does wrong is turned into a finish by
`boundary.StreamGuard`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, Final, Protocol, cast

from trunkline_protocol.chunks import Finish, StreamChunk, TokenUsage
from trunkline_protocol.failure import Code, LlmError
from trunkline_protocol.frames import Start
from trunkline_protocol.ids import CallId
from trunkline_protocol.limits import CANCEL_S

from trunkline_workers.boundary import StreamGuard
from trunkline_workers.foreign import class_name, is_a, is_closing, is_ours
from trunkline_workers.host_task import HostTask, is_stopped, own_task

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
        "_is_waiting",
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
        self._is_waiting = False  # for credit, while the adapter does not run
        self._flushed_s = float("-inf")
        self._last_count = 0  # chunks that waited when the last turn ended
        self._room = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the adapter does not run, since there was no room."""
        return self._is_waiting

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

        The host stopping the task cancels the adapter, closes its stream and hands over nothing.

        Args:
            open_stream: a coroutine function that returns the adapter's stream; runs the checks
                before it.
        """
        task = own_task()
        stream: object = None
        try:
            stream = await open_stream()
            await self._pull_through(_checked(stream))
            finish = self._guard.end()
        # As in foreign.await_, which is too slow for the path of each token.
        except BaseException as exc:
            if is_closing(exc, task):
                raise
            if is_ours(exc, task):
                await self._close(stream)
                raise asyncio.CancelledError from exc  # whatever the adapter made of it
            finish = self._guard.fail(exc)
        self._end(finish)  # before the stream is closed: its reader need not wait for that
        await self._close(stream)

    async def _pull_through(self, stream: ChunkStream) -> None:
        """Pull to the end; a cancellation by the adapter during a wait for credit is its own.

        A time limit that the adapter has set around its whole response cancels this task while the
        adapter does not run. The cancellation is raised inside the adapter, where the limit stands.
        """
        while True:
            try:
                return await self._pull(stream)
            except asyncio.CancelledError as exc:
                if not self._is_waiting or is_stopped(own_task()):
                    raise
                self._is_waiting = False
                athrow = getattr(stream, "athrow", None)
                if athrow is None:
                    raise
                try:
                    item = await athrow(exc)
                except StopAsyncIteration:
                    return None
                if self._guard.take(item):
                    return None

    async def _pull(self, stream: ChunkStream) -> None:
        guard, arrays = self._guard, self._guard.arrays
        take = guard.take
        own = own_task()
        task = own if isinstance(own, HostTask) else _NEVER_STOPPED
        await self._wait_for_credit()
        async for item in stream:
            if take(item):
                return
            if task.is_stopped:
                raise asyncio.CancelledError  # the adapter swallowed it
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
            self._is_waiting = True
            await self._credit
            self._is_waiting = False
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
        """Close the adapter's iterator, so that it gives its connection back now.

        The stream is over and its finish is known: trouble while closing changes neither.
        """
        task = own_task()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # a cancellation that is left over must not hit the closing
            if is_a(stream, Coroutine):
                cast("Coroutine[object, object, object]", stream).close()
                return
            aclose = getattr(stream, "aclose", None)
            if aclose is None:
                return
            async with asyncio.timeout(CANCEL_S):
                await aclose()
        except BaseException as exc:
            if is_closing(exc, task):
                raise
            if is_ours(exc, task) and is_a(exc, asyncio.CancelledError):
                raise
            self._sink.report(f"closing an adapter's stream failed: {class_name(exc)}")


def _checked(stream: object) -> ChunkStream:
    """Return what `stream()` returned, if it can be iterated over.

    Raises:
        LlmError: `INVARIANT`: it cannot; the text says what it is.
    """
    if hasattr(type(stream), "__aiter__"):
        return cast("ChunkStream", stream)
    text = f"the adapter's stream() returned {class_name(stream)}, which is no async iterator"
    if is_a(stream, Coroutine):
        text += "; an async function that yields is one"
    raise LlmError.of(text, Code.INVARIANT)


class _Stoppable(Protocol):
    """What the loop over the stream asks of its task."""

    is_stopped: bool


class _NeverStopped:
    """The task of a puller that no host runs."""

    is_stopped = False


_NEVER_STOPPED: Final[_Stoppable] = _NeverStopped()
