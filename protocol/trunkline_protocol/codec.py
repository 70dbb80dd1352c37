"""Bytes ↔ frames, with limits. Any bytes from a peer become a frame or `RemoteProtocolError`.

This file knows both lanes' layouts (SPEC 2 and 4) and which side may send which kind; it knows
nothing of sockets, calls or what a frame leads to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache, partial
from typing import Any, Final, NamedTuple, cast, get_args

import msgpack  # pyright: ignore[reportMissingTypeStubs]  # it ships none

from trunkline_protocol import frames, limits
from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.ids import STREAM_KEY_BYTES, StreamKey
from trunkline_protocol.wire_checks import list_of

BAD_FRAME: Final = "BAD_FRAME"
UNKNOWN_KIND: Final = "UNKNOWN_KIND"
FRAME_TOO_LARGE: Final = "FRAME_TOO_LARGE"

# A lone surrogate is legal in JSON, so models and providers may utter one: it passes unchanged.
_LENIENT: Final = "surrogatepass"
_packb = cast("Callable[..., bytes]", msgpack.packb)
_unpackb = partial(cast("Callable[..., Any]", msgpack.unpackb), unicode_errors=_LENIENT)


def _pack(value: object) -> bytes:
    try:
        return _packb(value)  # strict packing is a third faster than lenient packing
    except UnicodeEncodeError:
        return _packb(value, unicode_errors=_LENIENT)


class Direction(Enum):
    """Who sends to whom; each has its own closed set of kinds."""

    CLIENT_TO_BROKER = "client to broker"
    BROKER_TO_CLIENT = "broker to client"
    WORKER_TO_BROKER = "worker to broker"
    BROKER_TO_WORKER = "broker to worker"


class _FieldSpec(NamedTuple):
    attribute: str
    key: str
    check: Callable[[object], Any]
    default: Any  # MISSING: required
    is_list: bool  # entries are dataclasses, sent as positional lists


class _FrameSpec(NamedTuple):
    frame: Callable[..., Any]
    fields: tuple[_FieldSpec, ...]
    has_body: bool


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


@cache
def _check_of(annotation: str) -> Callable[[object], Any]:
    """Return the check inside `Annotated[T, check]` or `Annotated[T, check] | None`.

    `frames` writes most of them many times; evaluating each once is what `get_type_hints` is not.
    """
    hint: Any = eval(annotation, frames.__dict__)  # noqa: S307  text of our own source file
    if not hasattr(hint, "__metadata__"):
        hint = next(arg for arg in get_args(hint) if hasattr(arg, "__metadata__"))
    return hint.__metadata__[0]


def _spec(frame: Any) -> _FrameSpec:
    specs: list[_FieldSpec] = []
    has_body = False
    for item in fields(frame):
        if item.name == "body":
            has_body = True
            continue
        check = _check_of(str(item.type))
        is_list = isinstance(check, list_of)
        specs.append(_FieldSpec(item.name, _camel(item.name), check, item.default, is_list))
    return _FrameSpec(frame, tuple(specs), has_body)


_SPECS: Final[dict[type, _FrameSpec]] = {frame: _spec(frame) for frame in get_args(frames.Frame)}
DIRECTIONS: Final[dict[Direction, dict[bytes, _FrameSpec]]] = {
    direction: {frame.KIND: _SPECS[frame] for frame in get_args(union)}
    for direction, union in (
        (Direction.CLIENT_TO_BROKER, frames.ClientFrame),
        (Direction.BROKER_TO_CLIENT, frames.ToClientFrame),
        (Direction.WORKER_TO_BROKER, frames.WorkerFrame),
        (Direction.BROKER_TO_WORKER, frames.ToWorkerFrame),
    )
}


def _entry(item: Any) -> list[Any]:
    return [getattr(item, name) for name in item.__slots__]


def encode(frame: frames.Frame) -> list[frames.Body]:
    """Encode a control frame as its parts: kind, envelope and, where the kind has one, the body."""
    spec = _SPECS[type(frame)]
    envelope: dict[str, Any] = {}
    for attribute, key, _, default, is_list in spec.fields:
        value = getattr(frame, attribute)
        if value is default or (default is not MISSING and value == default):
            continue
        envelope[key] = [_entry(item) for item in value] if is_list else value
    parts: list[frames.Body] = [frame.KIND, _pack(envelope)]
    if spec.has_body:
        parts.append(cast("Any", frame).body)
    return parts


def decode(parts: Sequence[frames.Body], direction: Direction) -> frames.Frame:
    """Decode the parts of one control frame that came in the given direction.

    Raises:
        RemoteProtocolError: `UNKNOWN_KIND`, `FRAME_TOO_LARGE` or `BAD_FRAME`, with text that
            names the kind and the field; nothing else is raised, whatever the bytes are.
    """
    if not 2 <= len(parts) <= limits.MAX_PARTS:
        raise RemoteProtocolError(f"a control frame has 2 or 3 parts, not {len(parts)}", BAD_FRAME)
    kind, packed = parts[0], parts[1]
    spec = DIRECTIONS[direction].get(bytes(kind)) if len(kind) <= limits.MAX_KIND_BYTES else None
    if spec is None:
        raise RemoteProtocolError(f"unknown kind of frame ({direction.value})", UNKNOWN_KIND)
    if len(packed) > limits.MAX_ENVELOPE_BYTES and (
        kind != frames.Register.KIND or len(packed) > limits.MAX_REGISTER_BYTES
    ):
        raise RemoteProtocolError(f"{_text(kind)}: envelope too large", FRAME_TOO_LARGE)
    values = _checked_fields(spec, _unpack_envelope(kind, packed), kind)
    if spec.has_body:
        body = parts[2] if len(parts) == limits.MAX_PARTS else b""
        if len(body) > limits.MAX_BODY_BYTES:
            raise RemoteProtocolError(f"{_text(kind)}: body too large", FRAME_TOO_LARGE)
        values["body"] = body
    elif len(parts) == limits.MAX_PARTS:
        raise RemoteProtocolError(f"{_text(kind)} has no body", BAD_FRAME)
    return spec.frame(**values)


def _text(kind: frames.Body) -> str:
    return bytes(kind).decode("ascii", "replace")


def _unpack_envelope(kind: frames.Body, packed: frames.Body) -> dict[Any, Any]:
    try:
        envelope = _unpackb(packed, strict_map_key=False, use_list=False)
    # msgpack raises many unrelated types for bad bytes (ValueError, TypeError for unhashable map
    # keys, its own StackError and OverflowError); all of them mean one thing here.
    except Exception as exc:
        raise RemoteProtocolError(f"{_text(kind)}: not one MessagePack value", BAD_FRAME) from exc
    if type(envelope) is not dict:
        raise RemoteProtocolError(f"{_text(kind)}: the envelope is not a map", BAD_FRAME)
    return cast("dict[Any, Any]", envelope)


def _checked_fields(
    spec: _FrameSpec, envelope: dict[Any, Any], kind: frames.Body
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for attribute, key, check, default, _ in spec.fields:
        value = envelope.get(key)
        if value is None:
            if default is MISSING:
                raise RemoteProtocolError(f"{_text(kind)}: {key} is missing", BAD_FRAME)
            continue
        try:
            values[attribute] = check(value)
        except ValueError as exc:
            raise RemoteProtocolError(f"{_text(kind)}: {key} must be {exc}", BAD_FRAME) from exc
    return values


# --- the chunk lane -------------------------------------------------------------------------

CHUNKS: Final = 1
PROBED: Final = 2

_HEADER: Final = struct.Struct(f">B{STREAM_KEY_BYTES}sQI")
HEADER_BYTES: Final = _HEADER.size
_pack_header = _HEADER.pack
_unpack_header = _HEADER.unpack_from
_NO_KEY: Final = bytes(STREAM_KEY_BYTES)
_FIRST: Final = slice(1 + STREAM_KEY_BYTES, 1 + STREAM_KEY_BYTES + 8)
_ZERO: Final = bytes(8)


@dataclass(slots=True)
class LaneHeader:
    """Head of a lane frame: which stream, and the numbers `first` to `first + count - 1`."""

    kind: int
    stream_key: StreamKey
    first: int
    count: int


def encode_lane(stream_key: StreamKey, first: int, arrays: Sequence[Any]) -> bytes:
    """Encode consecutive chunks (as lane arrays, `chunks.chunk_to_array`) as one lane frame."""
    return _pack_header(CHUNKS, stream_key, first, len(arrays)) + _pack(arrays)


def encode_probed(nonce: int) -> bytes:
    """Encode the echo of a `PROBE` for the lane."""
    return _pack_header(PROBED, _NO_KEY, nonce, 0)


def begins_stream(frame: bytes) -> bool:
    """Tell whether a lane frame is the first of its stream; any bytes will do."""
    return frame[_FIRST] == _ZERO


def decode_lane_header(frame: bytes) -> LaneHeader:
    """Read the head of a lane frame.

    Raises:
        RemoteProtocolError: too short, an unknown kind, or a count outside 0 to 1,024.
    """
    try:
        kind, key, first, count = _unpack_header(frame)
    except struct.error as exc:
        raise RemoteProtocolError("a lane frame shorter than its header", BAD_FRAME) from exc
    if kind not in (CHUNKS, PROBED):
        raise RemoteProtocolError("unknown kind of lane frame", UNKNOWN_KIND)
    if count > limits.MAX_LANE_CHUNKS:
        raise RemoteProtocolError("too many chunks in a lane frame", FRAME_TOO_LARGE)
    return LaneHeader(kind, StreamKey(key), first, count)


def decode_lane_arrays(frame: bytes, count: int) -> Sequence[Any]:
    """Read the chunk arrays behind a header; `chunks.chunks_from_arrays` checks each of them.

    Raises:
        RemoteProtocolError: not one MessagePack array of `count` entries, or too large.
    """
    if len(frame) > limits.MAX_LANE_BODY_BYTES:
        raise RemoteProtocolError("lane frame too large", FRAME_TOO_LARGE)
    try:
        arrays = _unpackb(memoryview(frame)[HEADER_BYTES:], use_list=False, strict_map_key=False)
    # As in _unpack_envelope: whatever msgpack raises, the bytes are bad.
    except Exception as exc:
        raise RemoteProtocolError("lane frame: not one MessagePack value", BAD_FRAME) from exc
    if type(arrays) is not tuple or len(cast("tuple[Any, ...]", arrays)) != count:
        raise RemoteProtocolError("lane frame: count does not match", BAD_FRAME)
    return cast("tuple[Any, ...]", arrays)


# --- bodies ---------------------------------------------------------------------------------


def pack_body(value: object) -> bytes:
    """Encode the body of a `QUERY` or `REPLY`.

    Raises:
        TypeError, ValueError, OverflowError: the value has no MessagePack form.
    """
    return _pack(value)


def unpack_body(body: frames.Body) -> Any:
    """Decode a body; an empty one is `None`.

    Raises:
        RemoteProtocolError: not one MessagePack value, larger than `MAX_BODY_BYTES` or nested
            deeper than `MAX_BODY_DEPTH`.
    """
    if not body:
        return None
    if len(body) > limits.MAX_BODY_BYTES:
        raise RemoteProtocolError("body too large", FRAME_TOO_LARGE)
    try:
        value = _unpackb(body, strict_map_key=False)
    # As in _unpack_envelope: whatever msgpack raises, the bytes are bad.
    except Exception as exc:
        raise RemoteProtocolError("body: not one MessagePack value", BAD_FRAME) from exc
    _check_depth(value)
    return value


def _check_depth(value: object) -> None:
    """Refuse what a recursive reader could not walk; level by level, so nothing recurses here."""
    level: list[Any] = [value]
    for _ in range(limits.MAX_BODY_DEPTH + 1):
        inner: list[Any] = []
        for item in level:
            if type(item) is list:
                inner.extend(cast("list[Any]", item))
            elif type(item) is dict:
                inner.extend(cast("dict[Any, Any]", item).values())
        if not inner:
            return
        level = inner
    raise RemoteProtocolError(f"body: nested at most {limits.MAX_BODY_DEPTH} deep", BAD_FRAME)
