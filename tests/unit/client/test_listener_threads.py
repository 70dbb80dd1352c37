"""Threads for blocking listeners: bounded, made as needed, and none is waited for without end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from trunkline.listener_threads import ListenerThreads
from trunkline_protocol.failure import LlmError

SOON_S = 10.0


async def soon(step: asyncio.Future[Any]) -> Any:
    return await asyncio.wait_for(step, SOON_S)


def raising(error: type[BaseException]) -> Callable[[], Any]:
    def job() -> None:
        raise error

    return job


async def test_code_runs_in_daemon_threads_that_are_used_again() -> None:
    threads = ListenerThreads()
    seen = {await soon(threads.start(threading.current_thread)) for _ in range(5)}
    assert len(seen) == 1
    assert all(thread.daemon for thread in seen)
    threads.close()
    for thread in seen:
        await asyncio.to_thread(thread.join, SOON_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError, GeneratorExit])
async def test_whatever_the_code_raises_is_the_callers(error: type[BaseException]) -> None:
    threads = ListenerThreads()
    with pytest.raises(error):
        await soon(threads.start(raising(error)))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await soon(threads.start(raising(StopIteration)))
    assert await soon(threads.start(lambda: 5)) == 5
    threads.close()


async def test_listeners_in_listeners_that_hold_all_threads_are_told() -> None:
    """They would wait for each other; what is free again serves the next one."""
    threads = ListenerThreads(most=2, patience_s=0.05)
    gate = threading.Event()
    outer = [threads.start(lambda: gate.wait(SOON_S)) for _ in range(2)]
    with pytest.raises(LlmError, match="2 listeners wait") as caught:
        await soon(threads.start(lambda: 1))
    assert caught.value.code == "OVERLOADED"
    gate.set()
    assert [await soon(step) for step in outer] == [True, True]
    assert await soon(threads.start(lambda: 2)) == 2
    threads.close()


async def test_a_step_that_waits_is_run_when_a_thread_is_free() -> None:
    threads = ListenerThreads(most=1, patience_s=SOON_S)
    gate = threading.Event()
    first, dropped, second = (
        threads.start(lambda: gate.wait(SOON_S)),
        threads.start(lambda: 1),
        threads.start(lambda: 2),
    )
    dropped.cancel()
    gate.set()
    assert await soon(second) == 2
    assert first.done()
    threads.close()
