"""Waiting for facts in tests: a condition is looked at until it holds or a deadline has passed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

_MOST: Final = 8.0  # a machine that is busier than this is waited for no longer


def patience() -> float:
    """Return by how much longer than on an idle machine a fact may take now, 1 to 8.

    Programs that wait for a core make every fact late. The load of the last minute tells how many.
    """
    if stated := os.environ.get("SLOW"):
        return float(stated)
    return min(_MOST, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


SLOW: Final = patience()
"""Factor on every bound of a wait in a test; the environment variable SLOW sets it."""

LOOK_AGAIN_S: Final = 0.01


class NotSoonEnoughError(AssertionError):
    """The fact did not come true in time."""


def _give_up(began_s: float, timeout_s: float, what: str) -> None:
    """Raise once a wait has lasted longer than the machine's load excuses."""
    waited_s = time.monotonic() - began_s
    if waited_s > timeout_s and waited_s > timeout_s * max(SLOW, patience()):
        raise NotSoonEnoughError(f"{what} after {waited_s:.1f} s")


def until(fact: Callable[[], T], timeout_s: float = 5.0, what: str = "") -> T:
    """Return the first true value of `fact()`; for tests without a loop."""
    began_s = time.monotonic()
    while not (value := fact()):
        _give_up(began_s, timeout_s, what or f"{fact} is {value!r}")
        time.sleep(LOOK_AGAIN_S)
    return value


async def until_async(fact: Callable[[], T], timeout_s: float = 5.0, what: str = "") -> T:
    """Return the first true value of `fact()`, leaving the loop to others meanwhile."""
    began_s = time.monotonic()
    while not (value := fact()):
        _give_up(began_s, timeout_s, what or f"{fact} is {value!r}")
        await asyncio.sleep(LOOK_AGAIN_S)
    return value


async def until_answered(
    ask: Callable[[], Awaitable[T]], timeout_s: float = 5.0, what: str = ""
) -> T:
    """Return the first true answer; for facts that somebody must be asked for."""
    began_s = time.monotonic()
    while not (value := await ask()):
        _give_up(began_s, timeout_s, what or f"{ask} answers {value!r}")
        await asyncio.sleep(LOOK_AGAIN_S)
    return value
