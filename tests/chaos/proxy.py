"""A proxy of one stream socket that can stall and cut: how a link misbehaves under ZeroMQ.

Bytes pass unchanged and in order, or the connection breaks and what was under way is lost; a stream
socket can do nothing else. One connection through it is one connection behind it. A fault strikes
all connections, or a single one.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

_READ_BYTES = 64 * 1024
Address = Path | tuple[str, int]
"""A Unix socket, or host and port."""


class Connection:
    """One connection and the one behind it."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self.writers: Final = writers
        self.flows = asyncio.Event()
        self.flows.set()
        self._left: int | None = None  # bytes until it breaks
        self._is_deaf = False

    # --- faults --------------------------------------------------------------------------------

    def cut(self) -> None:
        """Break it now; what is under way is lost."""
        for writer in self.writers:
            writer.transport.abort()
        self.flows.set()

    def cut_after(self, count: int) -> None:
        """Break it when so many more bytes have passed, in whichever direction."""
        self._left = count

    def be_half_open(self) -> None:
        """Swallow everything from now on: each end believes that the other one listens."""
        self._is_deaf = True

    # --- forwarding ----------------------------------------------------------------------------

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction until either end is gone, then take the other end along."""
        with contextlib.suppress(ConnectionError, OSError):
            while True:
                await self.flows.wait()
                data = await reader.read(_READ_BYTES)
                if not data:
                    break
                await self.flows.wait()
                if self._is_deaf:
                    continue
                if self._left is not None:
                    data, self._left = data[: self._left], self._left - len(data)
                writer.write(data)
                await writer.drain()
                if self._left is not None and self._left <= 0:
                    break
        writer.transport.abort()


class Proxy:
    """Listens at `path` and forwards to `target`, both Unix sockets; or both TCP."""

    def __init__(self, path: Address, target: Address) -> None:
        self.path = path
        self._target = target
        self._links: list[Connection] = []
        self._flows = True
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    @property
    def endpoint(self) -> str:
        """Where ZeroMQ connects."""
        return endpoint_of(self.path)

    @property
    def links(self) -> tuple[Connection, ...]:
        """The connections that are open, the oldest first."""
        return tuple(self._links)

    async def start(self) -> None:
        """Listen."""
        if isinstance(self.path, Path):
            self._server = await asyncio.start_unix_server(self._on_connection, self.path)
        else:
            self._server = await asyncio.start_server(self._on_connection, *self.path)

    async def close(self) -> None:
        """Stop listening, break every connection, await every task."""
        if self._server is not None:
            self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if isinstance(self.path, Path):
            self.path.unlink(missing_ok=True)

    # --- faults --------------------------------------------------------------------------------

    def stall(self) -> None:
        """Read nothing more: what peers send from now on waits in buffers of the kernel."""
        self._flows = False
        for link in self._links:
            link.flows.clear()

    def flow(self) -> None:
        """End a stall."""
        self._flows = True
        for link in self._links:
            link.flows.set()

    def cut(self) -> int:
        """Break every connection; what is under way is lost. Return how many there were."""
        links = self.links
        for link in links:
            link.cut()
        self._flows = True
        return len(links)

    # --- forwarding ----------------------------------------------------------------------------

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            far_reader, far_writer = await self._open()
        except OSError:  # nobody listens: the peer connects again, as it would without us
            writer.transport.abort()
            return
        link = Connection(writer, far_writer)
        if not self._flows:
            link.flows.clear()
        self._links.append(link)
        try:
            await asyncio.gather(link.forward(reader, far_writer), link.forward(far_reader, writer))
        finally:
            self._links.remove(link)
            link.cut()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, Path):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection(*self._target)


def endpoint_of(address: Address) -> str:
    """Return an address as ZeroMQ writes it."""
    if isinstance(address, Path):
        return f"ipc://{address}"
    return "tcp://{}:{}".format(*address)
