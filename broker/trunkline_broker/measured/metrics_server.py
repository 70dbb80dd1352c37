"""The HTTP side of the metrics: one page on one small server in the broker's loop.

It answers `GET /metrics` and nothing else, reads a bounded request within a bounded time, and
renders off the loop. There is nothing to log in with: it listens on loopback unless configured
otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from trunkline_broker.measured.metrics import Page, Snapshot

MAX_REQUEST_BYTES: Final = 8192
MAX_CONNECTIONS: Final = 8
TIMEOUT_S: Final = 5.0

Take = Callable[[], "Snapshot"]


class MetricsServer:
    """Serves until it is closed.

    Args:
        take: returns the snapshot of this moment; called on the loop.
    """

    def __init__(self, take: Take) -> None:
        self._take = take
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, address: str) -> str:
        """Listen.

        Args:
            address: `HOST:PORT`; port 0 lets the system choose.

        Returns:
            The address in use.

        Raises:
            OSError: it can't be used.
        """
        host, _, port = address.rpartition(":")
        self._server = await asyncio.start_server(
            self._serve, host.strip("[]"), int(port), limit=MAX_REQUEST_BYTES
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Stop listening; a page that is being sent is cut."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # slow, gone, or no HTTP
        finally:
            self._open -= 1

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, _, rest = head[0].partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if self._open > MAX_CONNECTIONS:
            return _response("503 Service Unavailable", "text/plain", b"too many at once\n")
        if method not in {"GET", "HEAD"}:
            return _response("405 Method Not Allowed", "text/plain", b"GET /metrics\n")
        if path != "/metrics":
            return _response("404 Not Found", "text/plain", b"the metrics are at /metrics\n")
        page = await self._page(_headers(head[1:]).get("accept", ""))
        answer = _response("200 OK", page.content_type, page.body)
        return answer if method == "GET" else answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    async def _page(self, accept: str) -> Page:
        snapshot = self._take()
        return await asyncio.to_thread(snapshot.page, accept)


def _headers(lines: list[str]) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _response(status: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body


def snapshot_taker(tallies: Any, status: Callable[[], Mapping[str, Any]]) -> Take:
    """Return what takes snapshots.

    Raises:
        ImportError: `prometheus_client` is not installed.
    """
    from trunkline_broker.measured.metrics import Snapshot

    return lambda: Snapshot(tallies, status())
