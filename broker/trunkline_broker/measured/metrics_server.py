"""Serves two pages over HTTP: `/metrics` for Prometheus and `/healthz` for probes.

It owns its listening socket and every connection, as plain sockets on the broker's loop. There is
no transport, stream or task whose error could surface anywhere else. Each callback ends at the edge
of this service. A request is bounded in bytes and time, connections are bounded in number.
One that says nothing makes room for one that comes later. There is nothing to log in with: it
listens on loopback unless configured otherwise.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from trunkline_broker.edge import Edge
from trunkline_broker.measured.http_connection import Connection

if TYPE_CHECKING:
    from trunkline_broker.measured.metrics import Page, Snapshot

MAX_CONNECTIONS: Final = 16
PAGE_EVERY_S: Final = 0.05  # between two snapshots: a flood of requests costs the loop no more
_BACKLOG: Final = 64

Take = Callable[[], "Snapshot"]


class MetricsServer:
    """Serves until it is closed.

    Args:
        take: returns the snapshot of this moment; called on the loop. `None`: there is no metrics
            page, and `/healthz` alone is served.
        edge: takes the errors of every connection and page.
    """

    def __init__(self, take: Take | None, edge: Edge) -> None:
        self._take = take
        self._edge = edge
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._open: dict[Connection, None] = {}  # in the order of their arrival
        self._due: list[tuple[Connection, str]] = []
        self._is_rendering = False
        self._next_page_s = 0.0
        self._thread = ThreadPoolExecutor(1, "metrics")

    async def start(self, address: str) -> str:
        """Listen.

        Args:
            address: `HOST:PORT`; port 0 lets the system choose.

        Returns:
            The address in use.

        Raises:
            OSError, OverflowError: it cannot be used; nothing listens.
        """
        host, _, port = address.rpartition(":")
        found = await self._loop.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        failure: OSError | None = None
        for family, _kind, _proto, _name, place in dict.fromkeys(found):
            try:
                self._listen(family, place)
            except OSError as exc:  # a name of two families, one of which this machine lacks
                failure = exc
        if not self._sockets:
            raise failure or OSError(f"no address for {host}")
        bound, number = self._sockets[0].getsockname()[:2]
        return f"[{bound}]:{number}" if ":" in bound else f"{bound}:{number}"

    def _listen(self, family: int, place: Any) -> None:
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(place)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
        self._sockets.append(listening)
        self._loop.add_reader(listening, self._edge.guard(self._on_arrival), listening)

    def close(self) -> None:
        """Stop listening; a page that is being sent is cut."""
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        for connection in list(self._open):
            connection.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def open_count(self) -> int:
        """Return how many connections are open."""
        return len(self._open)

    # --- connections ------------------------------------------------------------------------

    def _on_arrival(self, listening: socket.socket) -> None:
        """Accept one connection: the loop comes back for the next one."""
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # it has gone again
        except OSError:
            self._rest(listening)  # no descriptor is left: the same connection would call at once
            raise
        if len(self._open) >= MAX_CONNECTIONS:
            # Always room for the newest: it may be a probe, and who waits for a page may ask again.
            idle = (each for each in self._open if each.is_idle)
            next(idle, next(iter(self._open))).close()
        connection = Connection(accepted, self._edge, self._on_request, self._on_closed)
        self._open[connection] = None
        connection.begin()

    def _rest(self, listening: socket.socket) -> None:
        """Leave the listening socket alone for a moment."""
        self._loop.remove_reader(listening)

        def again() -> None:
            if listening in self._sockets:
                self._loop.add_reader(listening, self._edge.guard(self._on_arrival), listening)

        self._loop.call_later(1.0, self._edge.guard(again))

    def _on_closed(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def _on_request(self, connection: Connection, head: bytes) -> None:
        """Answer a whole request, now or when a page is rendered."""
        lines = head.decode("latin-1").split("\r\n")
        method, _, rest = lines[0].partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        connection.wants_body = method != "HEAD"
        if method not in {"GET", "HEAD"}:
            connection.answer("405 Method Not Allowed", b"GET /metrics or /healthz\n")
        elif path == "/healthz":
            connection.answer("200 OK", b"ok\n")  # the loop runs; nothing else is looked at
        elif path != "/metrics":
            connection.answer("404 Not Found", b"the metrics are at /metrics\n")
        elif self._take is None:
            connection.answer("503 Service Unavailable", b"prometheus_client is not installed\n")
        else:
            self._due.append((connection, _headers(lines[1:]).get("accept", "")))
            self._render()

    # --- pages ------------------------------------------------------------------------------

    def _render(self) -> None:
        """Have one snapshot rendered for all that wait for one, if none is being rendered."""
        if self._is_rendering or not self._due or self._take is None:
            return
        self._is_rendering = True
        wait_s = max(0.0, self._next_page_s - self._loop.time())
        self._loop.call_later(wait_s, self._begin_page)

    def _begin_page(self) -> None:
        self._next_page_s = self._loop.time() + PAGE_EVERY_S
        due, self._due = self._due, []
        try:
            snapshot = self._take() if self._take is not None else None
            accepts = {accept for _, accept in due}
            job = self._thread.submit(_pages, snapshot, accepts)
        except Exception as exc:  # noqa: BLE001  # any error of a side service ends at its edge
            self._edge.note(exc)
            self._finish_page(due, {})
            return
        job.add_done_callback(lambda done: self._hand_over(due, done))

    def _hand_over(self, due: list[tuple[Connection, str]], done: Future[Any]) -> None:
        """Bring pages from the thread to the loop."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_page, due, done)

    def _on_page(self, due: list[tuple[Connection, str]], done: Future[dict[str, Page]]) -> None:
        pages: dict[str, Page] = {}
        if not done.cancelled():
            pages = self._edge.run(done.result, pages)
        self._finish_page(due, pages)

    def _finish_page(self, due: list[tuple[Connection, str]], pages: Mapping[str, Page]) -> None:
        self._is_rendering = False
        for connection, accept in due:
            self._edge.guard(_answer_with)(connection, pages.get(accept))
        self._edge.guard(self._render)()


def _answer_with(connection: Connection, page: Page | None) -> None:
    if page is None:
        connection.answer("500 Internal Server Error", b"the page cannot be made; see the log\n")
    else:
        connection.answer("200 OK", page.body, page.content_type)


def _pages(snapshot: Snapshot | None, accepts: set[str]) -> dict[str, Page]:
    """Render a snapshot for each `Accept` header; called in the thread."""
    return {} if snapshot is None else {accept: snapshot.page(accept) for accept in accepts}


def _headers(lines: list[str]) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def snapshot_taker(tallies: Any, status: Callable[[], Mapping[str, Any]]) -> Take:
    """Return what takes snapshots.

    Raises:
        ImportError: `prometheus_client` is not installed.
    """
    from trunkline_broker.measured.metrics import Snapshot

    return lambda: Snapshot(tallies, status())
