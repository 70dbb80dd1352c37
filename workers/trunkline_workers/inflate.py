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
_GZIP: Final = zlib.MAX_WBITS | 16


class InflateError(ValueError):
    """The body is not compressed as its header says."""


class Inflater:
    """Takes the reads of one body.

    Args:
        encoding: of the body, one of `DECODABLE` that is a compression.
    """

    __slots__ = ("_is_deflate", "_stream")

    def __init__(self, encoding: str) -> None:
        self._is_deflate = encoding == "deflate"
        self._stream = zlib.decompressobj(zlib.MAX_WBITS if self._is_deflate else _GZIP)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take one read and yield what it stands for, in pieces of `PIECE_BYTES` at most.

        Raises:
            InflateError: it is no such compression; the inflater must not be fed again.
        """
        while data and not self._stream.eof:
            try:
                piece = self._stream.decompress(data, PIECE_BYTES)
            except zlib.error as exc:
                if not self._is_deflate:
                    raise InflateError(str(exc)) from exc
                # Servers send it without its header too.
                self._is_deflate = False
                self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
                continue
            self._is_deflate = False  # its header was there
            data = self._stream.unconsumed_tail
            if piece:
                yield piece
