"""One timer for all waits of a stream: it cancels the waiting task when a deadline passes.

`asyncio.timeout` around every read would make and cancel a timer per read; here a read only notes
its deadline, and the timer that is already running looks at it when it fires.
"""

from __future__ import annotations

import asyncio


class Watchdog:
    """Cancel the task that waits, unless it is disarmed in time."""

    __slots__ = (
        "_cancelling",
        "_deadline_s",
        "_handle",
        "_has_fired",
        "_is_looked_at",
        "_loop",
        "_task",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._deadline_s = 0.0
        self._cancelling = 0
        self._has_fired = False
        self._is_looked_at = False

    def arm(self, deadline_s: float) -> None:
        """Watch the current task's next wait until a second of the loop's clock."""
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("a response is read by a task")
        self._task = task
        self._cancelling = task.cancelling()
        self._deadline_s = deadline_s
        self._is_looked_at = False
        handle = self._handle
        if handle is None or handle.when() > deadline_s:
            self._schedule()

    def disarm(self) -> None:
        """End the wait; the timer stays for the next one."""
        self._task = None

    def took_effect(self) -> bool:
        """Tell, after a cancellation, whether it was the deadline alone that caused it."""
        task = self._task
        if not self._has_fired or task is None:
            return False
        self._has_fired = False
        return task.uncancel() <= self._cancelling

    def close(self) -> None:
        """Stop the timer; idempotent."""
        self._task = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _schedule(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(self._deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        self._handle = None
        if self._task is None:
            return
        late_s = self._loop.time() - self._deadline_s
        if late_s < 0:
            self._schedule()
            return
        if not self._is_looked_at:
            # Time in which this loop did not run is nobody's silence, and what has arrived by now
            # is read before it is missed.
            self._is_looked_at = True
            self._handle = self._loop.call_later(late_s, self._on_timer)
            return
        self._has_fired = True
        self._task.cancel()
