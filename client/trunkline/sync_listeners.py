"""Blocking listeners for the two waterfalls: each runs in a thread, beside the loop.

What a listener calls goes back to the loop; when the call is cancelled, so is what it waits for.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, cast

from trunkline_protocol.chunks import StreamChunk
from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.options import GenerateOptions

from trunkline.middleware import GenerateListener, NextResult, NextStream, StreamListener
from trunkline.portal import Portal
from trunkline.stream import GenerateResult

END_S: Final = 5.0  # how long a listener may block after its call was cancelled
_END: Final = object()  # of an iterator; a listener may yield anything
_log: Final = logging.getLogger("trunkline")


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


def contained(observer: Any) -> Any:
    """Return an observer that raises nothing but `Exception`, or what is no observer as it is.

    `sys.exit` in an observer would end the runtime's thread, with every stream in it.
    """
    if not callable(observer) or inspect.iscoroutinefunction(observer):
        return observer  # refused where it is taken

    def observe(*args: object) -> None:
        try:
            observer(*args)
        except Exception:
            raise
        except BaseException as exc:
            raise RuntimeError(f"an observer raised {type(exc).__name__}") from exc

    return observe


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
        step = self._step = self._portal.in_thread(job)
        return await asyncio.shield(step)  # a thread cannot be cancelled, only waited for

    async def end(self, close: Callable[[], object] | None) -> None:
        """Wait for a step under way, whose provider call was cancelled, and close the iterator.

        A listener that still blocks after `END_S` keeps its thread; its iterator is not closed.
        """
        if self._step is not None and not await self._has_ended(self._step):
            return
        if close is not None:
            closing = self._step = self._portal.in_thread(close)
            if await self._has_ended(closing):
                await closing  # what it raises is the reader's

    async def _has_ended(self, step: asyncio.Future[Any]) -> bool:
        """Wait for the end of a step, which cannot be forced."""
        done, _ = await asyncio.wait((step,), timeout=END_S)
        step.add_done_callback(_retrieve)  # the reader has left: nobody else asks for the outcome
        if not done:
            _log.warning(
                "a blocking llm/stream listener has not ended %g s after its call was cancelled;"
                " its thread is left to itself",
                END_S,
            )
        return bool(done)


def _retrieve(step: asyncio.Future[Any]) -> None:
    if not step.cancelled():
        step.exception()


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
        portal.let_go(close)  # a generator may be collected on any thread


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
