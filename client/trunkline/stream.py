"""`Stream`: one model call as an async iterator of chunks and as an async context manager."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from time import monotonic
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self

from trunkline_protocol.chunks import Finish, StreamChunk, TokenUsage
from trunkline_protocol.content import ContentBlock
from trunkline_protocol.failure import LlmError, LlmFailure, LocalProtocolError
from trunkline_protocol.finish import FinishReason
from trunkline_protocol.ids import (
    STREAM_KEY_BYTES,
    CallId,
    Generation,
    PoolName,
    StreamKey,
)
from trunkline_protocol.messages import Message
from trunkline_protocol.record import record
from trunkline_protocol.retry_policy import ResolvedRetryPolicy, policy_from_dict

from trunkline.core.block_queue import BlockQueue
from trunkline.core.effects import Effects, RetryNotice
from trunkline.core.mux import Mux
from trunkline.core.requests import CallRequest
from trunkline.core.stream_state import StreamState
from trunkline.ticket import Ticket

_EMPTY: Final[Iterator[StreamChunk]] = iter(())
_NO_KEY: Final = StreamKey(bytes(STREAM_KEY_BYTES))  # of a call that was never opened


@record
class ServedBy:
    """The worker process that serves a call."""

    pool: PoolName
    slot: int
    generation: Generation


@record
class RetryEvent:
    """A failed attempt will be repeated (`retry`), or the repetition begins (`retry-started`)."""

    type: Literal["retry", "retry-started"]
    retry: RetryNotice


RetryObserver = Callable[[RetryEvent], None]


@record
class GenerateResult:
    """One model call, fully assembled.

    Attributes:
        message: under a fresh id, with provenance and the replay envelope. Of a failed call it
            holds what may be kept: text and reasoning, never a tool call.
        usage: if the provider told it.
        finish: why it ended; `error` and `aborted` carry the failure.
        attempts: provider attempts, 1 or more.
        served_by: who served the last attempt; `None` if none was begun.
    """

    message: Message
    usage: TokenUsage | None
    finish: FinishReason
    attempts: int
    served_by: ServedBy | None

    @property
    def failure(self) -> LlmFailure | None:
        """The failure of a call that ended in `error` or `aborted`."""
        return self.finish.failure

    @property
    def text(self) -> str:
        """The visible text of the message."""
        return "".join(
            str(getattr(block, "text", ""))
            for block in self.message.content
            if block.type == "text"
        )

    def raise_for_failure(self) -> Self:
        """Return this result.

        Raises:
            LlmError: the call ended in `error` or `aborted`.
        """
        if self.failure is not None:
            raise LlmError(self.failure)
        return self


class Owner(Protocol):
    """What a stream needs of the runtime that it belongs to."""

    mux: Mux

    def perform(self, effects: Effects) -> None:
        """Do what the core wants."""
        ...

    def wait_for(self, call: CallId) -> asyncio.Future[None]:
        """Return a future that is done when the call has something to take."""
        ...

    def stop_waiting(self, call: CallId) -> None:
        """Forget the future of `wait_for`."""
        ...

    def check_usable(self) -> None:
        """Raise if this is another process or loop, or the runtime was closed."""
        ...

    def observe(self, call: CallId, observer: RetryObserver | None) -> None:
        """Have an observer told of the retries of a call; `None`: no more."""
        ...

    def cancel_later(self, state: StreamState) -> None:
        """Cancel a call whose stream was dropped, from whatever thread; never raises."""
        ...


class Stream:
    """One model call.

    Nothing is sent before it is entered or first iterated. Iterating yields the chunks in order and
    ends after exactly one `Finish`; failures of adapters, workers and the broker are such finishes
    (`error`, `aborted`) and never raise. Leaving the context, or `cancel`, stops the provider
    request; cancelling a task that waits for a chunk loses nothing. A frame counts as consumed
    when the chunk behind it is asked for, and a reader that stops slows the provider down.

    Attributes:
        provider: route that was asked.
        model: model that was asked.
    """

    def __init__(
        self,
        owner: Owner,
        request: CallRequest,
        on_retry: RetryObserver | None = None,
        ticket: Ticket | None = None,
    ) -> None:
        self.provider = request.provider
        self.model = request.model
        self._owner = owner
        self._mux = owner.mux
        self._request: CallRequest | None = request  # until it is sent: it may be large
        self._on_retry = on_retry
        self._ticket = ticket
        self._call = owner.mux.new_call_id() if ticket is None else ticket.call
        self._state: StreamState | None = None
        self._chunks: Iterator[StreamChunk] = _EMPTY
        self._is_read = False

    # --- iterating -----------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamChunk:
        """Return the next chunk; does not suspend while one is here.

        Raises:
            StopAsyncIteration: the finish was already returned.
            LocalProtocolError: two tasks read at once, or the runtime is closed or another
                process's.
        """
        for chunk in self._chunks:  # cheaper than a call of `next`, and this is every chunk's way
            return chunk
        chunks = self._take() or await self._wait()
        if not chunks:
            raise StopAsyncIteration
        self._chunks = iter(chunks)
        return next(self._chunks)

    async def batches(self) -> AsyncIterator[list[StreamChunk]]:
        """Yield the chunks in lists, as they arrive: the cheapest way to read a fast stream."""
        while chunks := await self.next_batch():
            yield chunks

    async def next_batch(self) -> list[StreamChunk]:
        """Return the chunks that are here, at least one; none at the end of the stream.

        Raises:
            LocalProtocolError: as iterating.
        """
        return list(self._chunks) or self._take() or await self._wait()

    def _take(self) -> list[StreamChunk]:
        """Take the next frame's chunks, if there are any."""
        state = self._state
        if state is None:
            state = self._start()
        chunks, effects = self._mux.take(state, monotonic())
        if effects:
            self._owner.perform(effects)
        return chunks

    async def _wait(self) -> list[StreamChunk]:
        """Wait until something can be taken; an empty list is the end of the stream."""
        state = self._state
        while state is not None and not state.is_over:
            if self._is_read:
                raise LocalProtocolError("a stream is read by one task at a time")
            self._owner.check_usable()
            self._is_read = True
            try:
                await self._owner.wait_for(self._call)
            finally:
                self._is_read = False
                self._owner.stop_waiting(self._call)
            chunks = self._take()
            if chunks:
                return chunks
        chunks = self._take()
        if not chunks:
            self._owner.observe(self._call, None)
        return chunks

    def _start(self) -> StreamState:
        self._owner.check_usable()
        if self._request is None:
            raise AssertionError("a stream is started once")
        if self._on_retry is not None:
            self._owner.observe(self._call, self._on_retry)
        if self._ticket is None:
            state, effects = self._mux.open(self._call, self._request, monotonic())
        else:
            token = self._ticket.token
            state, effects = self._mux.attach(self._call, self._request, token, monotonic())
        self._state, self._request = state, None
        self._owner.perform(effects)
        return state

    # --- leaving -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._state is None:
            self._start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave the stream: cancel it unless it is over, and drop what was not read."""
        self.cancel()
        self._chunks = _EMPTY
        while self._state is not None and self._take():
            pass
        self._owner.observe(self._call, None)

    def cancel(self) -> None:
        """Stop the provider request; a reader gets one `aborted` finish. Harmless when over."""
        if self._state is None:
            request = CallRequest(self.provider, self.model, b"")
            self._state = StreamState(self._call, request, _NO_KEY, monotonic())
        self._owner.perform(self._mux.cancel(self._state, monotonic()))

    def __del__(self) -> None:
        """Cancel a stream that nobody holds any more, such as one left with `break`."""
        state = getattr(self, "_state", None)
        if state is not None and not state.is_over:
            self._owner.cancel_later(state)
        elif state is not None and self._on_retry is not None:
            self._owner.observe(self._call, None)  # it has ended by itself, and nobody read that

    # --- what is known -------------------------------------------------------------------------

    @property
    def call_id(self) -> CallId:
        """The id of the call, the same in every log."""
        return self._call

    @property
    def ticket(self) -> str | None:
        """What `attach` wants; `None` for a call that is not detachable or not accepted yet.

        Whoever has it may take the call over, so treat it as a password.
        """
        if self._ticket is not None:
            return self._ticket.text()
        served = None if self._state is None else self._state.served_by
        if served is None or served.token is None:
            return None
        return Ticket(self._call, served.token, self.provider, self.model).text()

    @property
    def attempts(self) -> int:
        """Provider attempts begun so far; 0 before the stream was entered."""
        return 0 if self._state is None else self._state.begun

    @property
    def finish(self) -> FinishReason | None:
        """Why the stream ended; `None` while it has not."""
        finish = None if self._state is None else self._state.assembly.finish
        return None if finish is None else finish.reason

    @property
    def usage(self) -> TokenUsage | None:
        """The token counts, once they have passed."""
        return None if self._state is None else self._state.assembly.usage

    @property
    def served_by(self) -> ServedBy | None:
        """The worker that serves the call, once the broker has said so."""
        served = None if self._state is None else self._state.served_by
        return None if served is None else ServedBy(served.pool, served.slot, served.generation)

    @property
    def retry_policy(self) -> ResolvedRetryPolicy | None:
        """The policy captured with the registration that serves the call, once it is known."""
        served = None if self._state is None else self._state.served_by
        return None if served is None else policy_from_dict(served.policy)

    def message(self) -> Message:
        """Return what has been read so far as an assistant message under a fresh id.

        Of a stream that failed it holds what may be kept: text and reasoning, no tool calls.

        Raises:
            ValueError: an open block of a type that deltas cannot build.
        """
        return self._started().assembly.message(self.provider, self.model)

    def interrupted_blocks(self) -> list[ContentBlock]:
        """Return what may be kept of a stream that is left now."""
        return self._started().assembly.interrupted_blocks()

    def _started(self) -> StreamState:
        if self._state is None:
            raise LocalProtocolError("the stream was neither entered nor read")
        return self._state


class BlockStream:
    """One model call as completed blocks, in order; entered, left and cancelled like `Stream`.

    A failed stream yields the blocks that were complete; `finish` says that it failed. Cancelling a
    task that waits for a block loses nothing.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._queue = BlockQueue()
        self._blocks: deque[ContentBlock] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ContentBlock:
        """Return the next block.

        Raises:
            StopAsyncIteration: the stream has ended, and `finish` tells why.
            LocalProtocolError: as `Stream`.
        """
        while not self._blocks:
            chunks = await self.stream.next_batch()
            if not chunks:
                raise StopAsyncIteration
            for chunk in chunks:
                self._blocks.extend(self._queue.push(chunk))
        return self._blocks.popleft()

    async def __aenter__(self) -> Self:
        await self.stream.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.stream.aclose()

    @property
    def finish(self) -> FinishReason | None:
        """Why the stream ended; `None` while it has not."""
        return self.stream.finish

    @property
    def usage(self) -> TokenUsage | None:
        """The token counts, once they have passed."""
        return self.stream.usage


async def collect(stream: Stream) -> GenerateResult:
    """Read a stream to its end.

    Raises:
        ValueError: the adapter left a block open that deltas cannot build.
    """
    async with stream:
        async for _ in stream.batches():
            pass
        finish = stream.finish
        if finish is None:
            raise AssertionError("a stream ends with a finish")
        return GenerateResult(
            stream.message(), stream.usage, finish, stream.attempts, stream.served_by
        )


__all__ = [
    "BlockStream",
    "Finish",
    "GenerateResult",
    "Owner",
    "RetryEvent",
    "RetryNotice",
    "RetryObserver",
    "ServedBy",
    "Stream",
    "collect",
]
