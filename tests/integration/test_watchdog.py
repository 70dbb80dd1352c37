"""One timer for all waits of a stream."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from trunkline_workers.loop_clock import LoopClock
from trunkline_workers.watchdog import Watchdog

from tests.support.loops import LOOPS, run_on

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("loop", sorted(LOOPS))]


def a_watchdog() -> Watchdog:
    loop = asyncio.get_running_loop()
    clock = LoopClock(loop)
    clock.hold()
    return Watchdog(loop, clock)


def test_a_wait_beyond_its_deadline_is_ended(loop: str) -> None:
    """It can tell that it was the deadline, and the task may go on."""

    async def job() -> None:
        dog = a_watchdog()
        dog.arm(asyncio.get_running_loop().time() + 0.01)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        assert dog.took_effect()
        assert not dog.took_effect()
        dog.close()
        await asyncio.sleep(0)

    run_on(loop, job())


def test_a_later_deadline_holds_also_where_the_timer_fires_for_the_earlier_one(loop: str) -> None:
    """Arming again before the timer has fired costs no new timer."""

    async def job() -> None:
        here = asyncio.get_running_loop()
        dog = a_watchdog()
        dog.arm(here.time() + 0.01)
        dog.disarm()
        dog.arm(here.time() + 30)
        await asyncio.sleep(0.03)
        dog.disarm()
        assert not dog.took_effect()
        dog.close()

    run_on(loop, job())


def test_what_arrived_while_the_loop_stood_still_is_read(loop: str) -> None:
    """A process that did not run for longer than the limit has not waited for its provider."""

    async def job() -> None:
        here = asyncio.get_running_loop()
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)

            def stand_still() -> None:
                far.send(b"x")
                time.sleep(0.1)

            dog = a_watchdog()
            here.call_soon(stand_still)
            dog.arm(here.time() + 0.01)
            assert await here.sock_recv(near, 1) == b"x"
            dog.close()

    run_on(loop, job())
