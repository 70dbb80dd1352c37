"""The one assembly algorithm: folds a chunk stream into blocks, usage, finish and replay state.

Tolerant on purpose: streams of deltas only, stragglers after a block's end, repeated starts and
ends all assemble. Whether a stream was well formed is asked of `grammar`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never, cast

from trunkline_protocol.blanks import BLANKS
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    FinishReason,
    ReasoningDelta,
    ReplayEnvelope,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    Usage,
)
from trunkline_protocol.content import ContentBlock, block_from_dict
from trunkline_protocol.messages import Message, MessageSource, PluginMessageSource, create_message
from trunkline_protocol.partial_block import PartialBlock

_PLUGIN: Final = "dsh-llm/assembler"
_STOP: Final = FinishReason("stop")


class BlockAssembler:
    """Assembles one stream; feed it every chunk in order, read it at any time.

    Deltas for an index that a `BlockEnd` has closed are ignored, so that a misbehaving adapter can
    neither grow memory nor corrupt a complete block.
    """

    __slots__ = ("_finish", "_partials", "_replay_state", "_usage")

    def __init__(self) -> None:
        # Insertion order is the order in which indices were first seen.
        self._partials: dict[int, PartialBlock] = {}
        self._usage: TokenUsage | None = None
        self._finish: FinishReason | None = None
        self._replay_state: ReplayEnvelope | None = None

    def push(self, chunk: StreamChunk) -> None:
        """Fold in the next chunk of the stream."""
        if chunk.__class__ is TextDelta:  # nearly all chunks are more text of an open block
            partial = self._partials.get(cast("TextDelta", chunk).index)
            if partial is not None and partial.block is None:
                partial.texts.append(cast("TextDelta", chunk).text)
                return
        match chunk:
            case TextDelta():
                self._partial(chunk.index, "text").add_text(chunk.text)
            case ReasoningDelta():
                self._partial(chunk.index, "reasoning").add_text(chunk.text)
            case ToolCallDelta():
                self._partial(chunk.index, "tool-call").add_tool_call(chunk)
            case BlockStart():
                self._partial(chunk.index, chunk.block_type)
            case BlockEnd():
                self._close(chunk)
            case Usage():
                self._usage = chunk.usage
            case Finish():
                self._finish, self._replay_state = chunk.reason, chunk.replay_state
            case _:
                assert_never(chunk)

    def blocks(self) -> list[ContentBlock]:
        """Assemble the blocks seen so far, in stream order.

        A `max-tokens` finish drops every tool call: a truncated call is unsafe to execute.

        Raises:
            ValueError: an open block of a type that deltas cannot build, or a closing block of a
                known type with a wrong shape. Nothing is changed by it.
        """
        return [block_from_dict(block) for block in self._kept_blocks()]

    def interrupted_blocks(self) -> list[ContentBlock]:
        """Assemble what may be kept of a stream that was cut short.

        Text and reasoning with any content, closed or open; never a tool call (nobody will answer
        it), never a blank block, never a block of another type.
        """
        kept: list[ContentBlock] = []
        for index, partial in self._partials.items():
            if partial.final_type in {"text", "reasoning"}:
                block = partial.assembled(index)
                if cast("str", block["text"]).strip(BLANKS):
                    kept.append(block_from_dict(block))
        return kept

    @property
    def usage(self) -> TokenUsage | None:
        """The last usage; `None` until one arrives."""
        return self._usage

    @property
    def finish(self) -> FinishReason:
        """The last finish; `stop` if the stream ended without one."""
        return self._finish or _STOP

    @property
    def replay_state(self) -> ReplayEnvelope | None:
        """The replay envelope, pruned in step with `blocks`.

        `None` if there is none or if its entries do not match the emitted blocks one to one.
        """
        envelope = self._replay_state
        if envelope is None or envelope.blocks is None:
            return envelope
        if len(envelope.blocks) != len(self._partials):
            return None
        keep = [self._is_kept(partial.final_type) for partial in self._partials.values()]
        if all(keep):
            return envelope
        entries = zip(envelope.blocks, keep, strict=True)
        return ReplayEnvelope(envelope.response, tuple(entry for entry, kept in entries if kept))

    def message(self, source: MessageSource | None = None) -> Message:
        """Return the assembled assistant message under a fresh id.

        Args:
            source: who made it; `None`: the assembler, as a plugin.

        Raises:
            ValueError: as `blocks`.
        """
        # Not made before it is wanted: the first value of a model costs 15 ms (measured).
        made = source if source is not None else PluginMessageSource(plugin=_PLUGIN)
        return create_message("assistant", self.blocks(), made)

    def _partial(self, index: int, block_type: str) -> PartialBlock:
        """Return the block at an index, opening it if it is new: the first type wins."""
        partial = self._partials.get(index)
        if partial is None:
            partial = self._partials[index] = PartialBlock(block_type)
        return partial

    def _close(self, chunk: BlockEnd) -> None:
        """Close a block: the first end is authoritative, whatever the deltas said."""
        if chunk.block is None:  # elided: the deltas are the block
            partial = self._partial(chunk.index, "text")
            partial.close(partial.assembled(chunk.index))
        else:
            self._partial(chunk.index, cast("str", chunk.block["type"])).close(chunk.block)

    def _is_kept(self, block_type: str) -> bool:
        """Decide for a block and for its replay entry alike."""
        return block_type != "tool-call" or self.finish.kind != "max-tokens"

    def _kept_blocks(self) -> list[Mapping[str, object]]:
        blocks = [partial.assembled(index) for index, partial in self._partials.items()]
        return [block for block in blocks if self._is_kept(cast("str", block["type"]))]
