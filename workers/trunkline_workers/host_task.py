"""The tasks of the host: each remembers whether the host itself has stopped it.

Adapter code runs in these tasks and may cancel them, on purpose or by way of a library. Such a
cancellation is the adapter's own trouble. Only `HostTask.stop` is a cancellation by the host, so
the counter of `asyncio.Task.cancelling` is never asked. The tasks are made without the task factory
of the loop, which adapter code may replace.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class HostTask(asyncio.Task[T]):
    """A task that tells a cancellation by the host from any other one.

    Attributes:
        is_stopped: whether the host has stopped it; set before the cancellation is delivered.
        is_shielded: as given.

    Args:
        coroutine: the body.
        loop: that runs it.
        context: of its context variables; `None`: a copy of the current one.
        is_shielded: ignore every `cancel` but that of `stop`. For bodies that await no adapter code
            and use no `asyncio.timeout`.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T],
        *,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None = None,
        is_shielded: bool = False,
    ) -> None:
        self.is_stopped = False
        self.is_shielded = is_shielded
        super().__init__(coroutine, loop=loop, context=context)

    def stop(self) -> None:
        """Cancel the task for the host; may be repeated where its code swallows cancellations."""
        self.is_stopped = True
        super().cancel()

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the task for anybody else; a shielded task goes on.

        Returns:
            Whether a cancellation was requested.
        """
        if self.is_shielded and not self.is_stopped:
            return False
        return super().cancel(msg)


def own_task() -> asyncio.Task[Any] | None:
    """Return the task that runs now; `None` outside of a running loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs: a coroutine is closed while the process ends
        return None


def is_stopped(task: asyncio.Task[Any] | None) -> bool:
    """Return whether the host has stopped a task."""
    return isinstance(task, HostTask) and task.is_stopped


class HostTasks:
    """Owns the tasks of one host until they end.

    Args:
        loop: that runs them.
        on_error: takes what escaped from a task. Adapter errors never escape, so this is a broken
            invariant of the host.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_error: Callable[[BaseException], None]
    ) -> None:
        self._loop = loop
        self._on_error = on_error
        self._open: set[HostTask[Any]] = set()

    def start(
        self,
        coroutine: Coroutine[Any, Any, T],
        *,
        context: contextvars.Context | None = None,
        is_shielded: bool = False,
    ) -> HostTask[T]:
        """Run a coroutine as a task; arguments as for `HostTask`."""
        task = HostTask(coroutine, loop=self._loop, context=context, is_shielded=is_shielded)
        self._open.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def stop_all(self, timeout_s: float) -> int:
        """Stop every task that runs adapter code and wait for their ends.

        Shielded tasks end by themselves, once what they wait for is answered.

        Args:
            timeout_s: how long at most.

        Returns:
            How many tasks have not ended: their adapter code ignores that it was cancelled.
        """
        tasks = [task for task in self._open if not task.is_shielded]
        for task in tasks:
            task.stop()
        await wait_for_all(tasks, timeout_s)
        return sum(not task.done() for task in tasks)

    def _on_done(self, task: HostTask[Any]) -> None:
        self._open.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_error(error)


async def wait_for_all(tasks: list[HostTask[Any]], timeout_s: float) -> None:
    """Wait until every task has ended, `timeout_s` at most; a stray cancellation changes nothing.

    `asyncio.wait` cancels nothing, so it can be begun again.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + timeout_s
    while (left := [task for task in tasks if not task.done()]) and loop.time() < until_s:
        try:
            await asyncio.wait(left, timeout=until_s - loop.time())
        except asyncio.CancelledError:
            if is_stopped(own_task()):
                raise
