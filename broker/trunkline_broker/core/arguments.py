"""The arguments of queries that the broker reads itself; into those of workers it never looks."""

from __future__ import annotations

from typing import Any

from trunkline_protocol.codec import unpack_body
from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.frames import Body
from trunkline_protocol.limits import MAX_BROKER_ARGUMENT_BYTES


def read_argument(body: Body) -> Any:
    """Decode an argument; everybody waits meanwhile, so a large one is not even looked at.

    Raises:
        RemoteProtocolError: larger than `MAX_BROKER_ARGUMENT_BYTES`, or as `unpack_body`.
    """
    if len(body) > MAX_BROKER_ARGUMENT_BYTES:
        raise RemoteProtocolError(f"an argument has at most {MAX_BROKER_ARGUMENT_BYTES} bytes")
    return unpack_body(body)
