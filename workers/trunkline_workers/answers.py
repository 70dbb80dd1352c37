"""The answers that are worked out now: one task per query, one reply per query, within its time.

The time of a query is kept here and not by its task, since adapter code may ignore that it is
cancelled. What an answer has granted is released if its reply is not sent. This file does not know
how a query is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from trunkline_protocol.failure import Code, LlmFailure
from trunkline_protocol.frames import Query, Reply
from trunkline_protocol.ids import QueryId
from trunkline_protocol.limits import MAX_OPEN_QUERIES_PER_WORKER

from trunkline_workers.foreign import SELF_CANCELLED
from trunkline_workers.host_task import HostTask, HostTasks
from trunkline_workers.queries import failed

_LEAVING: Final = "this worker is about to leave"


class Answers:
    """Runs queries and sends their replies.

    Args:
        tasks: owns the tasks.
        answer: works out one reply; never raises but for a cancellation by the host.
        send: sends a reply.
        release: forgets what the answer to a query has granted; harmless if that is nothing.
        call_later: as of the loop.
    """

    def __init__(
        self,
        tasks: HostTasks,
        answer: Callable[[Query], Coroutine[Any, Any, Reply]],
        send: Callable[[Reply], None],
        release: Callable[[QueryId], None],
        call_later: Callable[..., asyncio.TimerHandle],
    ) -> None:
        self._tasks = tasks
        self._answer = answer
        self._send = send
        self._release = release
        self._call_later = call_later
        self._open: dict[QueryId, _Open] = {}
        self._running = 0  # tasks, those included whose answer nobody waits for
        self._is_leaving = False

    def begin(self, query: Query) -> None:
        """Work out the answer to a query, or go on if it is asked again meanwhile."""
        if self._is_leaving:
            self._send(failed(query, LlmFailure(_LEAVING, Code.OVERLOADED)))
            return
        if query.query in self._open:
            return
        if self._running >= MAX_OPEN_QUERIES_PER_WORKER:
            text = f"{query.op}: this worker already answers {self._running} queries"
            self._send(failed(query, LlmFailure(text, Code.OVERLOADED)))
            return
        self._running += 1
        found = _Open(query, self._tasks.start(self._answer(query)))
        self._open[query.query] = found
        if query.timeout_ms:
            found.timer = self._call_later(query.timeout_ms / 1000, self._expire, found)
        found.task.add_done_callback(lambda task: self._on_done(found, task))

    def drop(self, query: QueryId) -> None:
        """Forget a query: nobody waits for its answer, and what it granted is released.

        The same query may be asked again at once.
        """
        found = self._open.pop(query, None)
        if found is not None:
            found.stop()
        self._release(query)

    def leave(self) -> None:
        """Answer every open query now, and every later one at once."""
        self._is_leaving = True
        for found in list(self._open.values()):
            self._end(found, LlmFailure(_LEAVING, Code.OVERLOADED))

    def _expire(self, found: _Open) -> None:
        text = f"{found.query.op}: no answer in time"
        self._end(found, LlmFailure(text, Code.TIMEOUT))

    def _end(self, found: _Open, failure: LlmFailure) -> None:
        """Reply without waiting for the task, which may take its time or never end."""
        if self._open.get(found.query.query) is found:
            self.drop(found.query.query)
            self._send(failed(found.query, failure))

    def _on_done(self, found: _Open, task: asyncio.Task[Reply]) -> None:
        self._running -= 1
        if found.timer is not None:
            found.timer.cancel()
        number = found.query.query
        current = self._open.get(number)
        if current is not found:
            if current is None:
                self._release(number)  # granted after the query was dropped
            return
        # Before the reply is sent: a query that is repeated after it is answered again.
        del self._open[number]
        if task.cancelled() or task.exception() is not None:
            # Cancelled by adapter code before its first step: its body had no chance to answer.
            self._send(failed(found.query, LlmFailure(SELF_CANCELLED, Code.UNKNOWN)))
        else:
            self._send(task.result())


class _Open:
    """One query with its task."""

    __slots__ = ("query", "task", "timer")

    def __init__(self, query: Query, task: HostTask[Reply]) -> None:
        self.query = query
        self.task = task
        self.timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Stop the task and its time."""
        if self.timer is not None:
            self.timer.cancel()
        self.task.stop()
