"""Connections to providers: made, lent to one call at a time, kept while their servers keep them.

Each connection has an HTTP client of its own, so that a call owns its socket and can cut it. Which
kept one may be used again is decided by `core.keep_alive`; this file knows neither requests nor
limits.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import httpx

from trunkline_workers.core.keep_alive import KEPT_S, KeepAlive, Use
from trunkline_workers.wires import Wires

_SERVERS_MAX: Final = 256  # whose habits are remembered; drafts of discovery name any server
_TURNS: Final = 3  # of the loop, in which what the kernel holds is read
_SWEEP_S: Final = 5.0


class Connection(ABC):
    """One connection and the client that speaks on it.

    Args:
        client: of this connection alone.
        wires: its sockets.
    """

    def __init__(self, client: httpx.AsyncClient, wires: Wires) -> None:
        self.client = client
        self.wires = wires

    @abstractmethod
    def enter(self) -> None:
        """Have requests of the current task report to this connection."""

    @property
    @abstractmethod
    def has_leftovers(self) -> bool:
        """Return whether bytes came behind the end of the last answer."""

    async def close(self) -> None:
        """Cut the connection and wait until its socket is gone, at most for a second."""
        self.wires.on_connected = self.wires.on_lost = None
        self.wires.abort()
        await self.wires.gone()
        await self.client.aclose()


class _Kept:
    """A connection that no call uses.

    Attributes:
        connection: that is kept.
        since_s: monotonic second of the end of its last answer.
        is_closed: the server has closed it.
    """

    __slots__ = ("connection", "is_closed", "since_s")

    def __init__(self, connection: Connection, since_s: float) -> None:
        self.connection = connection
        self.since_s = since_s
        self.is_closed = False


class ConnectionPool:
    """The connections of one client.

    Args:
        make: returns a connection that is not made yet.
        kept_max: connections that are kept without a call.
        own: runs work that must end even if its call is gone.
    """

    def __init__(
        self,
        make: Callable[[], Connection],
        kept_max: int,
        own: Callable[[Connection], object],
    ) -> None:
        self._make = make
        self._kept_max = kept_max
        self._close = own
        self._loop = asyncio.get_running_loop()
        self._kept: dict[str, list[_Kept]] = {}  # by server, the newest last
        self._habits: dict[str, KeepAlive] = {}
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def kept_count(self) -> int:
        """Connections that no call uses."""
        return sum(map(len, self._kept.values()))

    async def take(self, server: str) -> Connection:
        """Return a connection for one call; it may be kept from an earlier one.

        Args:
            server: scheme, host and port.
        """
        while (kept := self._pop(server)) is not None:
            is_usable = False
            try:
                is_usable = await self._is_usable(kept, server)
            finally:
                if not is_usable:  # a cancel too
                    self._drop(kept)
            if is_usable:
                kept.connection.wires.on_lost = None
                return kept.connection
        return self._make()

    def give_back(self, connection: Connection, server: str, keep_alive: str | None) -> None:
        """Take a connection whose answer was read to its end.

        Args:
            connection: from `take`.
            server: as it was taken for.
            keep_alive: the `Keep-Alive` header of the answer.
        """
        habits = self._habits_of(server)
        habits.state(keep_alive)
        is_usable = connection.wires.is_open and not connection.has_leftovers
        if not is_usable or self.kept_count >= self._kept_max or not self._limit_s(habits):
            self._close(connection)
            return
        kept = _Kept(connection, self._loop.time())
        connection.wires.on_lost = lambda: self._on_lost(kept, server)
        self._kept.setdefault(server, []).append(kept)
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._on_sweep)

    async def close(self) -> None:
        """Close all connections that no call uses."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        connections = [kept.connection for each in self._kept.values() for kept in each]
        self._kept.clear()
        await asyncio.gather(*(each.close() for each in connections))

    def _pop(self, server: str) -> _Kept | None:
        """Take the connection that was used last, out of those that are kept."""
        there = self._kept.get(server)
        if not there:
            return None
        kept = there.pop()
        if not there:
            del self._kept[server]
        return kept

    async def _is_usable(self, kept: _Kept, server: str) -> bool:
        """Return whether a connection may carry a call, after its server had time to close it."""
        habits, wires = self._habits_of(server), kept.connection.wires
        while True:
            for _ in range(_TURNS):
                if not wires.is_open or not wires.is_readable:
                    break
                await asyncio.sleep(0)  # what the kernel holds may be no end: a ticket of TLS
            idle_s = self._loop.time() - kept.since_s
            if not wires.is_open or wires.is_readable or kept.connection.has_leftovers:
                self._note_closed(kept, habits)
                return False
            decided = habits.use(idle_s, self._loop.time())
            if decided is not Use.WAIT:
                habits.survived(idle_s)
                return decided is Use.USE
            await asyncio.sleep(habits.settles_in_s(idle_s))

    def _note_closed(self, kept: _Kept, habits: KeepAlive) -> None:
        if not kept.is_closed:
            kept.is_closed = True
            now_s = self._loop.time()
            habits.closed(now_s - kept.since_s, now_s)

    def _on_lost(self, kept: _Kept, server: str) -> None:
        """Take the end of a connection that is kept, or that is just being looked at."""
        self._note_closed(kept, self._habits_of(server))
        there = self._kept.get(server, [])
        if kept in there:
            there.remove(kept)
            if not there:
                del self._kept[server]
            self._drop(kept)

    def _drop(self, kept: _Kept) -> None:
        kept.connection.wires.on_lost = None
        self._close(kept.connection)

    def _on_sweep(self) -> None:
        """Close what is idle for too long; keep the rest, which shows the server's patience."""
        self._sweep = None
        now_s = self._loop.time()
        for server, there in list(self._kept.items()):
            habits = self._habits_of(server)
            for kept in [each for each in there if now_s - each.since_s > KEPT_S]:
                there.remove(kept)
                self._drop(kept)
            for kept in there:
                if kept.connection.wires.is_open:
                    habits.survived(now_s - kept.since_s)
            if not there:
                del self._kept[server]
        if self._kept:
            self._sweep = self._loop.call_later(_SWEEP_S, self._on_sweep)

    def _habits_of(self, server: str) -> KeepAlive:
        habits = self._habits.get(server)
        if habits is None:
            if len(self._habits) >= _SERVERS_MAX:
                self._habits.clear()
            habits = self._habits[server] = KeepAlive()
        return habits

    def _limit_s(self, habits: KeepAlive) -> float:
        return habits.limit_s(self._loop.time())
