"""The closed `StreamChunk` union: what adapters emit and applications read, token by token.

This is the per-token path, so the chunks are slotted, not frozen (freezing costs three times as
much), and know no pydantic. Nobody changes a chunk once it is emitted.

Two forms leave the process: the camelCase map of JSON (`to_dict`, `chunk_from_dict`) and the
compact array of the lane (`to_array`, `chunks_from_arrays`), whose first item is the kind:

    [0, index, blockType]                    [4, index, block | nil]
    [1, index, text]                         [5, usage]
    [2, index, text]                         [6, reason, replayState | nil]
    [3, index, id | nil, name | nil, argumentsDelta]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.finish import FinishReason, ReplayEnvelope, TokenUsage
from trunkline_protocol.frozen import thaw

__all__ = [
    "BlockEnd",
    "BlockStart",
    "Finish",
    "FinishReason",
    "ReasoningDelta",
    "ReplayEnvelope",
    "StreamChunk",
    "TextDelta",
    "TokenUsage",
    "ToolCallDelta",
    "Usage",
    "chunk_from_dict",
    "chunk_to_array",
    "chunk_to_dict",
    "chunks_from_arrays",
    "is_token_delta",
]

# Beyond 2**53 - 1 a JSON number is no longer exact, and the seeds' indices are JSON numbers.
INDEX_MAX: Final = 9_007_199_254_740_991
_TEXT: Final = 1  # kind of a text delta on the lane


@dataclass(slots=True)
class BlockStart:
    """A block opens at `index`."""

    index: int
    block_type: str

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map."""
        return {"type": "block-start", "index": self.index, "blockType": self.block_type}

    def to_array(self) -> tuple[object, ...]:
        """Return the array of the lane."""
        return (0, self.index, self.block_type)


@dataclass(slots=True)
class TextDelta:
    """More visible text of the block at `index`."""

    index: int
    text: str

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map."""
        return {"type": "text-delta", "index": self.index, "text": self.text}

    def to_array(self) -> tuple[object, ...]:
        """Return the array of the lane."""
        return (1, self.index, self.text)


@dataclass(slots=True)
class ReasoningDelta:
    """More reasoning text of the block at `index`."""

    index: int
    text: str

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map."""
        return {"type": "reasoning-delta", "index": self.index, "text": self.text}

    def to_array(self) -> tuple[object, ...]:
        """Return the array of the lane."""
        return (2, self.index, self.text)


@dataclass(slots=True)
class ToolCallDelta:
    """More of the tool call at `index`; the arguments are a piece of raw JSON text.

    Attributes:
        index: of the block.
        id: of the call; an adapter that has none gives `None`, the last delta's id counts.
        arguments_delta: raw JSON text, in pieces.
        name: of the tool, usually on the first delta only.
    """

    index: int
    id: str | None
    arguments_delta: str
    name: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map; an id or name that is `None` has no key."""
        out: dict[str, object] = {"type": "tool-call-delta", "index": self.index}
        if self.id is not None:
            out["id"] = self.id
        if self.name is not None:
            out["name"] = self.name
        out["argumentsDelta"] = self.arguments_delta
        return out

    def to_array(self) -> tuple[object, ...]:
        """Return the array of the lane."""
        return (3, self.index, self.id, self.name, self.arguments_delta)


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

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map.

        Raises:
            ValueError: the block was left out and not filled in yet.
        """
        if self.block is None:
            raise ValueError("block: an elided block has no form outside the lane")
        return {"type": "block-end", "index": self.index, "block": dict(self.block)}

    def to_array(self) -> tuple[object, ...]:
        """Return the array of the lane."""
        return (4, self.index, None if self.block is None else dict(self.block))


@dataclass(slots=True)
class Usage:
    """Token counts of the call; comes before the finish."""

    usage: TokenUsage

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map."""
        return {"type": "usage", "usage": self.usage.to_dict()}

    def to_array(self) -> tuple[object, ...]:
        """Return the array of the lane."""
        return (5, self.usage.to_dict())


@dataclass(slots=True)
class Finish:
    """The end of the stream; nothing comes after it."""

    reason: FinishReason
    replay_state: ReplayEnvelope | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map."""
        out: dict[str, object] = {"type": "finish", "reason": self.reason.to_dict()}
        if self.replay_state is not None:
            out["replayState"] = self.replay_state.to_dict()
        return out

    def to_array(self) -> tuple[object, ...]:
        """Return the array of the lane."""
        replay = None if self.replay_state is None else self.replay_state.to_dict()
        return (6, self.reason.to_dict(), replay)


StreamChunk = BlockStart | TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | Usage | Finish


def chunk_to_dict(chunk: StreamChunk) -> dict[str, object]:
    """Return the camelCase map of a chunk."""
    return chunk.to_dict()


def chunk_to_array(chunk: StreamChunk) -> tuple[object, ...]:
    """Return the array of a chunk as it travels on the lane."""
    return chunk.to_array()


def is_token_delta(chunk: object) -> bool:
    """Tell whether a chunk carries output: text, arguments, or the name of a tool.

    Anything that is no chunk is none either.
    """
    if isinstance(chunk, TextDelta | ReasoningDelta):
        return chunk.text != ""
    if isinstance(chunk, ToolCallDelta):
        return chunk.arguments_delta != "" or chunk.name is not None
    return False


# Each reader takes the fields of one kind, already in order, and is shared by both forms.


def _index(value: object) -> int:
    """Check a block index."""
    if value.__class__ is not int or not 0 <= cast("int", value) <= INDEX_MAX:
        raise ValueError("index: a whole number from 0 to 2**53 - 1 is required")
    return cast("int", value)


def _text(value: object, name: str) -> str:
    """Check a text field."""
    if value.__class__ is not str:
        raise ValueError(f"{name}: text is required")
    return cast("str", value)


def _mapping(value: object, name: str) -> Mapping[str, object]:
    """Check a field that holds a map."""
    if not isinstance(value, dict):
        raise ValueError(f"{name}: a map is required")  # noqa: TRY004
    # Detached and of plain lists: the lane decodes lists as tuples, which compare unequal.
    return cast("Mapping[str, object]", thaw(value))  # pyright: ignore[reportUnknownArgumentType]


def _block_start(index: object, block_type: object) -> BlockStart:
    return BlockStart(_index(index), _text(block_type, "blockType"))


def _text_delta(index: object, text: object) -> TextDelta:
    return TextDelta(_index(index), _text(text, "text"))


def _reasoning_delta(index: object, text: object) -> ReasoningDelta:
    return ReasoningDelta(_index(index), _text(text, "text"))


def _tool_call_delta(
    index: object, call_id: object, name: object, arguments_delta: object
) -> ToolCallDelta:
    # The second most frequent kind; the slow tests below only find out what is wrong.
    if (
        index.__class__ is int
        and arguments_delta.__class__ is str
        and (call_id is None or call_id.__class__ is str)
        and (name is None or name.__class__ is str)
        and 0 <= cast("int", index) <= INDEX_MAX
    ):
        return ToolCallDelta(
            cast("int", index),
            cast("str | None", call_id),
            cast("str", arguments_delta),
            cast("str | None", name),
        )
    _index(index)
    for value, field in ((call_id, "id"), (name, "name")):
        if value is not None:
            _text(value, field)
    raise ValueError("argumentsDelta: text is required")  # the only one that is left


def _block_end(index: object, block: object) -> BlockEnd:
    block = _mapping(block, "block")
    _text(block.get("type"), "block.type")
    return BlockEnd(_index(index), block)


def _lane_block_end(index: object, block: object) -> BlockEnd:
    return BlockEnd(_index(index), None) if block is None else _block_end(index, block)


def _usage(usage: object) -> Usage:
    return Usage(TokenUsage.from_dict(_mapping(usage, "usage")))


def _finish(reason: object, replay_state: object) -> Finish:
    replay = None
    if replay_state is not None:
        replay = ReplayEnvelope.from_dict(_mapping(replay_state, "replayState"))
    return Finish(FinishReason.from_dict(_mapping(reason, "reason")), replay)


_Reader = Callable[..., StreamChunk]
_MAP_READERS: Final[dict[str, tuple[_Reader, tuple[str, ...]]]] = {
    "block-start": (_block_start, ("index", "blockType")),
    "text-delta": (_text_delta, ("index", "text")),
    "reasoning-delta": (_reasoning_delta, ("index", "text")),
    "tool-call-delta": (_tool_call_delta, ("index", "id", "name", "argumentsDelta")),
    "block-end": (_block_end, ("index", "block")),
    "usage": (_usage, ("usage",)),
    "finish": (_finish, ("reason", "replayState")),
}
_LANE_READERS: Final[tuple[_Reader, ...]] = (
    _block_start,
    _text_delta,
    _reasoning_delta,
    _tool_call_delta,
    _lane_block_end,
    _usage,
    _finish,
)


def chunk_from_dict(data: Mapping[str, object]) -> StreamChunk:
    """Read the camelCase map of a chunk; unknown keys are left out.

    Raises:
        ValueError: an unknown `type`, or a field is missing or wrong; the text names both.
    """
    kind = data.get("type")
    found = _MAP_READERS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise ValueError("type: not one of the stream chunk types")
    reader, keys = found
    try:
        return reader(*[data.get(key) for key in keys])
    except ValueError as exc:
        raise ValueError(f"{kind}.{exc}") from exc


def _refuse(position: int, cause: Exception | None) -> NoReturn:
    """Refuse a lane body, naming the chunk by its place."""
    detail = str(cause) if isinstance(cause, ValueError) else "not a chunk array"
    raise RemoteProtocolError(f"chunk {position}: {detail}", code="MALFORMED_CHUNK") from cause


def chunks_from_arrays(items: Iterable[object]) -> list[StreamChunk]:
    """Read the arrays of one lane frame.

    Text deltas are read in the loop itself: they are nearly all of the traffic. Behind one that
    was checked, two comparisons of identity check the next: small integers are one object each, and
    where they are not, the tests below decide.

    Raises:
        RemoteProtocolError: an item is no chunk array; nothing of the frame is used then.
    """
    out: list[StreamChunk] = []
    append = out.append
    last: Any = None  # index of the delta before
    # Any: the tests below are the type check, written for speed.
    for item in cast("Iterable[Any]", items):
        if item.__class__ is tuple and len(item) == 3:
            kind, index, text = item
            if text.__class__ is not str:
                pass
            elif kind is _TEXT and index is last:
                append(TextDelta(index, text))
                continue
            elif (
                kind.__class__ is int
                and index.__class__ is int
                and 0 < kind < 3
                and 0 <= index <= INDEX_MAX
            ):
                last = index
                append(TextDelta(index, text) if kind == _TEXT else ReasoningDelta(index, text))
                continue
        elif item.__class__ is not list and item.__class__ is not tuple:
            _refuse(len(out), None)
        try:
            append(_read_array(item))
        except (TypeError, ValueError, IndexError) as exc:
            _refuse(len(out), exc)
    return out


def _read_array(fields: Sequence[object]) -> StreamChunk:
    """Read one array of any kind; raises TypeError if the count of fields is wrong."""
    kind = fields[0]
    if kind.__class__ is not int or not 0 <= cast("int", kind) < len(_LANE_READERS):
        raise ValueError("kind: not one of the stream chunk kinds")
    return _LANE_READERS[cast("int", kind)](*fields[1:])
