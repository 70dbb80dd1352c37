"""The answers that are worked out now: one reply per query, within its time, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from trunkline_protocol.failure import Code
from trunkline_protocol.frames import Query, Reply
from trunkline_protocol.ids import QueryId
from trunkline_workers import answers as answers_module
from trunkline_workers.answers import Answers
from trunkline_workers.foreign import SELF_CANCELLED
from trunkline_workers.host_task import HostTasks

from tests.support.timing import until_async


class World:
    """Answers over one coroutine function; keeps what was sent and released."""

    def __init__(self, answer: Callable[[Query], Coroutine[Any, Any, Reply]]) -> None:
        self.sent: list[Reply] = []
        self.released: list[QueryId] = []
        self.errors: list[BaseException] = []
        loop = asyncio.get_running_loop()
        self.tasks = HostTasks(loop, self.errors.append)
        self.answers = Answers(
            self.tasks, answer, self.sent.append, self.released.append, loop.call_later
        )

    async def codes(self, count: int) -> list[str]:
        await until_async(lambda: len(self.sent) >= count, what=f"replies: {self.sent}")
        return ["" if each.failure is None else str(each.failure["code"]) for each in self.sent]


def a_query(number: int = 1, timeout_ms: int = 0) -> Query:
    return Query(QueryId(bytes([number]) * 16), "listModels", "p", timeout_ms=timeout_ms)


async def good(query: Query) -> Reply:
    return Reply(query.query, None, b"\xc0")


async def deaf(query: Query) -> Reply:
    """Ignore the first cancellation, which is all that the host sends here."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.get_running_loop().create_future()
    await asyncio.get_running_loop().create_future()
    return await good(query)


async def test_an_answer_is_sent_once_and_a_repeated_query_is_answered_again() -> None:
    world = World(good)
    world.answers.begin(a_query())
    world.answers.begin(a_query())
    assert await world.codes(1) == [""]
    world.answers.begin(a_query())
    assert await world.codes(2) == ["", ""]
    assert not world.released


async def test_the_time_of_a_query_ends_it_also_where_the_adapter_ignores_that() -> None:
    world = World(deaf)
    world.answers.begin(a_query(timeout_ms=20))
    assert await world.codes(1) == [Code.TIMEOUT]
    assert world.released == [QueryId(b"\1" * 16)]


async def test_a_dropped_query_may_be_asked_again_at_once() -> None:
    turns = iter([deaf, good])

    async def answer(query: Query) -> Reply:
        return await next(turns)(query)

    world = World(answer)
    world.answers.begin(a_query())
    await asyncio.sleep(0)
    world.answers.drop(a_query().query)
    world.answers.begin(a_query())
    assert await world.codes(1) == [""]


async def test_what_a_dropped_answer_granted_late_is_released() -> None:
    go = asyncio.Event()

    async def late(query: Query) -> Reply:
        try:
            await go.wait()
        except asyncio.CancelledError:
            await go.wait()
        return await good(query)

    world = World(late)
    world.answers.begin(a_query())
    await asyncio.sleep(0)
    world.answers.drop(a_query().query)
    assert len(world.released) == 1
    go.set()
    await until_async(lambda: len(world.released) == 2)
    assert not world.sent


async def test_a_task_that_adapter_code_cancels_before_its_first_step_is_answered() -> None:
    world = World(good)
    world.answers.begin(a_query())
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    assert await world.codes(1) == [Code.UNKNOWN]
    assert world.sent[0].failure is not None
    assert world.sent[0].failure["message"] == SELF_CANCELLED


async def test_while_leaving_every_query_is_answered_at_once() -> None:
    world = World(deaf)
    world.answers.begin(a_query(1))
    await asyncio.sleep(0)
    world.answers.leave()
    world.answers.begin(a_query(2))
    assert await world.codes(2) == [Code.OVERLOADED] * 2


async def test_there_is_a_bound_on_tasks_that_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "MAX_OPEN_QUERIES_PER_WORKER", 2)
    world = World(deaf)
    for number in range(2):
        world.answers.begin(a_query(number))
        await asyncio.sleep(0)
        world.answers.drop(a_query(number).query)
    world.answers.begin(a_query(3))
    assert await world.codes(1) == [Code.OVERLOADED]
