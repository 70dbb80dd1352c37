"""Blocking listeners for the two waterfalls: each runs in a thread, beside the loop.

What a listener calls goes back to the loop; when the call is cancelled, so is what it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, cast

from trunkline_protocol.chunks import StreamChunk
from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.options import GenerateOptions

from trunkline.middleware import GenerateListener, NextResult, NextStream, StreamListener
from trunkline.portal import Portal
from trunkline.stream import GenerateResult

_END: Final = object()  # of an iterator; a listener may yield anything


class SyncNextStream(Protocol):
    """Goes on with a streaming call; the iterator blocks."""

    def __call__(
        self, options: GenerateOptions | Mapping[str, Any] | None = None, /
    ) -> Iterator[StreamChunk]:
        """Return the chunks of the call, made with another request if one is given."""
        ...


class SyncNextResult(Protocol):
    """Goes on with an assembled call and blocks."""

    def __call__(
        self, options: GenerateOptions | Mapping[str, Any] | None = None, /
    ) -> GenerateResult:
        """Return the result of the call, made with another request if one is given."""
        ...


SyncStreamListener = Callable[[GenerateOptions, SyncNextStream], Iterable[StreamChunk]]
SyncGenerateListener = Callable[[GenerateOptions, SyncNextResult], GenerateResult]


def stream_listener(portal: Portal, listener: SyncStreamListener) -> StreamListener:
    """Return a blocking `llm/stream` listener as one for the loop."""

    async def listened(options: GenerateOptions, next_: NextStream) -> AsyncIterator[StreamChunk]:
        def blocking(
            other: GenerateOptions | Mapping[str, Any] | None = None, /
        ) -> Iterator[StreamChunk]:
            return _pulled(portal, portal.call(lambda: next_(other)))

        steps = _Steps(portal)

        def begun() -> Iterator[StreamChunk]:
            returned: Any = listener(options, blocking)
            if not isinstance(returned, Iterable):
                raise LocalProtocolError("an llm/stream listener must return an iterable")
            return iter(cast("Iterable[StreamChunk]", returned))

        iterator = await steps.run(begun)
        try:
            while (chunk := await steps.run(lambda: next(iterator, _END))) is not _END:
                yield chunk
        finally:
            await steps.end(getattr(iterator, "close", None))

    return listened


class _Steps:
    """The steps of one blocking iterator, never two at once."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._step: asyncio.Future[Any] | None = None

    async def run(self, job: Callable[[], Any]) -> Any:
        step = self._step = asyncio.ensure_future(self._portal.in_thread(job))
        return await asyncio.shield(step)  # a thread cannot be cancelled, only waited for

    async def end(self, close: Callable[[], object] | None) -> None:
        """Wait for a step under way, whose provider call was cancelled, and close the iterator."""
        if self._step is not None and not self._step.done():
            await asyncio.wait((self._step,))
        if self._step is not None and not self._step.cancelled():
            self._step.exception()  # told to nobody: the reader has left
        if close is not None:
            await self._portal.in_thread(close)


def _pulled(portal: Portal, source: AsyncIterable[StreamChunk]) -> Iterator[StreamChunk]:
    chunks = aiter(source)

    async def pull() -> StreamChunk | None:
        return await anext(chunks, None)

    async def close() -> None:
        aclose = getattr(chunks, "aclose", None)
        if aclose is not None:
            await aclose()

    try:
        while (chunk := portal.run(pull)) is not None:
            yield chunk
    finally:
        portal.run(close)


def generate_listener(portal: Portal, listener: SyncGenerateListener) -> GenerateListener:
    """Return a blocking `llm/generate` listener as one for the loop."""

    async def listened(options: GenerateOptions, next_: NextResult) -> GenerateResult:
        going: set[asyncio.Task[Any]] = set()

        def blocking(other: GenerateOptions | Mapping[str, Any] | None = None, /) -> GenerateResult:
            async def go() -> GenerateResult:
                task = asyncio.current_task()
                assert task is not None  # it runs on the loop
                going.add(task)
                try:
                    return await next_(other)
                finally:
                    going.discard(task)

            return portal.run(go)

        try:
            return await portal.in_thread(lambda: listener(options, blocking))
        except asyncio.CancelledError:
            for task in list(going):
                task.cancel()
            raise

    return listened
