"""What the chunks that an application has taken amount to: blocks, usage, finish.

The blocks are the ones that the filler of left-out block ends keeps anyway, so assembling a
message costs nothing per chunk.
"""

from __future__ import annotations

from typing import Any, cast

from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    Usage,
)
from trunkline_protocol.content import ContentBlock
from trunkline_protocol.elision import BlockFiller
from trunkline_protocol.finish import FAILED_KINDS
from trunkline_protocol.messages import Message, ModelMessageSource, create_message
from trunkline_protocol.partial_block import PartialBlock


class Assembly:
    """Follows one attempt, chunk by chunk, in order.

    Attributes:
        usage: the last one that passed.
        finish: the terminal chunk, once it has passed.
    """

    __slots__ = ("_filler", "finish", "usage")

    def __init__(self) -> None:
        self._filler = BlockFiller()
        self.usage: TokenUsage | None = None
        self.finish: Finish | None = None

    def follow(self, chunks: list[StreamChunk]) -> list[StreamChunk]:
        """Return the chunks with their left-out blocks filled in, up to and with a finish.

        They are filled in in place; the list itself is returned unless chunks follow a finish.

        Raises:
            RemoteProtocolError: a block was left out that no delta has built.
        """
        filler = self._filler
        index, append = -1, None
        for at, chunk in enumerate(cast("list[Any]", chunks)):
            if chunk.__class__ is TextDelta or chunk.__class__ is ReasoningDelta:
                # In line, since nearly all chunks are more text of the block before.
                if chunk.index != index:
                    index, texts = chunk.index, filler.open_texts(chunk.index)
                    append = None if texts is None else texts.append
                if append is not None:
                    append(chunk.text)
                    continue
            index, append = -1, None
            chunks[at] = filler.fill(chunk)
            if isinstance(chunk, Usage):
                self.usage = chunk.usage
            elif isinstance(chunk, Finish):
                self.finish = chunk
                return chunks if at + 1 == len(chunks) else chunks[: at + 1]
        return chunks

    def _assembler(self) -> BlockAssembler:
        assembler = BlockAssembler()
        for index, partial in self._filler.partials.items():
            _repeat(assembler, index, partial)
        if self.finish is not None:
            assembler.push(self.finish)
        return assembler

    def blocks(self) -> list[ContentBlock]:
        """Return the blocks so far; those of a failed stream are what may be kept of it.

        Raises:
            ValueError: an open block of a type that deltas cannot build.
        """
        assembler = self._assembler()
        if self.finish is not None and self.finish.reason.kind in FAILED_KINDS:
            return assembler.interrupted_blocks()
        return assembler.blocks()

    def interrupted_blocks(self) -> list[ContentBlock]:
        """Return what may be kept of a stream that was cut short."""
        return self._assembler().interrupted_blocks()

    def message(self, provider: str, model: str) -> Message:
        """Return the assistant message that `provider` and `model` produced, under a fresh id.

        Raises:
            ValueError: as `blocks`.
        """
        replay = self._assembler().replay_state
        source = ModelMessageSource(
            provider=provider,
            model=model,
            replay_state=None if replay is None else replay.to_dict(),
        )
        return create_message("assistant", self.blocks(), source)


def _repeat(assembler: BlockAssembler, index: int, partial: PartialBlock) -> None:
    """Give an assembler the fewest chunks that lead to this block."""
    if partial.block is not None:
        assembler.push(BlockEnd(index, partial.block))
        return
    assembler.push(BlockStart(index, partial.block_type))
    if partial.block_type == "tool-call":
        name = partial.call_name or None
        arguments = "".join(partial.arguments)
        assembler.push(ToolCallDelta(index, partial.call_id, arguments, name))
    elif partial.block_type == "reasoning":
        assembler.push(ReasoningDelta(index, "".join(partial.texts)))
    else:
        assembler.push(TextDelta(index, "".join(partial.texts)))
