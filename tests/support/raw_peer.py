"""A client that is nothing but sockets: says what a test tells it, also what no client would."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import zmq
from trunkline_protocol import frames
from trunkline_protocol.codec import Direction, decode, encode, pack_body, unpack_body
from trunkline_protocol.ids import ClientId, QueryId
from trunkline_protocol.limits import PROTOCOL_MAJOR, PROTOCOL_MINOR

from tests.support.timing import SLOW

_LINGER_MS = 200  # a broker that is dead or stopped takes nothing


class NoAnswerError(AssertionError):
    """The broker said nothing in time."""


class RawClient:
    """One control connection as a client; `lane()` opens the chunk socket."""

    def __init__(self, endpoint: str) -> None:
        self.client = ClientId(os.urandom(16))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._endpoint = endpoint
        self._is_greeted = False
        self.socket = self._open(zmq.DEALER, endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Say BYE if it was greeted, and close every socket."""
        if self._is_greeted:
            self.send(frames.Bye("done"))
        self._context.destroy(_LINGER_MS)

    def send(self, *sent: frames.Frame) -> None:
        """Send frames."""
        for frame in sent:
            self.socket.send_multipart(encode(frame))

    def send_bytes(self, parts: Sequence[bytes]) -> None:
        """Send what need not be a frame."""
        self.socket.send_multipart(parts)

    def receive(self, timeout_s: float = 5.0) -> frames.Frame:
        """Return the next frame.

        Raises:
            NoAnswerError: none came in time.
        """
        if not self.socket.poll(timeout_s * SLOW * 1000):
            raise NoAnswerError(f"nothing from {self._endpoint} in {timeout_s * SLOW} s")
        return decode(self.socket.recv_multipart(), Direction.BROKER_TO_CLIENT)

    def receive_kind(self, kind: type[Any], timeout_s: float = 5.0) -> Any:
        """Return the next frame of a kind; others before it are skipped."""
        while True:
            frame = self.receive(timeout_s)
            if isinstance(frame, kind):
                return frame

    def hello(self, timeout_s: float = 5.0) -> frames.Welcome:
        """Greet and return the answer."""
        version = (PROTOCOL_MAJOR, PROTOCOL_MINOR)
        self.send(frames.Hello(version, self.client, os.getpid(), "raw"))
        welcome = self.receive_kind(frames.Welcome, timeout_s)
        self._is_greeted = True
        return welcome

    def query(self, op: str, argument: object = None, timeout_s: float = 10.0) -> Any:
        """Ask the broker; return the value, or raise `AssertionError` with the failure."""
        query = QueryId(os.urandom(16))
        body = b"" if argument is None else pack_body(argument)
        self.send(frames.Query(query, op, timeout_ms=int(timeout_s * 1000), body=body))
        while True:
            reply = self.receive_kind(frames.Reply, timeout_s)
            if reply.query == query:
                assert reply.failure is None, reply.failure
                return unpack_body(reply.body)

    def status(self) -> Mapping[str, Any]:
        """Return the status document."""
        return self.query("status")

    def lane(self, address: str) -> zmq.Socket[bytes]:
        """Open the chunk socket of this client."""
        return self._open(zmq.DEALER, address, self.client)

    def _open(self, kind: int, address: str, routing_id: bytes = b"") -> zmq.Socket[bytes]:
        opened = self._context.socket(kind)
        opened.setsockopt(zmq.LINGER, _LINGER_MS)
        if routing_id:
            opened.setsockopt(zmq.ROUTING_ID, routing_id)
        opened.connect(address)
        return opened
