"""An adapter that misbehaves in any way and at any hook that a request names.

A way is a key of `RAISED`, `DONE` or `RETURNED`. A stream names hook and way in its model as
`hook:way`, a question in its provider, model or draft.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, NoReturn, cast

from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    FinishReason,
    ReplayEnvelope,
    StreamChunk,
    TextDelta,
    TokenUsage,
    Usage,
)
from trunkline_protocol.failure import LlmError, LlmFailure
from trunkline_protocol.models import (
    LlmConfigurableProvider,
    LlmDiscoveredModel,
    LlmModelDiscoveryRequest,
    LlmModelInfo,
    LlmProviderInfo,
    LlmResolvedModelInfo,
)
from trunkline_protocol.options import GenerateOptions
from trunkline_protocol.retry_policy import ResolvedRetryPolicy
from trunkline_workers.adapter import LlmAdapter
from trunkline_workers.runtime import WorkerRuntime

GOOD: Final = "good"


class OwnError(BaseException):
    """A class of its own, outside of `Exception`."""


class NoTextError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class ExitingTextError(Exception):
    """Its text ends the process."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Text(str):
    """A text that is not one."""

    __slots__ = ()

    def __getitem__(self, key: object) -> NoReturn:
        raise KeyError(key)

    def __len__(self) -> int:
        raise KeyError("len")


class OddTextError(Exception):
    """Its text is of a class of its own."""

    def __str__(self) -> str:
        return Text("odd")


class Meta(type):
    """Hides the name of its classes."""

    @property
    def __name__(cls) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        sys.exit(4)


class NamelessError(BaseException, metaclass=Meta):
    """Its class has no name."""


class FailingAttributesError(Exception):
    """Each attribute that is looked at raises."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise OwnError(name)


def _recurse() -> None:
    _recurse()


def _cyclic() -> Exception:
    error = ValueError("round")
    error.__cause__ = RuntimeError("and round")
    error.__cause__.__cause__ = error
    return error


def _carrying(**facts: Any) -> Exception:
    error = RuntimeError("carries")
    error.__dict__.update(failure=facts, code=facts.get("code"))
    return error


def _deep_group() -> BaseException:
    error: BaseException = OwnError("inside")
    for _ in range(200):
        error = BaseExceptionGroup("group", [error])
    return error


RAISED: Final[dict[str, Callable[[], BaseException]]] = {
    "exit0": lambda: SystemExit(0),
    "exit-text": lambda: SystemExit("bye"),
    "exit-odd": lambda: SystemExit(NoTextError()),
    "interrupt": KeyboardInterrupt,
    "generator-exit": GeneratorExit,
    "base-group": lambda: BaseExceptionGroup("many", [OwnError("a"), SystemExit(1)]),
    "base-group-of-one": lambda: BaseExceptionGroup("one", [SystemExit(7)]),
    "deep-group": _deep_group,
    "group": lambda: ExceptionGroup("many", [ValueError("a"), OSError("b")]),
    "own": lambda: OwnError("mine"),
    "nameless": NamelessError,
    "no-text": NoTextError,
    "exiting-text": ExitingTextError,
    "odd-text": OddTextError,
    "failing-attributes": FailingAttributesError,
    "empty": ValueError,
    "memory": MemoryError,
    "stop-iteration": lambda: StopIteration(5),
    "stop-async-iteration": StopAsyncIteration,
    "cancelled": asyncio.CancelledError,
    "timeout": TimeoutError,
    "cyclic-cause": _cyclic,
    "surrogate": lambda: ValueError("half \ud800 and \x1b[2J\x00"),
    "80-megabytes": lambda: ValueError("secret-" * 12_000_000),
    "long-code": lambda: LlmError(LlmFailure("long", "C" * 1_000_000, request_id="r" * 1_000_000)),
    "odd-code": lambda: LlmError(LlmFailure("odd", "a b\x1b\ud800")),
    "carries-nonsense": lambda: _carrying(message=5, code=["x"], status="no"),
    "carries-much": lambda: _carrying(message="m" * 5_000_000, code="C" * 5_000_000),
}


def _raise_exit() -> None:
    sys.exit(0)


def _raise_interrupt() -> None:
    raise KeyboardInterrupt


async def _exiting() -> None:
    sys.exit(0)


def _cancel_own() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.cancel()


def _cancel_and_take_back() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.cancel()
        task.uncancel()


def _cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


def _close_descriptors() -> None:
    for descriptor in (0, 1, 2):
        os.close(descriptor)


def _spoil_output() -> None:
    sys.stderr.close()
    sys.stderr = cast("Any", 5)
    sys.stdout = cast("Any", None)


def _take_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _break_handler(*_: object) -> None:
    sys.exit(9)


def _fail_in_callback() -> None:
    _loop().set_exception_handler(_break_handler)
    _loop().call_soon(lambda: 1 / 0)


def _bad_factory(*_: object, **__: object) -> NoReturn:
    raise OwnError("no task")


DONE: Final[dict[str, Callable[[], object]]] = {
    "recursion": _recurse,
    "cancels-itself": _cancel_own,
    "takes-cancel-back": _cancel_and_take_back,
    "cancels-all": _cancel_all,
    "exit-in-callback": lambda: _loop().call_soon(_raise_exit),
    "interrupt-in-callback": lambda: _loop().call_soon(_raise_interrupt),
    "exit-in-task": lambda: asyncio.ensure_future(_exiting()),
    "stops-loop": lambda: _loop().stop(),
    "closes-loop": lambda: _loop().close(),
    "exception-handler": _fail_in_callback,
    "task-factory": lambda: _loop().set_task_factory(cast("Any", _bad_factory)),
    "no-event-loop": lambda: asyncio.set_event_loop(None),
    "signals": _take_signals,
    "descriptors": _close_descriptors,
    "output": _spoil_output,
    "chdir": lambda: os.chdir("/"),
    "environment": os.environ.clear,
    "exit-in-thread": lambda: threading.Thread(target=_raise_exit, daemon=True).start(),
}


class Failing:
    """Whatever is asked of it raises."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise OwnError(name)

    def __iter__(self) -> Iterator[Any]:
        raise OwnError("iter")

    def __len__(self) -> int:
        raise OwnError("len")

    def __bool__(self) -> bool:
        raise OwnError("bool")

    def __eq__(self, other: object) -> bool:
        raise OwnError("eq")

    __hash__ = None  # type: ignore[assignment]


class FailingList(list[Any]):
    """A list that cannot be read."""

    def __iter__(self) -> Iterator[Any]:
        sys.exit(5)


class Pretender:
    """Says that it is a chunk."""

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return TextDelta


def _cycle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def _endless() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


async def _coroutine() -> None:
    """Do nothing; it is never awaited."""


RETURNED: Final[dict[str, Callable[[], Any]]] = {
    "none": lambda: None,
    "number": lambda: 5,
    "text": lambda: "text",
    "failing-object": Failing,
    "failing-list": lambda: FailingList([1]),
    "pretender": Pretender,
    "cycle": _cycle,
    "endless": _endless,
    "list-of-failing": lambda: [Failing()],
    "coroutine": _coroutine,
    "huge-numbers": lambda: Usage(TokenUsage(2**70, 2**70)),
    "odd-block": lambda: BlockEnd(0, {"type": "text", "text": Failing(), "n": 2**80}),
    "cyclic-block": lambda: BlockEnd(0, {"type": "text", "x": _cycle()}),
    "odd-replay": lambda: Finish(FinishReason("length"), ReplayEnvelope(Failing())),
    "odd-kind": lambda: Finish(FinishReason("k" * 1_000_000)),
    "odd-extra": lambda: Finish(FinishReason("kind", extra={"x": {1, 2}})),
}
WAYS: Final = (*RAISED, *DONE, *RETURNED)
_AFTER: Final = "went on after: "


def misbehave(way: str) -> Any:
    """Raise, do something and raise, or return a wrong value."""
    if way in RETURNED:
        return RETURNED[way]()
    if way in RAISED:
        raise RAISED[way]()
    DONE[way]()
    if "cancel" in way:
        return None
    raise RuntimeError(f"{_AFTER}{way}")


async def misbehave_async(way: str) -> Any:
    """As `misbehave`; whoever cancels itself also waits for that."""
    value = misbehave(way)
    if way in DONE:
        await asyncio.sleep(0)
        raise RuntimeError(f"{_AFTER}{way}")
    return value


class BadAdapter(LlmAdapter):
    """Misbehaves as it is told; its routes are the ways and `good`."""

    def __init__(self, way: str = GOOD, hook: str = "") -> None:
        self.way, self.hook = way, hook

    def provider_info(self, provider: str) -> LlmProviderInfo:
        """Describe a route."""
        if self.hook == "info":
            return misbehave(self.way)
        return LlmProviderInfo(id=provider, name=provider)

    def provider_retry_policy(self, provider: str) -> ResolvedRetryPolicy | None:
        """Return the policy of a route."""
        return misbehave(self.way) if self.hook == "policy" else None

    async def list_models(self, provider: str) -> Sequence[LlmModelInfo]:
        """List models."""
        return await misbehave_async(provider) if provider != GOOD else ()

    async def resolve_model(self, provider: str, model: str) -> LlmResolvedModelInfo:
        """Resolve a model."""
        hook, _, way = model.partition(":")
        if hook == "resolve":
            return await misbehave_async(way)
        return LlmResolvedModelInfo(provider=provider, id=model, name=model)

    def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk | list[StreamChunk]]:
        """Return a stream, or misbehave at once."""
        hook, _, way = options.model.partition(":")
        return misbehave(way) if hook == "call" else self._stream(hook, way)

    async def _stream(self, hook: str, way: str) -> AsyncIterator[Any]:
        if hook == GOOD:
            yield BlockStart(0, "text")
            while True:
                yield TextDelta(0, "a")
                await asyncio.sleep(0.005)
        if hook == "first":
            yield await misbehave_async(way)
        try:
            yield [BlockStart(0, "text"), TextDelta(0, "a")]
            if hook == "item":
                yield misbehave(way)
            elif hook == "items":
                yield [TextDelta(0, "b"), misbehave(way)]
            elif hook == "later":
                yield await misbehave_async(way)
            if hook != "closing":
                await self._go_on(way)
            yield [BlockEnd(0, {"type": "text", "text": "a"}), Finish(FinishReason("stop"))]
        finally:
            if hook == "closing":
                yield await misbehave_async(way)

    async def _go_on(self, way: str) -> NoReturn:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        raise RuntimeError(f"{_AFTER}{way}")


def discoverer(runtime: WorkerRuntime) -> Callable[[LlmModelDiscoveryRequest], Any]:
    """Return a discovery whose draft names a hook of the runtime and a way."""

    async def discover(draft: LlmModelDiscoveryRequest) -> Any:
        hook, _, way = (draft.base_url or "").partition(":")
        if hook == "discover":
            return await misbehave_async(way)
        if hook == "last":  # is the registry still alive?
            handle = await runtime.register_adapter(["fine"], BadAdapter())
            await handle.dispose()
            return [LlmDiscoveredModel(id="fine")]
        await _register(runtime, hook, way)
        return [LlmDiscoveredModel(id="registered")]

    return discover


async def _register(runtime: WorkerRuntime, hook: str, way: str) -> None:
    if hook in {"info", "policy"}:
        handle = await runtime.register_adapter([f"route {way}"], BadAdapter(way, hook))
        await handle.dispose()
    elif hook == "routes":
        await runtime.register_adapter(misbehave(way), BadAdapter())
    elif hook == "route":
        handle = await runtime.register_adapter([misbehave(way)], BadAdapter())
        await handle.dispose()
    elif hook == "adapter":
        await runtime.register_adapter(["a"], misbehave(way))
    elif hook == "replace":
        handle = await runtime.register_adapter(["b"], BadAdapter())
        try:
            await handle.replace(misbehave(way))
        finally:
            await handle.dispose()
    elif hook == "namespace":
        offer = await runtime.register_model_discovery(misbehave(way), discoverer(runtime))
        await offer.dispose()
    elif hook == "entries":
        await runtime.register_configurable_providers(misbehave(way))
    elif hook == "settings":
        entry = LlmConfigurableProvider.model_construct(
            provider="x", display_name="X", settings_ns="ns", settings_path=misbehave(way)
        )
        await runtime.register_configurable_providers([entry])


async def setup(runtime: WorkerRuntime, context: Any) -> Callable[[], Any]:
    """Register everything; the options may name a hook and a way of the start or of the end."""
    hook, way = context.options.get("hook", ""), context.options.get("way", "")
    if hook == "setup":
        return await misbehave_async(way)
    await runtime.register_adapter([*WAYS, GOOD], BadAdapter())
    await runtime.register_model_discovery("bad", discoverer(runtime))

    async def close() -> None:
        if hook == "close":
            await misbehave_async(way)

    return close
