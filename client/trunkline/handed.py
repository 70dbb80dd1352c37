"""One job that a thread has handed to the loop of a `Portal`, and waits for.

The waiting side holds no Python-level lock: a signal handler that interrupts it and hands in a job
of its own must find the loop able to answer. `threading.Event` and `concurrent.futures.Future` are
not used for that reason: their waiters hold a condition's lock between two instructions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from trunkline_protocol.failure import LocalProtocolError

T = TypeVar("T")
_running: Final[set[asyncio.Future[None]]] = set()  # a loop itself keeps no task alive


class Handed(Generic[T]):
    """A coroutine to be run on a loop, and its outcome.

    `begin`, `leave` and `end` are called on the loop's thread, or by anybody once that has ended.

    Attributes:
        is_over: the outcome is known, or will never come.
    """

    __slots__ = ("_error", "_interrupt", "_is_left", "_job", "_over", "_task", "_value", "is_over")

    def __init__(
        self, job: Callable[[], Coroutine[Any, Any, T]], interrupt: Callable[[], object] | None
    ) -> None:
        """Take a job.

        Args:
            job: makes the coroutine.
            interrupt: called by `leave` instead of cancelling; must lead to the end of the job.
        """
        self._job = job
        self._interrupt = interrupt
        self._task: asyncio.Future[None] | None = None
        self._over = threading.Lock()  # a plain lock may be released by another thread
        self._over.acquire()
        self._value: T | None = None
        self._error: BaseException | None = asyncio.CancelledError()  # as long as it has not ended
        self._is_left = False
        self.is_over = False

    def begin(self) -> None:
        """Start the job, unless nobody waits for it any more."""
        if self._is_left or self.is_over:
            self.end()
        else:
            self._task = asyncio.ensure_future(self._run())
            _running.add(self._task)
            self._task.add_done_callback(_running.discard)

    async def _run(self) -> None:
        try:
            self._value = await self._job()
            self._error = None
        except BaseException as exc:  # noqa: BLE001  SystemExit in a task would end the loop
            self._error = exc
        finally:
            self.end()

    def leave(self) -> None:
        """Call the job off: its thread waits no longer."""
        self._is_left = True
        if self._task is None:
            self.end()
        elif self._interrupt is None or not self._has_interrupted(self._interrupt):
            self._task.cancel()

    def _has_interrupted(self, interrupt: Callable[[], object]) -> bool:
        try:
            interrupt()
        except Exception:  # noqa: BLE001  such as a runtime that was closed: cancelling is left
            return False
        return True

    def end(self) -> None:
        """Let the waiting thread go on; harmless when it does."""
        if not self.is_over:
            self.is_over = True
            self._over.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end for at most so long; return whether it has come."""
        if self._over.acquire(timeout=timeout_s):
            self._over.release()  # a second look finds the same
            return True
        return False

    def outcome(self, cancelled: str) -> T:
        """Return the result of a job that is over.

        Args:
            cancelled: text of the error for a job that was cancelled.

        Raises:
            LocalProtocolError: the job was cancelled.
            BaseException: what the job raised.
        """
        error = self._error
        if error is None:
            return self._value  # type: ignore[return-value]  # set where the error was cleared
        if isinstance(error, asyncio.CancelledError):
            raise LocalProtocolError(cancelled) from None
        try:
            raise error
        finally:
            del error  # its traceback names this frame
