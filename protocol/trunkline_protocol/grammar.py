"""The strict grammar of a stream: what a well-behaved adapter emits, chunk by chunk.

Assembly tolerates more (see `assembler`); this is for the adapter contract suite and for a switch
of the worker host. The rules, each a violation when broken:

1. Nothing comes after `finish`.
2. A block index is a whole number from 0 to 2**53 - 1.
3. `block-start` opens an index that is not open; deltas and `block-end` need an open one.
4. A delta fits the type its block was opened with; `block-end` closes with that same type.
5. At most one `usage`.
6. `finish` leaves no block open, unless it is `error` or `aborted`.
7. The stream ends with `finish`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trunkline_protocol.chunks import (
    INDEX_MAX,
    BlockEnd,
    BlockStart,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from trunkline_protocol.finish import FAILED_KINDS

_DELTA_TYPES: Final = {
    TextDelta: "text",
    ReasoningDelta: "reasoning",
    ToolCallDelta: "tool-call",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule.

    Attributes:
        chunk_count: well-formed chunks before it.
        rule: for people.
    """

    chunk_count: int
    rule: str


class GrammarChecker:
    """Checks one stream; the first violation is final."""

    __slots__ = ("_count", "_has_usage", "_is_finished", "_open", "violation")

    def __init__(self) -> None:
        self._count = 0
        self._open: dict[int, str] = {}
        self._has_usage = False
        self._is_finished = False
        self.violation: Violation | None = None

    def push(self, chunk: object) -> Violation | None:
        """Check the next chunk.

        Args:
            chunk: a `StreamChunk`; anything else breaks no rule but the first.

        Returns:
            The first violation of the stream, from then on for every chunk; else `None`.
        """
        if self.violation is None:
            rule = self._broken_rule(chunk)
            if rule is None:
                self._count += 1
            else:
                self.violation = Violation(self._count, rule)
        return self.violation

    def end(self) -> Violation | None:
        """Check that the stream may end here; returns the first violation, if any."""
        if self.violation is None and not self._is_finished:
            self.violation = Violation(self._count, "the stream ended without a finish")
        return self.violation

    def _broken_rule(self, chunk: object) -> str | None:
        if self._is_finished:
            return "a chunk after the finish"
        match chunk:
            case BlockStart():
                return self._on_start(chunk)
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                return self._on_delta(chunk.index, _DELTA_TYPES[type(chunk)])
            case BlockEnd():
                return self._on_end(chunk)
            case Usage():
                return self._on_usage()
            case Finish():
                return self._on_finish(chunk)
            case _:
                return None

    def _on_start(self, chunk: BlockStart) -> str | None:
        if not _is_index(chunk.index):
            return "a block index that is no whole number from 0"
        if chunk.index in self._open:
            return f"block {chunk.index} is opened again while it is open"
        self._open[chunk.index] = chunk.block_type
        return None

    def _on_delta(self, index: int, block_type: str) -> str | None:
        if not _is_index(index):
            return "a block index that is no whole number from 0"
        if index not in self._open:
            return f"a delta for block {index}, which is not open"
        if self._open[index] != block_type:
            return f"a {block_type} delta in block {index} of another type"
        return None

    def _on_end(self, chunk: BlockEnd) -> str | None:
        if not _is_index(chunk.index):
            return "a block index that is no whole number from 0"
        if chunk.index not in self._open:
            return f"the end of block {chunk.index}, which is not open"
        if chunk.block is not None and chunk.block.get("type") != self._open[chunk.index]:
            return f"block {chunk.index} ends with another type"
        del self._open[chunk.index]
        return None

    def _on_usage(self) -> str | None:
        if self._has_usage:
            return "a second usage"
        self._has_usage = True
        return None

    def _on_finish(self, chunk: Finish) -> str | None:
        if self._open and chunk.reason.kind not in FAILED_KINDS:
            return f"finish {chunk.reason.kind} while a block is open"
        self._is_finished = True
        return None


def _is_index(value: object) -> bool:
    """Tell whether a value is a block index; an adapter in Python may pass anything."""
    return type(value) is int and 0 <= value <= INDEX_MAX
