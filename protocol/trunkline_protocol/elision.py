"""Leaving the block out of a `BlockEnd` where the deltas already assemble to it, and back.

Most block ends repeat text that has just crossed the lane. The worker passes every chunk of an
attempt through a `BlockElider`, the client every chunk through a `BlockFiller`, each in stream
order and exactly once; the filler is the exact inverse. Neither checks grammar.
"""

from __future__ import annotations

from collections.abc import Mapping

from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
)
from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.partial_block import PartialBlock


class _OpenBlocks:
    """The blocks of one attempt as their deltas build them; both ends keep the same ones."""

    __slots__ = ("_partials",)

    def __init__(self) -> None:
        self._partials: dict[int, PartialBlock] = {}

    @property
    def partials(self) -> Mapping[int, PartialBlock]:
        """The blocks so far by index, in the order in which they were first seen."""
        return self._partials

    def _follow(self, chunk: StreamChunk) -> None:
        """Take a chunk that is no block end; the order of the tests is that of the traffic."""
        kind = chunk.__class__
        if kind is TextDelta or kind is ReasoningDelta:
            partial = self._partials.get(chunk.index)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
            if partial is None:
                partial = self._opened(chunk.index, "text" if kind is TextDelta else "reasoning")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
            partial.add_text(chunk.text)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
        elif isinstance(chunk, ToolCallDelta):
            partial = self._partials.get(chunk.index)
            if partial is None:
                partial = self._opened(chunk.index, "tool-call")
            partial.add_tool_call(chunk)
        elif isinstance(chunk, BlockStart) and chunk.index not in self._partials:
            self._opened(chunk.index, chunk.block_type)

    def _opened(self, index: int, block_type: str) -> PartialBlock:
        partial = self._partials[index] = PartialBlock(block_type)
        return partial


class BlockElider(_OpenBlocks):
    """Worker side: leaves out the block of a `BlockEnd` that says nothing new."""

    __slots__ = ()

    def elide(self, chunk: StreamChunk) -> StreamChunk:
        """Return the chunk to send: the same one, or its block end without the block."""
        if not isinstance(chunk, BlockEnd):
            self._follow(chunk)
            return chunk
        partial = self._partials.get(chunk.index)
        if partial is None:
            partial = self._opened(chunk.index, "")
        if chunk.block is None or partial.block is not None:
            return chunk  # already left out, or a second end: nothing to compare with
        is_known = partial.can_assemble and chunk.block == partial.assembled(chunk.index)
        partial.close(chunk.block)
        return BlockEnd(chunk.index, None) if is_known else chunk


class BlockFiller(_OpenBlocks):
    """Client side: puts the block back into a `BlockEnd` that came without one."""

    __slots__ = ()

    def fill(self, chunk: StreamChunk) -> StreamChunk:
        """Return the chunk as the adapter emitted it.

        Raises:
            RemoteProtocolError: a block was left out that no delta has built.
        """
        if not isinstance(chunk, BlockEnd):
            self._follow(chunk)
            return chunk
        partial = self._partials.get(chunk.index)
        if chunk.block is not None:
            if partial is None:
                partial = self._opened(chunk.index, "")
            partial.close(chunk.block)
            return chunk
        if partial is None or partial.block is not None or not partial.can_assemble:
            raise RemoteProtocolError("a block was left out that no delta builds", "ELIDED_BLOCK")
        block = partial.assembled(chunk.index)
        partial.close(block)
        return BlockEnd(chunk.index, block)
