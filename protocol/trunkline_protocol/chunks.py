"""The closed `StreamChunk` union: what adapters emit and applications read, token by token.

This is the per-token path, so the classes are slotted, not frozen (freezing costs three times as
much) and know no pydantic. A chunk belongs to whoever holds it; nobody changes one afterwards.
The forms on the wire live in `chunk_dicts` (the camelCase maps) and `chunk_arrays` (the lane).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from trunkline_protocol.failure import LlmFailure

FAILED_KINDS: Final = frozenset({"error", "aborted"})
_NO_EXTRA: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts of one call; the three input counts are disjoint.

    Attributes:
        input_tokens: uncached input only.
        output_tokens: all output, reasoning included.
        cache_read_tokens: input served from a cache.
        cache_write_tokens: input written to a cache.
        reasoning_tokens: a part of `output_tokens`, never added again.
    """

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class FinishReason:
    """Why a response stopped: `stop`, `tool-calls`, `max-tokens`, `aborted`, `error`, or another.

    Attributes:
        kind: other kinds than the five pass unchanged.
        failure: required for `aborted` and `error`.
        extra: the other keys of the reason, unchanged.

    Raises:
        ValueError: `aborted` or `error` without a failure.
    """

    kind: str
    failure: LlmFailure | None = None
    extra: Mapping[str, object] = field(default=_NO_EXTRA, hash=False)

    def __post_init__(self) -> None:
        if self.failure is None and self.kind in FAILED_KINDS:
            raise ValueError(f"a finish of kind {self.kind} needs a failure")


@dataclass(frozen=True, slots=True)
class ReplayEnvelope:
    """Adapter-private state for replaying a response; opaque to everybody else.

    Attributes:
        response: metadata of the whole response, any lossless-JSON value.
        blocks: one entry per emitted block in first-seen order; `None`: independent of blocks.
    """

    response: object
    blocks: tuple[object, ...] | None = None


@dataclass(slots=True)
class BlockStart:
    """A block opens at `index`."""

    index: int
    block_type: str


@dataclass(slots=True)
class TextDelta:
    """More visible text of the block at `index`."""

    index: int
    text: str


@dataclass(slots=True)
class ReasoningDelta:
    """More reasoning text of the block at `index`."""

    index: int
    text: str


@dataclass(slots=True)
class ToolCallDelta:
    """More of the tool call at `index`; the arguments are a piece of raw JSON text."""

    index: int
    id: str | None
    arguments_delta: str
    name: str | None = None


@dataclass(slots=True)
class BlockEnd:
    """The block at `index` is complete.

    Attributes:
        index: of the block.
        block: the whole block as a camelCase map with its `type`; `None` only on the lane, where
            it means "what the deltas of this block assemble to" (see `elision`).
    """

    index: int
    block: Mapping[str, object] | None


@dataclass(slots=True)
class Usage:
    """Token counts of the call; comes before the finish."""

    usage: TokenUsage


@dataclass(slots=True)
class Finish:
    """The end of the stream; nothing comes after it."""

    reason: FinishReason
    replay_state: ReplayEnvelope | None = None


StreamChunk = BlockStart | TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | Usage | Finish
