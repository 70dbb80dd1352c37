"""Reads in, whole frames of `vnd.amazon.eventstream` out; pure.

botocore's buffer joins all it has at each read, which costs seconds for a frame of some MiB; so it
gets whole ones. What is in a frame, and whether it is sound, is looked at there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from trunkline_workers.sse import MAX_EVENT_BYTES

_LENGTH_BYTES: Final = 4  # a frame begins with its length, big-endian, these four bytes included
_SMALLEST: Final = 16  # prelude and both checksums


class Frames:
    """Takes the reads of one body."""

    __slots__ = ("_parts", "_parts_bytes")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the unfinished frame
        self._parts_bytes = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take one read and yield the frames that it completes.

        Raises:
            ValueError: what should be the length of a frame is none, or above `MAX_EVENT_BYTES`.
        """
        self._parts.append(data)
        self._parts_bytes += len(data)
        if len(self._parts[0]) < _LENGTH_BYTES:
            self._parts = [b"".join(self._parts)]
        length = _length(self._parts[0], 0)
        if length is None or length > self._parts_bytes:
            return
        whole, at = b"".join(self._parts), 0
        while length is not None and at + length <= len(whole):
            yield whole[at : at + length]
            at += length
            length = _length(whole, at)
        self._parts, self._parts_bytes = [whole[at:]], len(whole) - at


def _length(data: bytes, at: int) -> int | None:
    """Return the length of the frame that begins at a place, if it is known yet.

    Raises:
        ValueError: as `Frames.feed`.
    """
    if len(data) - at < _LENGTH_BYTES:
        return None
    (length,) = struct.unpack_from(">I", data, at)
    if not _SMALLEST <= length <= MAX_EVENT_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    return length
