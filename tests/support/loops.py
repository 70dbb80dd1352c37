"""Running a test's coroutine on a loop of either kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOPS: Final[dict[str, LoopFactory]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run_on(kind: str, job: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a fresh loop; an error in any callback fails the test."""
    errors: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: errors.append(seen))
        await job

    with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
        runner.run(watched())
    assert not errors, errors
