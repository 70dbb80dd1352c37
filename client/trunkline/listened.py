"""`ListenedStream`: a streaming call whose chunks pass the application's listeners.

To its reader it is a `Stream`. It assembles what the listeners let through; who served the call is
known of the provider calls that they made, if any.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from typing import Final, cast, get_args

from trunkline_protocol.chunks import Finish, StreamChunk, TokenUsage
from trunkline_protocol.content import ContentBlock
from trunkline_protocol.failure import Code, LlmFailure, LocalProtocolError, RemoteProtocolError
from trunkline_protocol.finish import FinishReason
from trunkline_protocol.messages import Message
from trunkline_protocol.options import GenerateOptions
from trunkline_protocol.retry_policy import ResolvedRetryPolicy

from trunkline.core.assembly import Assembly
from trunkline.middleware import Waterfalls
from trunkline.stream import Owner, ServedBy, Stream

_ABORTED: Final = Finish(
    FinishReason("aborted", LlmFailure("the call was cancelled", Code.ABORTED))
)
_CHUNKS: Final = cast("tuple[type, ...]", get_args(StreamChunk))
_END: Final = object()
_STOP: Final = FinishReason("stop")  # of a stream that a listener ended without a finish

Dispatch = Callable[[GenerateOptions], Stream]


class ListenedStream(Stream):
    """One call through the `llm/stream` waterfall.

    Args:
        owner: the runtime's shell.
        waterfalls: the listeners; those of this moment take part.
        options: the request.
        dispatch: makes one provider call.
        is_held: give a listener the chunks of a provider call only when it is over, so that a
            failed attempt of it may be repeated whatever has arrived.
    """

    def __init__(
        self,
        owner: Owner,
        waterfalls: Waterfalls,
        options: GenerateOptions,
        dispatch: Dispatch,
        *,
        is_held: bool = False,
    ) -> None:
        self.provider = options.provider
        self.model = options.model
        self._owner = owner
        self._call = owner.mux.new_call_id()
        self._options = options
        self._dispatch = dispatch
        self._is_held = is_held
        self._go = waterfalls.around_stream(self._begin)
        self._source: AsyncIterator[StreamChunk] | None = None
        self._provider_calls: list[Stream] = []
        self._past_attempts = 0
        self._listened = Assembly()
        self._reader: asyncio.Task[object] | None = None
        self._is_cancelled = self._is_interrupted = self._is_ended = False
        self._owes_finish = False

    def __del__(self) -> None:
        """Nothing: the provider calls cancel themselves."""

    # --- provider calls ------------------------------------------------------------------------

    def _begin(self, options: GenerateOptions) -> AsyncIterable[StreamChunk]:
        stream = self._dispatch(options)
        over = [each for each in self._provider_calls if each.finish is not None]
        self._past_attempts += sum(each.attempts for each in over)
        self._provider_calls = [each for each in self._provider_calls if each.finish is None]
        self._provider_calls.append(stream)
        if self._is_cancelled:
            stream.cancel()
        return _held(stream) if self._is_held else stream

    def _open_source(self) -> AsyncIterator[StreamChunk]:
        self._owner.check_usable()
        try:
            source = self._source = aiter(self._go(self._options))
        except (StopAsyncIteration, StopIteration) as exc:  # it would look like the end of the call
            raise RuntimeError(f"a listener raised {type(exc).__name__}") from exc
        return source

    # --- iterating -----------------------------------------------------------------------------

    async def __anext__(self) -> StreamChunk:
        """Return the next chunk that the listeners let through.

        Raises:
            StopAsyncIteration: the finish was already returned, or a listener ended the stream.
            LocalProtocolError: two tasks read at once, a listener's request is wrong, or the
                runtime is not usable.
            Exception: whatever a listener raises.
        """
        if self._owes_finish:  # to a reader that goes on after its own wait was cancelled
            self._owes_finish = False
            return _ABORTED
        if self._is_ended:
            raise StopAsyncIteration
        chunk = await self._read()
        if self._listened.finish is not None:  # what a listener does behind the finish is unseen
            await self._end()
            raise StopAsyncIteration
        if chunk is _END:
            await self._end()
            if not self._is_cancelled:
                raise StopAsyncIteration
            chunk = _ABORTED
        if not isinstance(chunk, _CHUNKS):
            self._abandon()
            raise LocalProtocolError("a listener let through what is no chunk")
        try:
            return self._listened.follow([cast("StreamChunk", chunk)])[0]
        except RemoteProtocolError as exc:
            self._abandon()
            raise LocalProtocolError(f"a listener let through what is no chunk: {exc}") from exc

    async def next_batch(self) -> list[StreamChunk]:
        """Return the next chunk in a list; none at the end of the stream."""
        chunk = await anext(self, None)
        return [] if chunk is None else [chunk]

    async def _read(self) -> object:
        """Return what the listeners yield next; `_END` for the end, also by `cancel`."""
        if self._reader is not None:
            raise LocalProtocolError("a stream is read by one task at a time")
        if self._is_cancelled:
            return _END
        source = self._source or self._open_source()
        task = self._reader = asyncio.current_task()
        cancelling = 0 if task is None else task.cancelling()
        try:
            return await anext(cast("AsyncIterator[object]", source), _END)
        except asyncio.CancelledError:
            # As `asyncio.timeout` does: only the cancellation that `cancel` asked for ends here.
            if task is None or not self._take_interrupt() or task.uncancel() > cancelling:
                if isinstance(source, AsyncGenerator):  # it has ended by that
                    self._owes_finish = self._listened.finish is None
                    self._abandon()
                raise
            return _END
        except BaseException:  # a cancel too: the provider is not read on
            self._abandon()
            raise
        finally:
            self._reader = None
            if self._take_interrupt() and task is not None:
                task.uncancel()  # a listener has swallowed ours: the task must not keep it

    def _take_interrupt(self) -> bool:
        """Return whether `cancel` has cancelled the reading task; once."""
        is_interrupted, self._is_interrupted = self._is_interrupted, False
        return is_interrupted

    def _abandon(self) -> None:
        """Let the provider calls go: a listener has ended by an exception."""
        self._is_ended = True
        self._source = None
        if self._listened.finish is None:
            self._listened.follow([_ABORTED])
        for stream in self._provider_calls:
            stream.cancel()

    async def _end(self) -> None:
        self._is_ended = True
        for stream in self._provider_calls:
            stream.cancel()  # first: a listener may be waiting for it
        source, self._source = self._source, None
        close = getattr(source, "aclose", None)
        try:
            if close is not None:
                await close()
        finally:
            for stream in self._provider_calls:
                await stream.aclose()

    # --- leaving -------------------------------------------------------------------------------

    async def __aenter__(self) -> ListenedStream:
        return self

    async def aclose(self) -> None:
        """Leave the stream: the listeners are closed and their provider calls cancelled.

        If another task reads, its wait ends and it closes the listeners.

        Raises:
            Exception: whatever a listener raises while it is closed.
        """
        self._owes_finish = False
        if self._reader is not None and self._reader is not asyncio.current_task():
            self.cancel()
        elif not self._is_ended:
            self._is_cancelled = self._is_cancelled or self._listened.finish is None
            if self._listened.finish is None:
                self._listened.follow([_ABORTED])
            await self._end()

    def cancel(self) -> None:
        """Stop every provider request; a reader gets one `aborted` finish. Harmless when over."""
        if self._is_ended or self._listened.finish is not None:
            return
        self._is_cancelled = True
        for stream in self._provider_calls:
            stream.cancel()
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._is_interrupted = True
            self._reader.cancel()

    # --- what is known -------------------------------------------------------------------------

    @property
    def attempts(self) -> int:
        """Provider attempts begun so far, of all provider calls that listeners made."""
        return self._past_attempts + sum(each.attempts for each in self._provider_calls)

    @property
    def finish(self) -> FinishReason | None:
        """Why the stream ended; `None` while it has not."""
        finish = self._listened.finish
        if finish is None:
            return _STOP if self._is_ended else None
        return finish.reason

    @property
    def usage(self) -> TokenUsage | None:
        """The token counts, once they have passed."""
        return self._listened.usage

    @property
    def served_by(self) -> ServedBy | None:
        """The worker that serves the last provider call; `None` if no listener made one."""
        return self._provider_calls[-1].served_by if self._provider_calls else None

    @property
    def retry_policy(self) -> ResolvedRetryPolicy | None:
        """The policy captured with the last provider call."""
        return self._provider_calls[-1].retry_policy if self._provider_calls else None

    def message(self) -> Message:
        """Return what has been read so far as an assistant message of whoever answered last.

        Raises:
            ValueError: an open block of a type that deltas cannot build.
        """
        asked = self._provider_calls[-1] if self._provider_calls else self
        return self._listened.message(asked.provider, asked.model)

    def interrupted_blocks(self) -> list[ContentBlock]:
        """Return what may be kept of a stream that is left now."""
        return self._listened.interrupted_blocks()


async def _held(stream: Stream) -> AsyncIterator[StreamChunk]:
    """Yield the chunks of the attempt that counted, when the call is over."""
    chunks: list[StreamChunk] = []
    attempt = 0
    async with stream:
        async for batch in stream.batches():
            if stream.attempts != attempt:
                attempt = stream.attempts
                chunks.clear()
            chunks.extend(batch)
    for chunk in chunks:
        yield chunk
