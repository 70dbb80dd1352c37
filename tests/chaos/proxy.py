"""A proxy of one stream socket that can stall and cut: how a link misbehaves under ZeroMQ.

Bytes pass unchanged and in order, or the connection breaks and what was under way is lost; a stream
socket can do nothing else. One connection through it is one connection behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

_READ_BYTES = 64 * 1024


class Proxy:
    """Listens at `path` and forwards to `target`, both Unix sockets; TCP by `(host, port)`."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._on_connection, self.path)

    async def close(self) -> None:
        """Stop listening, break every connection, await every task."""
        if self._server is not None:
            self._server.close()
        self._flows.set()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.path.unlink(missing_ok=True)

    # --- faults --------------------------------------------------------------------------------

    def stall(self) -> None:
        """Read nothing more: what peers send from now on waits in buffers of the kernel."""
        self._flows.clear()

    def flow(self) -> None:
        """End a stall."""
        self._flows.set()

    def cut(self) -> int:
        """Break every connection; what is under way is lost. Return how many there were."""
        count = len(self._writers) // 2
        for writer in self._writers:
            writer.transport.abort()
        self._flows.set()
        return count

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
            far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        except OSError:  # nobody listens: the peer connects again, as it would without us
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._writers.update(pair)
        try:
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        finally:
            self._writers.difference_update(pair)
            for each in pair:
                each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction until either end is gone, then take the other end along."""
        with contextlib.suppress(ConnectionError, OSError):
            while True:
                await self._flows.wait()
                data = await reader.read(_READ_BYTES)
                if not data:
                    break
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
