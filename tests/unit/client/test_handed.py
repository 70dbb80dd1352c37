"""A job between two threads: one outcome, whatever ends it, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest
from trunkline.handed import Handed
from trunkline_protocol.failure import LocalProtocolError

SOON_S = 10.0


class OddError(BaseException):
    """As adapters and listeners raise it, too."""


async def forever() -> int:
    await asyncio.Event().wait()
    return 0


async def five() -> int:
    return 5


async def test_a_result_is_handed_over_as_often_as_it_is_asked_for() -> None:
    handed = Handed(five, None)
    assert not handed.wait(0.0)
    handed.begin()
    assert await asyncio.to_thread(handed.wait, SOON_S)
    assert handed.wait(0.0)
    assert handed.outcome("cancelled") == 5


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, OddError])
async def test_whatever_it_raises_ends_the_wait_and_not_the_loop(
    error: type[BaseException],
) -> None:
    async def wrong() -> int:
        raise error

    handed = Handed(wrong, None)
    handed.begin()
    assert await asyncio.to_thread(handed.wait, SOON_S)
    with pytest.raises(error):
        handed.outcome("cancelled")


async def test_a_job_that_was_left_is_cancelled_or_never_begun() -> None:
    for is_late in (False, True):
        handed = Handed(forever, None)
        if is_late:
            handed.begin()
            await asyncio.sleep(0)
        handed.leave()
        handed.begin()  # a turn late
        assert await asyncio.to_thread(handed.wait, SOON_S)
        with pytest.raises(LocalProtocolError, match="cancelled"):
            handed.outcome("cancelled")


@pytest.mark.parametrize("is_wrong", [False, True])
async def test_an_interrupt_ends_the_job_its_own_way(*, is_wrong: bool) -> None:
    """One that fails leaves it to a cancellation."""
    gate = asyncio.Event()

    async def gated() -> int:
        await gate.wait()
        return 7

    def interrupt() -> None:
        if is_wrong:
            raise LocalProtocolError("closed")
        gate.set()

    handed = Handed(gated, interrupt)
    handed.begin()
    await asyncio.sleep(0)
    handed.leave()
    assert await asyncio.to_thread(handed.wait, SOON_S)
    if is_wrong:
        with pytest.raises(LocalProtocolError):
            handed.outcome("cancelled")
    else:
        assert handed.outcome("cancelled") == 7


def test_a_job_whose_loop_never_came_is_over_by_word() -> None:
    """Twice is harmless."""
    handed = Handed(five, None)
    waits = threading.Thread(target=handed.wait, args=(SOON_S,))
    waits.start()
    handed.end()
    handed.end()
    waits.join(SOON_S)
    assert not waits.is_alive()
    with pytest.raises(LocalProtocolError):
        handed.outcome("cancelled")
