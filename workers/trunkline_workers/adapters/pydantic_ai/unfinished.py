"""How large the event of a stream is that has not ended yet; pure."""

from __future__ import annotations

from typing import Final

# An event ends with a blank line, whatever ends the lines.
_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_OVERLAP_BYTES: Final = 3  # of the longest end, less one


class UnfinishedEvent:
    """Takes the reads of one body."""

    __slots__ = ("_before", "_size")

    def __init__(self) -> None:
        self._before = b""  # the last bytes of the reads so far: an end may be cut
        self._size = 0

    def take(self, data: bytes) -> int:
        """Take one read; return the bytes since the last event ended."""
        joint = self._before + data[:_OVERLAP_BYTES]
        end = max(_end_of(data), _end_of(joint) - len(self._before))
        self._size = len(data) - end if end >= 0 else self._size + len(data)
        self._before = (self._before + data[-_OVERLAP_BYTES:])[-_OVERLAP_BYTES:]
        return self._size


def _end_of(data: bytes) -> int:
    """Return where the last end of an event ends; far below 0 if there is none."""
    return max((at + len(e) if (at := data.rfind(e)) >= 0 else -_OVERLAP_BYTES - 1) for e in _ENDS)
