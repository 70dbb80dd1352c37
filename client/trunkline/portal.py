"""One event loop in one thread, and the way in for every other thread.

It runs what it is given on its loop and hands the outcome back; it does not know the client. Every
wait ends when the loop's thread does, or when that thread has stood still for `STUCK_S`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.limits import CANCEL_S

from trunkline.errors import ForkedClientError
from trunkline.handed import Handed
from trunkline.listener_threads import ListenerThreads

T = TypeVar("T")

STUCK_S: Final = 30.0  # the loop answered nothing for so long: it waits for somebody, or is blocked
_LOOK_S: Final = 1.0  # how often a wait looks whether the loop lives
_LOOKS: Final = int(STUCK_S / _LOOK_S)  # counted, since a stopped process must not be blamed
_JOIN_S: Final = 5.0


class Portal:
    """A loop in a thread, for one process; `close` ends both."""

    def __init__(self) -> None:
        """Start the thread and wait until its loop runs.

        Raises:
            OSError: the loop cannot be made, such as without a free descriptor.
            RuntimeError: the system gives no thread.
            LocalProtocolError: the thread does not run within `STUCK_S`.
        """
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._threads = ListenerThreads()
        # What was handed in and has no outcome yet. Whoever takes a job out of it ends the job.
        self._handed: dict[int, Handed[Any]] = {}
        self._is_closing = False
        self._has_ended = False
        self._failure: BaseException | None = None
        self._started = threading.Lock()
        self._started.acquire()
        self._thread = threading.Thread(target=self._main, name="trunkline", daemon=True)
        self._thread.start()
        try:
            self._wait_for_start()
        except BaseException:  # a signal's too: the thread ends by itself
            self._is_closing = True
            self._stop()
            raise

    def _wait_for_start(self) -> None:
        if not self._started.acquire(timeout=STUCK_S):
            raise LocalProtocolError(f"the runtime's thread has not started within {STUCK_S:g} s")
        if self._loop is None and self._failure is not None:
            raise self._failure

    def _main(self) -> None:
        try:
            with asyncio.Runner() as runner:  # its end cancels what is left
                self._run(runner)
        except BaseException as exc:  # noqa: BLE001  the constructor raises it
            self._failure = self._failure or exc
        finally:
            self._has_ended = True  # before the look: what is handed in later finds it
            self._end_all()
            if self._loop is None:
                self._started.release()

    def _run(self, runner: asyncio.Runner) -> None:
        try:
            runner.run(self._serve())
        except BaseException as exc:  # noqa: BLE001  every waiting thread is told of it
            self._failure = exc
        finally:
            self._has_ended = True

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started.release()
        if not self._is_closing:
            await self._stopping.wait()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a child of the one that started the thread."""
        return self._pid != os.getpid()

    @property
    def is_over(self) -> bool:
        """Whether nothing can be run any more, so that there is nothing left to be let go of."""
        return self.is_foreign or self._is_closing or self._has_ended

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is the loop's own thread, which must not wait for the loop."""
        return threading.current_thread() is self._thread

    def run(
        self,
        job: Callable[[], Coroutine[Any, Any, T]],
        interrupt: Callable[[], object] | None = None,
    ) -> T:
        """Run a coroutine on the loop and return its result.

        An exception that interrupts the wait (`KeyboardInterrupt`, or what another signal handler
        raises) calls the job off. The end of the job is awaited for at most 1 s, and the exception
        raised. A signal handler may itself call this, whatever it interrupts.

        Args:
            job: makes the coroutine.
            interrupt: called on the loop instead of cancelling; must lead to the end of the job.

        Raises:
            ForkedClientError: called in a forked child.
            LocalProtocolError: closed, or called on the loop's own thread, which it would block;
                or the loop has ended or stood still for `STUCK_S` meanwhile.
            BaseException: what the job raises.
        """
        loop = self._usable_loop()
        handed = Handed(job, interrupt)
        number = id(handed)
        try:
            self._handed[number] = handed
            self._call(loop, handed.begin)
            self._wait(handed, loop)
        except BaseException:  # a signal's too: the job is called off and the exception goes on
            self._call(loop, handed.leave)
            handed.wait(CANCEL_S)
            raise
        finally:
            self._handed.pop(number, None)
        return handed.outcome(self._cancelled())

    def call(self, job: Callable[[], T]) -> T:
        """Run a plain function on the loop; raises as `run`."""

        async def called() -> T:
            return job()

        return self.run(called)

    def let_go(self, job: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a coroutine that gives something back; nothing happens when all is over.

        On the loop's own thread it is only started, since waiting would block it.
        """
        if self.is_over:
            return
        if self.is_own_thread:
            handed = Handed(job, None)
            handed.begin()
        else:
            self.run(job)

    def in_thread(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run blocking code beside the loop; if cancelled, its end is not awaited.

        Returns:
            What `ListenerThreads.start` returns.
        """
        return self._threads.start(job)

    def close(self) -> None:
        """End the loop and the thread; harmless when closed, and in a forked child.

        Waits for the thread for at most 5 s; every wait in `run` ends by then.

        Raises:
            LocalProtocolError: called on the loop's own thread; nothing has changed.
        """
        if self.is_foreign:
            return
        if self.is_own_thread:
            raise _own_thread()
        self._is_closing = True
        self._stop()
        self._thread.join(_JOIN_S)
        self._has_ended = True
        self._end_all()
        self._threads.close()

    def _stop(self) -> None:
        if self._loop is not None and self._stopping is not None:
            self._call(self._loop, self._stopping.set)

    def check_usable(self) -> None:
        """Raise as `run` where that would refuse the job at once."""
        self._usable_loop()

    # --- shared --------------------------------------------------------------------------------

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        if self.is_foreign:  # first: whatever the parent's threads held at the fork stays held
            raise ForkedClientError
        if self.is_own_thread:
            raise _own_thread()
        if self._loop is None or self._is_closing or self._has_ended:
            raise LocalProtocolError(self._closed())
        return self._loop

    def _call(self, loop: asyncio.AbstractEventLoop, what: Callable[[], object]) -> None:
        """Have the loop call something; if it has ended, what was handed in is over."""
        try:
            loop.call_soon_threadsafe(what)
        except RuntimeError:  # closed
            self._has_ended = True
        if self._has_ended:
            self._end_all()

    def _end_all(self) -> None:
        """End what was handed in; its loop has ended, and will not."""
        for number in list(self._handed):
            handed = self._handed.pop(number, None)
            if handed is not None:
                handed.end()

    def _wait(self, handed: Handed[Any], loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the end of a job, for as long as the loop answers."""
        looks = 0
        answered: list[None] = []
        while not handed.wait(_LOOK_S):
            if not self._thread.is_alive():
                self._call(loop, handed.end)
            elif answered or not looks:
                answered, looks = [], 1
                self._call(loop, lambda answered=answered: answered.append(None))
            else:
                looks += 1
                if looks > _LOOKS:
                    raise LocalProtocolError(self._stuck())

    def _stuck(self) -> str:
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  no other way
        frame = frames.get(self._thread.ident or 0)
        where = traceback.extract_stack(frame)[-1] if frame is not None else None
        at = "" if where is None else f"; it stands in {where.filename}:{where.lineno}"
        return (
            f"the runtime's thread has answered nothing for {STUCK_S:g} s{at}."
            " An observer or a listener must not block it"
        )

    def _closed(self) -> str:
        if self._failure is not None and not self._is_closing:
            return f"this runtime's thread has ended by {type(self._failure).__name__}"
        return "this runtime is closed"

    def _cancelled(self) -> str:
        if not self._is_closing and not self._has_ended:
            return "what this waits for was cancelled"
        if self._failure is not None and not self._is_closing:
            return self._closed()
        return "this runtime was closed meanwhile"


def _own_thread() -> LocalProtocolError:
    return LocalProtocolError(
        "a blocking call in the runtime's own thread, such as in an observer, never ends"
    )
