"""Unguessable ids from one secret that the shell draws, so that the core itself draws nothing."""

from __future__ import annotations

from hashlib import blake2b

from trunkline_protocol.ids import (
    CALL_ID_BYTES,
    QUERY_ID_BYTES,
    STREAM_KEY_BYTES,
    CallId,
    QueryId,
    StreamKey,
)

SEED_BYTES = 32


class DrawnIds:
    """A counter under keyed BLAKE2b: never the same id twice, none tells of another."""

    __slots__ = ("_count", "_seed")

    def __init__(self, seed: bytes) -> None:
        """Take `SEED_BYTES` random bytes that nobody else uses."""
        self._seed = seed
        self._count = 0

    def call_id(self) -> CallId:
        """Return a fresh id of a call."""
        return CallId(self._next(CALL_ID_BYTES))

    def query_id(self) -> QueryId:
        """Return a fresh id of a query."""
        return QueryId(self._next(QUERY_ID_BYTES))

    def stream_key(self) -> StreamKey:
        """Return a fresh key for the lane frames of one attempt."""
        return StreamKey(self._next(STREAM_KEY_BYTES))

    def nonce(self) -> int:
        """Return a fresh number from 0 to 2^62 - 1 for a probe."""
        return int.from_bytes(self._next(8), "big") >> 2

    def _next(self, size: int) -> bytes:
        self._count += 1
        return blake2b(self._count.to_bytes(8, "big"), key=self._seed, digest_size=size).digest()
