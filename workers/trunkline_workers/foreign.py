"""The one way into adapter code: whatever it raises becomes a failure of that one call.

Every call into an adapter, a plugin or one of their objects goes through `call` or `await_`.
Both raise `LlmError` and nothing else, whatever the code raises: `SystemExit`, a cancellation of
its own, an exception whose text cannot be had. A cancellation by the host passes (`host_task`).
This file knows neither streams nor queries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast

from trunkline_protocol.failure import (
    NOTHING_SAID,
    Code,
    LlmError,
    LlmFailure,
    normalize_failure,
)

from trunkline_workers.host_task import is_stopped, own_task

T = TypeVar("T")

MAX_RAW_CHARS: Final = 8192  # of a text before secrets are taken out: twice what is kept
_MAX_DETAIL_CHARS: Final = 200  # of a value that stands inside of a sentence
_MAX_GROUPS: Final = 64  # nested groups of one that are looked into
SELF_CANCELLED: Final = "the adapter cancelled its own call"
_NAME_OF: Final = type.__dict__["__name__"].__get__


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function of an adapter.

    Raises:
        LlmError: whatever the function raises, as `failure_of` describes it.
    """
    try:
        return function(*arguments)
    except BaseException as exc:
        raise LlmError(failure_of(exc)) from exc


async def await_(function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Call a coroutine function of an adapter and await its result.

    Raises:
        LlmError: whatever it raises, its own `CancelledError` included.
        asyncio.CancelledError: the host has stopped this task.
    """
    task = own_task()
    try:
        return await function(*arguments)
    except BaseException as exc:
        if is_ours(exc, task):
            raise asyncio.CancelledError from exc  # whatever the adapter made of it
        if is_closing(exc, task):
            raise
        raise LlmError(failure_of(exc)) from exc


def is_ours(exc: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether an exception follows from a cancellation by the host.

    Args:
        exc: what the code in `task` raised.
        task: that ran the code.
    """
    return is_stopped(task) and not is_closing(exc, task)


def is_closing(exc: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return whether the interpreter closes the coroutine of a task that never runs again.

    The exception must then leave the coroutine as it is, and nothing may be awaited any more.
    """
    return is_a(exc, GeneratorExit) and own_task() is not task


def failure_of(raised: BaseException) -> LlmFailure:
    """Describe what adapter code raised; texts are bounded, secrets are still in them.

    Nothing that the exception's own code does escapes from here.
    """
    try:
        return _described(innermost(raised))
    # The code of a foreign exception class runs here: any text or attribute may raise anything.
    except BaseException:  # noqa: BLE001
        return LlmFailure(f"the adapter raised {class_name(raised)}", Code.UNKNOWN)


def _described(raised: BaseException) -> LlmFailure:
    if is_a(raised, asyncio.CancelledError):
        return LlmFailure(SELF_CANCELLED, Code.UNKNOWN)
    if is_a(raised, SystemExit):
        code = cast("SystemExit", raised).code
        return LlmFailure(f"the adapter called exit({_detail(code)})", Code.UNKNOWN)
    if not is_a(raised, Exception):
        said = _detail(raised, str)
        text = f"the adapter raised {class_name(raised)}"
        return LlmFailure(f"{text}: {said}" if said else text, Code.UNKNOWN)
    failure = normalize_failure(raised)
    if failure.message.strip() and failure.message != NOTHING_SAID:
        return bounded(failure)
    return LlmFailure(f"the adapter raised {class_name(raised)}", failure.code)


def bounded(failure: LlmFailure) -> LlmFailure:
    """Return a failure whose texts are cut, before anything looks for secrets in them."""
    request_id = failure.request_id
    return LlmFailure(
        failure.message[:MAX_RAW_CHARS],
        failure.code[:MAX_RAW_CHARS],
        failure.status,
        failure.provider_retry_after_ms,
        None if request_id is None else request_id[:MAX_RAW_CHARS],
    )


def innermost(raised: BaseException) -> BaseException:
    """Look into groups of one: task groups wrap the only error of an adapter."""
    found = raised
    for _ in range(_MAX_GROUPS):
        if not is_a(found, BaseExceptionGroup):
            return found
        members = cast("BaseExceptionGroup[BaseException]", found).exceptions
        if len(members) != 1:
            return raised
        found = members[0]
    return raised


def is_a(value: object, kind: type[object]) -> bool:
    """Return whether a value is of a class; asks its real class, since `__class__` may raise."""
    return issubclass(type(value), kind)


def class_name(value: object) -> str:
    """Return the name of a value's class as printable text, whatever the class does."""
    name = str.__str__(_NAME_OF(type(value)))
    return name[:_MAX_DETAIL_CHARS] if name.isprintable() else "an exception"


def _detail(value: object, render: Callable[[object], str] = repr) -> str:
    """Return a value as a short text for a sentence; what cannot be rendered is named."""
    try:
        text = str.__str__(render(value))
    # As in failure_of: foreign code.
    except BaseException:  # noqa: BLE001
        return f"<{class_name(value)}>"
    return text[:_MAX_DETAIL_CHARS]
