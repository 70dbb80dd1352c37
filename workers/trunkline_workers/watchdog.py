"""One timer for all waits of a stream: it cancels the waiting task when a deadline passes.

`asyncio.timeout` around every read would make and cancel a timer per read; here a read only notes
its deadline, and the timer that is already running looks at it when it fires. Deadlines are seconds
of a `LoopClock`, which leaves out the time in which the loop ran late.
"""

from __future__ import annotations

import asyncio

from trunkline_workers.loop_clock import LoopClock


class Watchdog:
    """Cancel the task that waits, unless it is disarmed in time.

    Args:
        loop: of the waiting tasks.
        clock: of the deadlines, of the same loop.
    """

    __slots__ = (
        "_cancelling",
        "_clock",
        "_deadline_s",
        "_handle",
        "_has_fired",
        "_is_looked_at",
        "_loop",
        "_task",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: LoopClock) -> None:
        self._loop = loop
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._deadline_s = 0.0
        self._cancelling = 0
        self._has_fired = False
        self._is_looked_at = False

    def arm(self, deadline_s: float) -> None:
        """Watch the current task's next wait until a second of the clock."""
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("a response is read by a task")
        self._task = task
        self._cancelling = task.cancelling()
        self._deadline_s = deadline_s
        self._is_looked_at = False
        handle = self._handle
        if handle is None or handle.when() > self._due_s():
            self._schedule()

    def disarm(self) -> None:
        """End the wait; the timer stays for the next one."""
        self._task = None

    def took_effect(self) -> bool:
        """Return whether, after a cancellation, the deadline alone caused it."""
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

    def _due_s(self) -> float:
        """Return the deadline as a second of the loop, if it is not late again."""
        return self._deadline_s + self._clock.lost_s

    def _schedule(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(self._due_s(), self._on_timer)

    def _on_timer(self) -> None:
        self._handle = None
        if self._task is None:
            return
        if self._clock.now_s() < self._deadline_s:  # the loop was late meanwhile
            self._schedule()
        elif not self._is_looked_at:
            # What has arrived by now is read before it is missed.
            self._is_looked_at = True
            self._handle = self._loop.call_later(0, self._on_timer)
        else:
            self._has_fired = True
            self._task.cancel()
