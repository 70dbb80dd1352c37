"""Waiting for facts in tests: a condition is looked at until it holds or a deadline has passed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

SLOW: Final = float(os.environ.get("SLOW", "1"))
"""Factor on every time in a test; larger on a slow machine."""

LOOK_AGAIN_S: Final = 0.01


class NotSoonEnoughError(AssertionError):
    """The fact did not come true in time."""


def until(fact: Callable[[], T], timeout_s: float = 5.0, what: str = "") -> T:
    """Return the first true value of `fact()`; for tests without a loop."""
    deadline_s = time.monotonic() + timeout_s * SLOW
    while not (value := fact()):
        if time.monotonic() > deadline_s:
            raise NotSoonEnoughError(what or f"{fact} is {value!r} after {timeout_s * SLOW} s")
        time.sleep(LOOK_AGAIN_S)
    return value


async def until_async(fact: Callable[[], T], timeout_s: float = 5.0, what: str = "") -> T:
    """Return the first true value of `fact()`, leaving the loop to others meanwhile."""
    deadline_s = time.monotonic() + timeout_s * SLOW
    while not (value := fact()):
        if time.monotonic() > deadline_s:
            raise NotSoonEnoughError(what or f"{fact} is {value!r} after {timeout_s * SLOW} s")
        await asyncio.sleep(LOOK_AGAIN_S)
    return value


async def until_answered(
    ask: Callable[[], Awaitable[T]], timeout_s: float = 5.0, what: str = ""
) -> T:
    """Return the first true answer; for facts that somebody must be asked for."""
    deadline_s = time.monotonic() + timeout_s * SLOW
    while not (value := await ask()):
        if time.monotonic() > deadline_s:
            raise NotSoonEnoughError(what or f"{ask} answers {value!r} after {timeout_s * SLOW} s")
        await asyncio.sleep(LOOK_AGAIN_S)
    return value
