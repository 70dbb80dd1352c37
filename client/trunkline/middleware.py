"""The `llm/stream` and `llm/generate` waterfalls: what an application puts around every call.

A listener gets the request and `next`, which goes on to the listener that was added after it and at
last to the broker. It may pass another request on (the route is looked up behind all listeners),
answer by itself, go on several times, or change what comes back. What it raises reaches whoever
reads the call: only failures of adapters become finishes.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from typing import Any, Final, Literal, Protocol, cast, overload

from trunkline_protocol.chunks import StreamChunk
from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.options import GenerateOptions

from trunkline import arguments, request
from trunkline.stream import GenerateResult

Waterfall = Literal["llm/stream", "llm/generate"]
MAX_LISTENERS: Final = 64  # of one waterfall; each is a call deep


class NextStream(Protocol):
    """Goes on with a streaming call."""

    def __call__(
        self, options: GenerateOptions | Mapping[str, Any] | None = None, /
    ) -> AsyncIterable[StreamChunk]:
        """Return the chunks of the call, made with another request if one is given."""
        ...


class NextResult(Protocol):
    """Goes on with an assembled call."""

    def __call__(
        self, options: GenerateOptions | Mapping[str, Any] | None = None, /
    ) -> Awaitable[GenerateResult]:
        """Return the result of the call, made with another request if one is given."""
        ...


StreamListener = Callable[[GenerateOptions, NextStream], AsyncIterable[StreamChunk]]
GenerateListener = Callable[[GenerateOptions, NextResult], Awaitable[GenerateResult]]
ToChunks = Callable[[GenerateOptions], AsyncIterable[StreamChunk]]
ToResult = Callable[[GenerateOptions], Awaitable[GenerateResult]]


class Waterfalls:
    """The listeners of one runtime, the first one added outermost."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Any]] = {"llm/stream": [], "llm/generate": []}

    @overload
    def use(
        self, waterfall: Literal["llm/stream"], listener: StreamListener
    ) -> Callable[[], None]: ...
    @overload
    def use(
        self, waterfall: Literal["llm/generate"], listener: GenerateListener
    ) -> Callable[[], None]: ...
    def use(
        self, waterfall: Waterfall, listener: StreamListener | GenerateListener
    ) -> Callable[[], None]:
        """Add a listener for calls made from now on; the result takes it out again.

        Raises:
            LocalProtocolError: no such waterfall, no function, or too many listeners.
        """
        arguments.choice("waterfall", waterfall, tuple(self._listeners))
        arguments.function("listener", listener)
        listeners = self._listeners[waterfall]
        if len(listeners) >= MAX_LISTENERS:
            raise LocalProtocolError(f"{waterfall} has {MAX_LISTENERS} listeners already")
        entry = _Entry(listener)
        listeners.append(entry)

        def dispose() -> None:
            if entry in listeners:
                listeners.remove(entry)

        return dispose

    @property
    def has_stream_listeners(self) -> bool:
        """Whether chunks pass anybody on their way."""
        return bool(self._listeners["llm/stream"])

    def around_stream(self, dispatch: ToChunks) -> ToChunks:
        """Return what makes a streaming call through the listeners there are now."""
        go: ToChunks = dispatch
        for entry in reversed(self._listeners["llm/stream"]):
            go = _stream_step(entry.listener, go)
        return go

    def around_generate(self, dispatch: ToResult) -> ToResult:
        """Return what makes an assembled call through the listeners there are now."""
        go: ToResult = dispatch
        for entry in reversed(self._listeners["llm/generate"]):
            go = _generate_step(entry.listener, go)
        return go


class _Entry:
    """One listener; the same function may be added twice and is taken out by entry."""

    __slots__ = ("listener",)

    def __init__(self, listener: object) -> None:
        self.listener: Any = listener


def _stream_step(listener: StreamListener, go: ToChunks) -> ToChunks:
    def step(options: GenerateOptions) -> AsyncIterable[StreamChunk]:
        def next_(other: GenerateOptions | Mapping[str, Any] | None = None, /) -> Any:
            return go(_replaced(options, other))

        returned: Any = listener(options, next_)
        if not hasattr(returned, "__aiter__"):
            raise LocalProtocolError("an llm/stream listener must return an async iterable")
        return cast("AsyncIterable[StreamChunk]", returned)

    return step


def _generate_step(listener: GenerateListener, go: ToResult) -> ToResult:
    async def step(options: GenerateOptions) -> GenerateResult:
        def next_(other: GenerateOptions | Mapping[str, Any] | None = None, /) -> Any:
            return go(_replaced(options, other))

        result: Any = await listener(options, next_)
        if not isinstance(result, GenerateResult):
            raise LocalProtocolError("an llm/generate listener must return a GenerateResult")
        return result

    return step


def _replaced(
    options: GenerateOptions, other: GenerateOptions | Mapping[str, Any] | None
) -> GenerateOptions:
    return options if other is None else request.options_from(other, {})
