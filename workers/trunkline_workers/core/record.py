"""What a detachable attempt has said so far, as few chunks as lead to the same blocks (LANE 12).

Works on lane arrays (SPEC 4.1) and knows nothing else of chunks. Deltas of a block are joined; what
the worker left out of a block end stays left out, since the joined deltas still assemble to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

RECORD_LIMIT_BYTES: Final = 16 * 1024 * 1024  # LANE 12
_ENTRY_BYTES: Final = 64  # about what an entry costs beside its text
_TEXT_KINDS: Final = (1, 2)
_TOOL_CALL: Final = 3
_BLOCK_END: Final = 4
_USAGE: Final = 5


class _Joined:
    """Deltas of one kind and block; `head` is the array without its text."""

    __slots__ = ("head", "pieces")

    def __init__(self, head: list[Any], text: str) -> None:
        self.head = head
        self.pieces = [text]

    def array(self) -> list[Any]:
        return [*self.head, "".join(self.pieces)]


class Record:
    """The chunks of one attempt, joined.

    Attributes:
        size_bytes: about what it takes in memory; the caller minds `RECORD_LIMIT_BYTES`.
    """

    __slots__ = ("_entries", "_open", "_usage_at", "size_bytes")

    def __init__(self) -> None:
        self._entries: list[_Joined | Sequence[Any]] = []
        self._open: dict[int, _Joined] = {}  # the last deltas of each block
        self._usage_at: int | None = None
        self.size_bytes = 0

    def add(self, arrays: Sequence[Sequence[Any]]) -> None:
        """Take the next chunks."""
        for array in arrays:
            kind = array[0]
            if kind in _TEXT_KINDS:
                self._join([kind, array[1]], array[2])
            elif kind == _TOOL_CALL:
                self._join(list(array[:4]), array[4])
            elif kind == _USAGE and self._usage_at is not None:
                self._entries[self._usage_at] = array  # the last one counts
            else:
                self._append(array)

    def arrays(self) -> list[Sequence[Any]]:
        """Return chunks that assemble to the same as all that were taken."""
        return [one.array() if isinstance(one, _Joined) else one for one in self._entries]

    def _join(self, head: list[Any], text: str) -> None:
        self.size_bytes += len(text)
        kind, index = head[0], head[1]
        joined = self._open.get(index)
        # Deltas of two kinds in one block are no stream to be proud of, but their order counts.
        if joined is None or joined.head[0] != kind:
            joined = self._open[index] = _Joined(head, text)
            self._entries.append(joined)
            self.size_bytes += _ENTRY_BYTES
            return
        joined.pieces.append(text)
        if kind == _TOOL_CALL:  # the last id counts, and the last name that is not empty
            joined.head = [*head[:3], head[3] or joined.head[3]]

    def _append(self, array: Sequence[Any]) -> None:
        if array[0] == _USAGE:
            self._usage_at = len(self._entries)
        if array[0] == _BLOCK_END:
            self._open.pop(array[1], None)
        self._entries.append(array)
        self.size_bytes += _ENTRY_BYTES + len(str(array[2:]))
