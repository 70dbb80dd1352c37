"""Runs the event loop of a worker to the end of its host, whatever adapter code does to the loop.

`SystemExit` and `KeyboardInterrupt` from a callback or a task of the adapter leave the loop, and so
does `loop.stop()`. The loop itself is unharmed by either, so it is run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from trunkline_workers.foreign import failure_of
from trunkline_workers.host_task import HostTask

_LEFT_S: Final = 1.0  # for tasks that the adapter has left behind, and then for its generators


class Runnable(Protocol):
    """What the runner needs of a host."""

    def run(self) -> Coroutine[Any, Any, int]:
        """Return what runs to the end and returns the exit code."""
        ...

    def report(self, diagnostic: str) -> None:
        """Take a line for the log."""
        ...


def run_host(host: Runnable) -> int:
    """Run a worker on uvloop, or on asyncio where there is none; returns its exit code."""
    loop = new_loop()
    asyncio.set_event_loop(loop)
    task = HostTask(host.run(), loop=loop, is_shielded=True)
    try:
        while not task.done():
            try:
                loop.run_until_complete(task)
            # Raised by a callback that is not ours, or by `loop.stop()`.
            except BaseException as exc:  # noqa: BLE001
                if not task.done():
                    host.report(f"adapter code left the event loop: {failure_of(exc).message}")
        return task.result()
    finally:
        _close(loop)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a fresh event loop of the fastest kind that is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:  # Windows, or an adapter's own lean environment
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what the adapter has left running, for a moment, and close the loop."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _finish(loop, _waited(left))
    _finish(loop, _without_generators(loop))
    loop.close()


async def _waited(left: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(left, timeout=_LEFT_S)


async def _without_generators(loop: asyncio.AbstractEventLoop) -> None:
    closing = HostTask(loop.shutdown_asyncgens(), loop=loop)
    await asyncio.wait([closing], timeout=_LEFT_S)


def _finish(loop: asyncio.AbstractEventLoop, body: Coroutine[Any, Any, None]) -> None:
    task = HostTask(body, loop=loop, is_shielded=True)
    while not task.done():
        try:
            loop.run_until_complete(task)
        # As in run_host; the host's log is closed by now.
        except BaseException:  # noqa: BLE001, S112
            continue
