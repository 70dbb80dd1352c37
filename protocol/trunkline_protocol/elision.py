"""Leaving the block out of a `BlockEnd` where the deltas already assemble to it, and back.

Most block ends repeat text that has just crossed the lane. The worker passes every chunk of an
attempt through a `BlockElider`, the client every chunk through a `BlockFiller`, each in stream
order and exactly once; the filler is the exact inverse. Neither checks grammar.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

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

    def open_texts(self, index: int) -> list[str] | None:
        """Return the pieces of an open block; `None` if it is closed or was never seen.

        A caller with a run of deltas appends to them itself, which is what taking each delta would
        do. Any other chunk of the stream ends what this says.
        """
        partial = self._partials.get(index)
        return None if partial is None or partial.block is not None else partial.texts

    def _took_text(self, chunk: StreamChunk) -> bool:
        """Take a chunk if it is more text of an open block: nearly all chunks are."""
        if chunk.__class__ is not TextDelta and chunk.__class__ is not ReasoningDelta:
            return False
        chunk = cast("TextDelta", chunk)
        partial = self._partials.get(chunk.index)
        if partial is None:
            return False
        if partial.block is None:
            partial.texts.append(chunk.text)
        return True

    def _follow(self, chunk: StreamChunk) -> None:
        """Take a chunk that is no block end."""
        match chunk:
            case TextDelta():
                self._partial(chunk.index, "text").add_text(chunk.text)
            case ReasoningDelta():
                self._partial(chunk.index, "reasoning").add_text(chunk.text)
            case ToolCallDelta():
                self._partial(chunk.index, "tool-call").add_tool_call(chunk)
            case BlockStart():
                self._partial(chunk.index, chunk.block_type)
            case _:
                pass  # usage and finish belong to no block

    def _partial(self, index: int, block_type: str) -> PartialBlock:
        """Return the block at an index, opening it if it is new."""
        return self._partials.get(index) or self._opened(index, block_type)

    def _opened(self, index: int, block_type: str) -> PartialBlock:
        partial = self._partials[index] = PartialBlock(block_type)
        return partial


class BlockElider(_OpenBlocks):
    """Worker side: leaves out the block of a `BlockEnd` that says nothing new."""

    __slots__ = ()

    def elide(self, chunk: StreamChunk) -> StreamChunk:
        """Return the chunk to send: the same one, or its block end without the block."""
        if self._took_text(chunk):
            return chunk
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
        if self._took_text(chunk):
            return chunk
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
