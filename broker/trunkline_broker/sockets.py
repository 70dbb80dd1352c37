"""Two questions to a ZeroMQ socket, typed, and the names of the types; it opens nothing."""

from __future__ import annotations

from typing import Final, cast

import zmq

_EVENTS: Final = int(zmq.EVENTS)
_READABLE: Final = int(zmq.POLLIN)

Socket = zmq.Socket[bytes]
Context = zmq.Context[zmq.Socket[bytes]]


def descriptor(socket: Socket) -> int:
    """Return the descriptor that signals that `has_input` may have changed (edge-triggered)."""
    return cast("int", socket.getsockopt(zmq.FD))  # bytes only for options that are bytes


def has_input(socket: Socket) -> bool:
    """Say whether a frame can be received now; also what re-arms the descriptor."""
    return bool(cast("int", socket.get(_EVENTS)) & _READABLE)
