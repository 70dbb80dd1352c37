"""`adapters-updated`: told to callbacks, and to iterators that each merge what they have not read.

Everything happens on the loop of the runtime. The event carries nothing: whoever hears it asks
again for what it shows.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Final, Self

from trunkline_protocol.failure import LocalProtocolError

from trunkline import arguments

Observer = Callable[[], object]
MAX_OBSERVERS: Final = 1024  # of one runtime, callbacks and iterators each

_log: Final = logging.getLogger("trunkline")


def tell(observer: Observer, name: str) -> None:
    """Call an observer in the middle of what the runtime does; its mistake stays its own.

    `SystemExit` and `KeyboardInterrupt` end the loop's run as in any callback, one turn later: what
    the runtime was about to do is done before.
    """
    try:
        observer()
    except (SystemExit, KeyboardInterrupt) as exc:
        asyncio.get_running_loop().call_soon(_raise, exc)
    except BaseException:  # noqa: BLE001  CancelledError, too, is the observer's own
        _log.exception("%s failed", name)


def _raise(exc: BaseException) -> None:
    raise exc


class AdapterEvents:
    """Who wants to hear that the provider topology changed."""

    def __init__(self) -> None:
        self._observers: dict[int, Observer] = {}
        self._iterators: dict[int, AdapterUpdates] = {}
        self._numbers = 0
        self._is_closed = False

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Have `observer()` called for each event; the result ends that and may be called twice.

        Raises:
            LocalProtocolError: no function, a coroutine function, or too many observers.
        """
        arguments.function("observer", observer)
        if inspect.iscoroutinefunction(observer):
            raise LocalProtocolError("observer: a plain function is required; iterate to await")
        number = self._number(len(self._observers))
        self._observers[number] = observer
        return lambda: _drop(self._observers, number)

    def iterate(self) -> AdapterUpdates:
        """Return an iterator that yields once for all events since it was last asked.

        Raises:
            LocalProtocolError: too many iterators are open.
        """
        number = self._number(len(self._iterators))
        updates = AdapterUpdates(lambda: _drop(self._iterators, number))
        if self._is_closed:
            updates.close()
        else:
            self._iterators[number] = updates
        return updates

    def emit(self) -> None:
        """Tell everybody; what an observer does wrong is logged and stays its own."""
        for updates in list(self._iterators.values()):
            updates.put()
        for observer in list(self._observers.values()):
            tell(observer, "an adapters-updated observer")

    def close(self) -> None:
        """End every iterator; nothing happens any more."""
        self._is_closed = True
        for updates in list(self._iterators.values()):
            updates.close()
        self._observers.clear()

    def _number(self, count: int) -> int:
        if count >= MAX_OBSERVERS:
            raise LocalProtocolError(f"{MAX_OBSERVERS} observers are registered already")
        self._numbers += 1
        return self._numbers


class AdapterUpdates:
    """The events since this iterator was made; made by `LlmRuntime.adapters_updated`.

    Ends when it is closed or the runtime is. Cancelling a task that waits loses no event.
    """

    def __init__(self, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._is_pending = False
        self._is_closed = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self) -> None:
        """Note an event, merged with one that was not read yet."""
        self._is_pending = True
        self._wake()

    def close(self) -> None:
        """End the iteration; an event that was not read yet is still yielded."""
        self._is_closed = True
        self._forget()
        self._wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        """Wait for the next event.

        Raises:
            StopAsyncIteration: closed.
            LocalProtocolError: two tasks read at once.
        """
        if self._waiter is not None:
            raise LocalProtocolError("an iterator of events is read by one task at a time")
        while not self._is_pending:
            if self._is_closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._is_pending = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    async def aclose(self) -> None:
        """As `close`."""
        self.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _drop(table: dict[int, Observer] | dict[int, AdapterUpdates], number: int) -> None:
    table.pop(number, None)
