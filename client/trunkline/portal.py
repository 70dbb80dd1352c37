"""One event loop in one thread, and the way in for every other thread.

It knows no client: it runs what it is given on its loop and hands the outcome back.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.limits import CANCEL_S

from trunkline.errors import ForkedClientError

T = TypeVar("T")

MAX_LISTENER_THREADS: Final = 256  # blocking listeners that wait at the same time
_JOIN_S: Final = 5.0


class Portal:
    """A loop in a thread, for one process; `close` ends both."""

    def __init__(self) -> None:
        """Start the thread and wait until its loop runs."""
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._lock = threading.Lock()  # what is handed in after the loop's last round is never run
        self._threads = concurrent.futures.ThreadPoolExecutor(
            MAX_LISTENER_THREADS, thread_name_prefix="trunkline-listener"
        )
        self._thread = threading.Thread(target=self._main, name="trunkline", daemon=True)
        self._thread.start()
        self._started.wait()

    def _main(self) -> None:
        with asyncio.Runner() as runner:  # its end cancels what is left
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._started.set()
        await self._stopping.wait()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a child of the one that started the thread."""
        return self._pid != os.getpid()

    @property
    def is_over(self) -> bool:
        """Whether nothing can be run any more, so that there is nothing left to be let go of."""
        return self.is_foreign or self._loop is None

    def run(
        self,
        job: Callable[[], Coroutine[Any, Any, T]],
        interrupt: Callable[[], object] | None = None,
    ) -> T:
        """Run a coroutine on the loop and return its result.

        `KeyboardInterrupt` cancels it, waits for its end for at most 1 s, and is raised.

        Args:
            job: makes the coroutine.
            interrupt: called on the loop instead of cancelling; must lead to the end of the job.

        Raises:
            ForkedClientError: called in a forked child.
            LocalProtocolError: closed, or called on the loop's own thread, which it would block.
            Exception: what the job raises.
        """
        ended = threading.Event()

        async def watched() -> T:
            try:
                return await job()
            finally:
                ended.set()

        with self._lock:
            loop = self._usable_loop()
            future = asyncio.run_coroutine_threadsafe(watched(), loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise LocalProtocolError("this runtime was closed meanwhile") from None
        except KeyboardInterrupt:
            if interrupt is None:
                future.cancel()
            else:
                loop.call_soon_threadsafe(interrupt)
            ended.wait(CANCEL_S)
            raise

    def call(self, job: Callable[[], T]) -> T:
        """Run a plain function on the loop; raises as `run`."""

        async def called() -> T:
            return job()

        return self.run(called)

    async def in_thread(self, job: Callable[[], T]) -> T:
        """Run blocking code beside the loop; if cancelled, its end is not awaited.

        Raises:
            RuntimeError: the code raised `StopIteration`, which no future can carry.
            Exception: what else it raises.
        """

        def ended() -> T:
            try:
                return job()
            except StopIteration as exc:
                raise RuntimeError("blocking code raised StopIteration") from exc

        return await asyncio.get_running_loop().run_in_executor(self._threads, ended)

    def close(self) -> None:
        """End the loop and the thread; harmless when closed, and in a forked child."""
        loop, stopping = self._loop, self._stopping
        if loop is None or stopping is None or self.is_foreign:
            return
        with self._lock:
            self._loop = None
            loop.call_soon_threadsafe(stopping.set)
        self._thread.join(_JOIN_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        if self.is_foreign:
            raise ForkedClientError
        if self._loop is None:
            raise LocalProtocolError("this runtime is closed")
        if threading.current_thread() is self._thread:
            raise LocalProtocolError(
                "a blocking call in the runtime's own thread, such as in an observer, never ends"
            )
        return self._loop
