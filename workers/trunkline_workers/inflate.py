"""Decompresses a body in pieces of bounded size; pure.

A read of some KiB may stand for a thousand times as much. Made in one step that would stop the loop
and take the memory of every other stream in the worker.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

PIECE_BYTES: Final = 16 * 1024  # of decompressed content, the size of a read without compression
DECODABLE: Final = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
_ZLIB_HEADER_BYTES: Final = 2
_GZIP: Final = zlib.MAX_WBITS | 16


class InflateError(ValueError):
    """The body is not compressed as its header says."""


class Inflater:
    """Takes the reads of one body.

    Args:
        encoding: of the body, one of `DECODABLE` that is a compression.
    """

    __slots__ = ("_first", "_is_unclear", "_stream")

    def __init__(self, encoding: str) -> None:
        self._is_unclear = encoding == "deflate"  # servers send it without its header too
        self._first = b""  # while that is unclear
        self._stream = zlib.decompressobj(_GZIP)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take one read and yield what it stands for, in pieces of `PIECE_BYTES` at most.

        Raises:
            InflateError: it is no such compression; the inflater must not be fed again.
        """
        if self._is_unclear:
            self._first = data = self._first + data
            if len(data) < _ZLIB_HEADER_BYTES:
                return
            self._is_unclear, self._first = False, b""
            self._stream = zlib.decompressobj(
                zlib.MAX_WBITS if _has_zlib_header(data) else -zlib.MAX_WBITS
            )
        while data and not self._stream.eof:
            try:
                piece = self._stream.decompress(data, PIECE_BYTES)
            except zlib.error as exc:
                raise InflateError(str(exc)) from exc
            data = self._stream.unconsumed_tail
            if piece:
                yield piece


def _has_zlib_header(data: bytes) -> bool:
    """Return whether data begins as RFC 1950 says: method 8, and a check of both bytes."""
    return data[0] & 0x0F == zlib.DEFLATED and (data[0] << 8 | data[1]) % 31 == 0
