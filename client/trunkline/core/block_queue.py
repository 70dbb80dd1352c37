"""Whole blocks out of a chunk stream, in stream order, as early as they are certain.

What it hands out is always a prefix of what the assembler would say at the end.
"""

from __future__ import annotations

from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
)
from trunkline_protocol.content import ContentBlock, block_from_dict
from trunkline_protocol.finish import FAILED_KINDS


class BlockQueue:
    """Follows one stream.

    A tool call is held until the finish: `max-tokens` drops it, and a truncated call is unsafe to
    execute.
    """

    __slots__ = ("_assembler", "_closed", "_given", "_order")

    def __init__(self) -> None:
        self._assembler = BlockAssembler()
        self._order: dict[int, None] = {}  # indices in the order they were first seen
        self._closed: dict[int, ContentBlock] = {}
        self._given = 0

    def push(self, chunk: StreamChunk) -> list[ContentBlock]:
        """Fold in a chunk; return the blocks that are certain now and were not before.

        Raises:
            ValueError: a closing block of a known type has a wrong shape, or the stream has ended
                with an open block that deltas cannot build.
        """
        self._assembler.push(chunk)
        match chunk:
            case TextDelta() | ReasoningDelta() | ToolCallDelta() | BlockStart():
                self._order.setdefault(chunk.index)
                return []
            case BlockEnd():
                self._order.setdefault(chunk.index)
                if chunk.index not in self._closed and chunk.block is not None:
                    self._closed[chunk.index] = block_from_dict(chunk.block)
                return self._certain()
            case Finish():
                return self._rest(chunk)
            case _:
                return []

    def _certain(self) -> list[ContentBlock]:
        blocks: list[ContentBlock] = []
        for index in list(self._order)[self._given :]:
            block = self._closed.get(index)
            if block is None or block.type == "tool-call":
                break
            blocks.append(block)
        self._given += len(blocks)
        return blocks

    def _rest(self, finish: Finish) -> list[ContentBlock]:
        """Return everything left; of a failed stream only blocks that were closed."""
        if finish.reason.kind in FAILED_KINDS:
            return []
        return self._assembler.blocks()[self._given :]
