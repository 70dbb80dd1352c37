"""The threads in which blocking listeners run, beside the loop that waits for them.

They are daemons, unlike those of `concurrent.futures`. The interpreter waits for those at its end,
so a listener whose provider is silent would keep the program from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from trunkline_protocol.failure import Code, LlmError

MAX_LISTENER_THREADS: Final = 256  # blocking listeners that wait at the same time
_PATIENCE_S: Final = 30.0  # listeners in listeners that hold all threads wait for each other


class _Step:
    """One call of blocking code; its future is resolved on the loop."""

    __slots__ = ("future", "job", "timer")

    def __init__(self, job: Callable[[], Any]) -> None:
        self.job = job
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None

    def run(self) -> tuple[object, BaseException | None]:
        """Return the result of the code, or what it raised."""
        try:
            return self.job(), None
        except StopIteration as exc:  # no future can carry it
            error = RuntimeError("blocking code raised StopIteration")
            error.__cause__ = exc
            return None, error
        except BaseException as exc:  # noqa: BLE001  it belongs to the code that awaits the step
            return None, exc

    def resolve(self, value: object, error: BaseException | None) -> None:
        """Hand the outcome to the code that awaits it, if it still does."""
        if self.timer is not None:
            self.timer.cancel()
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


class ListenerThreads:
    """Daemon threads, made as they are needed, up to a bound.

    All methods are called on one loop, which outlives every step that is awaited.
    """

    def __init__(self, most: int = MAX_LISTENER_THREADS, patience_s: float = _PATIENCE_S) -> None:
        """Start none.

        Args:
            most: threads at the same time.
            patience_s: how long a step waits for a thread.
        """
        self._most = most
        self._patience_s = patience_s
        self._steps: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._threads = 0
        self._open = 0  # steps that no thread has finished yet

    def start(self, job: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run blocking code in a thread.

        Returns:
            A future with what the code returns or raises; `RuntimeError` for a `StopIteration`.
            `LlmError` (`OVERLOADED`) if no thread is free in time. Cancelling it does not end the
            code.

        Raises:
            RuntimeError: the system gives no thread, and there is none yet.
        """
        step = _Step(job)
        if self._open >= self._threads and self._threads < self._most:
            self._add_thread()
        if self._open >= self._threads:
            loop = asyncio.get_running_loop()
            step.timer = loop.call_later(self._patience_s, self._give_up, step)
        self._open += 1
        self._steps.put(step)
        return step.future

    def _add_thread(self) -> None:
        loop = asyncio.get_running_loop()
        name = f"trunkline-listener-{self._threads}"
        thread = threading.Thread(target=self._serve, args=(loop,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system's limit of threads; those that are there go on
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while (step := self._steps.get()) is not None:
            outcome = (None, None) if step.future.done() else step.run()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody awaits the step
                loop.call_soon_threadsafe(self._finish, step, *outcome)
            del step, outcome  # or they would live until the next step

    def _finish(self, step: _Step, value: object, error: BaseException | None) -> None:
        self._open -= 1
        step.resolve(value, error)

    def _give_up(self, step: _Step) -> None:
        """End a step that has found no thread in time; a thread that takes it later drops it."""
        text = (
            f"a blocking listener has found no thread within {self._patience_s:g} s:"
            f" {self._threads} listeners wait already"
        )
        step.resolve(None, LlmError.of(text, Code.OVERLOADED))

    def close(self) -> None:
        """Let the idle threads end, and the others when their code returns."""
        for _ in range(self._threads):
            self._steps.put(None)
