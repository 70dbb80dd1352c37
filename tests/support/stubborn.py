"""Providers on raw sockets that misbehave below HTTP, each in a thread of its own.

They read slowly or not at all, answer before they have read, close at once, or write behind the end
of an answer. A thread serves them, so that neither side waits for the other's loop.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

OK = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n%s\r\n"
    b"%s0\r\n\r\n"
)


def an_answer(*payloads: bytes, headers: bytes = b"") -> bytes:
    """Return a whole answer of these event payloads; `headers` are lines that end in CR LF."""
    body = b"".join(b"data: %s\n\n" % payload for payload in payloads)
    return OK % (headers, b"%x\r\n%s\r\n" % (len(body), body))


@dataclass(slots=True)
class Peer:
    """One connection as the provider sees it.

    Attributes:
        sock: of the connection.
        received: bytes so far, in all.
        ended: is set when the other end is gone.
    """

    sock: socket.socket
    received: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def read(self, size: int = 65536) -> bytes:
        """Read once; `b""` and `ended` at the end."""
        try:
            data = self.sock.recv(size)
        except OSError:
            data = b""
        self.received += len(data)
        if not data:
            self.ended.set()
        return data

    def read_request(self) -> bytes:
        """Read one request, or `b""` at the end."""
        got = b""
        while b"\r\n\r\n" not in got:
            if not (data := self.read()):
                return b""
            got += data
        head, _, rest = got.partition(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        while len(rest) < length:
            if not (data := self.read()):
                return b""
            rest += data
        return head + b"\r\n\r\n" + rest

    def wait_for_end(self, stopped: threading.Event) -> None:
        """Read nothing; find out from the kernel when the other end is gone."""
        while not stopped.wait(0.01) and not self.ended.is_set():
            state = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
            if state != 1:  # not ESTABLISHED
                self.ended.set()


Serve = Callable[[Peer, threading.Event], None]


class StubbornServer:
    """Runs `serve` for each connection; `tls`: over TLS."""

    def __init__(self, serve: Serve, tls: ssl.SSLContext | None = None) -> None:
        self.peers: list[Peer] = []
        self._serve = serve
        self._tls = tls
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._socket.settimeout(0.05)
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        for peer in self.peers:
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for peer in self.peers:
            peer.sock.close()
        self._socket.close()

    @property
    def url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self._socket.getsockname()[1]}"

    def _start(self, job: Callable[[], None]) -> None:
        thread = threading.Thread(target=job, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                sock, _ = self._socket.accept()
            except TimeoutError:
                continue
            sock.settimeout(60)
            self._start(lambda sock=sock: self._run(sock))  # type: ignore[misc]

    def _run(self, sock: socket.socket) -> None:
        if self._tls is not None:
            try:
                sock = self._tls.wrap_socket(sock, server_side=True)
            except OSError:
                sock.close()
                return
        peer = Peer(sock)
        self.peers.append(peer)
        with contextlib.suppress(OSError):
            self._serve(peer, self._stopped)


def reads_nothing(peer: Peer, stopped: threading.Event) -> None:
    """Accept, and read nothing."""
    peer.wait_for_end(stopped)


def reads_slowly(peer: Peer, stopped: threading.Event) -> None:
    """Read 64 KiB every 20 ms."""
    while not stopped.is_set() and peer.read():
        time.sleep(0.02)
