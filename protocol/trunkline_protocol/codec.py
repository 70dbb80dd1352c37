"""Bytes ↔ frames, with limits. Any bytes from a peer become a frame or `RemoteProtocolError`.

This file knows both lanes' layouts (SPEC 2 and 4) and which side may send which kind; it knows
nothing of sockets, calls or what a frame leads to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple, cast, get_args

import msgpack  # pyright: ignore[reportMissingTypeStubs]  # it ships none

from trunkline_protocol import call_frames, frames, limits, worker_frames
from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.ids import STREAM_KEY_BYTES, StreamKey
from trunkline_protocol.wire_checks import list_of

BAD_FRAME: Final = "BAD_FRAME"
UNKNOWN_KIND: Final = "UNKNOWN_KIND"
FRAME_TOO_LARGE: Final = "FRAME_TOO_LARGE"

# A lone surrogate is legal in JSON, so models and providers may utter one: it passes unchanged.
_LENIENT: Final = "surrogatepass"
_packb = cast("Callable[..., bytes]", msgpack.packb)
_strict_unpackb = cast("Callable[..., Any]", msgpack.unpackb)


def _pack(value: object) -> bytes:
    try:
        return _packb(value)  # strict packing is a third faster than lenient packing
    except UnicodeEncodeError:
        return _packb(value, unicode_errors=_LENIENT)


def _unpackb(packed: frames.Body, *, use_list: bool) -> Any:
    try:
        return _strict_unpackb(packed, strict_map_key=False, use_list=use_list)
    except UnicodeDecodeError:
        return _strict_unpackb(
            packed, strict_map_key=False, use_list=use_list, unicode_errors=_LENIENT
        )


class Direction(Enum):
    """Who sends to whom; each has its own closed set of kinds."""

    CLIENT_TO_BROKER = "client to broker"
    BROKER_TO_CLIENT = "broker to client"
    WORKER_TO_BROKER = "worker to broker"
    BROKER_TO_WORKER = "broker to worker"

    __hash__ = object.__hash__  # that of `Enum` is written in Python, and every frame asks for it


class _FieldSpec(NamedTuple):
    attribute: str
    key: str
    check: Callable[[object], Any]
    default: Any  # MISSING: required
    is_list: bool  # entries are dataclasses, sent as positional lists


@dataclass(slots=True)
class _FrameSpec:
    """How a kind looks; its reader and writer are made when they are first used."""

    frame: Callable[..., Any]
    fields: tuple[_FieldSpec, ...]
    has_body: bool
    read: Callable[..., Any] | None = None
    write: Callable[[Any], dict[str, Any]] | None = None


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


# What the annotations of frames are written in.
_NAMES: Final = {**vars(call_frames), **vars(worker_frames), **vars(frames)}


@cache
def _check_of(annotation: str) -> Callable[[object], Any]:
    """Return the check inside `Annotated[T, check]` or `Annotated[T, check] | None`.

    Most of them are written many times; evaluating each once is what `get_type_hints` is not.
    """
    hint: Any = eval(annotation, _NAMES)  # noqa: S307  text of our own source file
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


def _entries(items: Iterable[Any]) -> list[list[Any]]:
    return [_entry(item) for item in items]


# A reader and a writer of a kind are written out, as `dataclass` does it: a loop over its fields
# takes twice as long (measured), and two thirds of what a call costs the core of a broker was that.


def _function(head: str, lines: Iterable[str], space: dict[str, Any]) -> Any:
    exec("\n    ".join((f"def function({head}):", *lines)), space)  # noqa: S102  our own text
    return space["function"]


def _writer(spec: _FrameSpec) -> Callable[[Any], dict[str, Any]]:
    """Return what makes the envelope of a frame; a field that has its default is left out."""
    space: dict[str, Any] = {"entries": _entries}
    lines = ["out = {}"]
    for item in spec.fields:
        value = "entries(value)" if item.is_list else "value"
        put = f"out[{item.key!r}] = {value}"
        lines.append(f"value = frame.{item.attribute}")
        if item.default is not MISSING:
            space[f"default_{item.attribute}"] = item.default
            name = f"default_{item.attribute}"
            put = f"if value is not {name} and value != {name}: {put}"
        lines.append(put)
    return _function("frame", [*lines, "return out"], space)


def _reader(spec: _FrameSpec) -> Callable[..., Any]:
    """Return what makes a frame of an envelope and a body.

    It raises KeyError or ValueError; `_what_is_wrong` then finds out the reason.
    """
    space: dict[str, Any] = {"frame": spec.frame}
    lines = ["get = envelope.get"]
    arguments: list[str] = []
    for item in spec.fields:
        name = item.attribute
        space[f"check_{name}"], space[f"default_{name}"] = item.check, item.default
        if item.default is MISSING:
            arguments.append(f"{name}=check_{name}(envelope[{item.key!r}])")
        else:
            lines.append(f"{name} = get({item.key!r})")
            made = f"default_{name} if {name} is None else check_{name}({name})"
            arguments.append(f"{name}={made}")
    if spec.has_body:
        arguments.append("body=body")
    return _function("envelope, body", [*lines, f"return frame({', '.join(arguments)})"], space)


def encode(frame: frames.Frame) -> list[frames.Body]:
    """Encode a control frame as its parts: kind, envelope and, where the kind has one, the body."""
    spec = _SPECS[type(frame)]
    write = spec.write
    if write is None:
        write = spec.write = _writer(spec)
    parts: list[frames.Body] = [frame.KIND, _pack(write(frame))]
    if spec.has_body:
        parts.append(cast("Any", frame).body)
    return parts


# A worker says all that it holds, and all that it serves, in one frame.
_LARGE_KINDS: Final = frozenset({frames.Register.KIND, frames.Registrations.KIND})


def decode(parts: Sequence[frames.Body], direction: Direction) -> frames.Frame:
    """Decode the parts of one control frame that came in the given direction.

    Raises:
        RemoteProtocolError: `UNKNOWN_KIND`, `FRAME_TOO_LARGE` or `BAD_FRAME`, with text that
            names the kind and the field; nothing else is raised, whatever the bytes are. The error
            names the call, query or request of a frame whose sender waits, if it can be read.
    """
    if not 2 <= len(parts) <= limits.MAX_PARTS:
        raise RemoteProtocolError(f"a control frame has 2 or 3 parts, not {len(parts)}", BAD_FRAME)
    kind, packed = parts[0], parts[1]
    spec = DIRECTIONS[direction].get(bytes(kind)) if len(kind) <= limits.MAX_KIND_BYTES else None
    if spec is None:
        raise RemoteProtocolError(f"unknown kind of frame ({direction.value})", UNKNOWN_KIND)
    if len(packed) > limits.MAX_ENVELOPE_BYTES and (
        bytes(kind) not in _LARGE_KINDS or len(packed) > limits.MAX_REGISTER_BYTES
    ):
        raise RemoteProtocolError(f"{_text(kind)}: envelope too large", FRAME_TOO_LARGE)
    body: frames.Body = b""
    if len(parts) == limits.MAX_PARTS:
        body = parts[2]
        if not spec.has_body:
            raise RemoteProtocolError(f"{_text(kind)} has no body", BAD_FRAME)
        if len(body) > limits.MAX_BODY_BYTES:
            raise RemoteProtocolError(f"{_text(kind)}: body too large", FRAME_TOO_LARGE)
    envelope = _unpack_envelope(kind, packed)
    read = spec.read
    if read is None:
        read = spec.read = _reader(spec)
    try:
        return read(envelope, body)
    except (KeyError, ValueError):
        wrong = _what_is_wrong(spec, envelope, kind)
        wrong.about = _about(spec, envelope)
        raise wrong from None


def _text(kind: frames.Body) -> str:
    return bytes(kind).decode("ascii", "replace")


def _unpack_envelope(kind: frames.Body, packed: frames.Body) -> dict[Any, Any]:
    try:
        envelope = _unpackb(packed, use_list=False)
    # msgpack raises many unrelated types for bad bytes (ValueError, TypeError for unhashable map
    # keys, its own StackError and OverflowError); all of them mean one thing here.
    except Exception as exc:
        raise RemoteProtocolError(f"{_text(kind)}: not one MessagePack value", BAD_FRAME) from exc
    if type(envelope) is not dict:
        raise RemoteProtocolError(f"{_text(kind)}: the envelope is not a map", BAD_FRAME)
    return cast("dict[Any, Any]", envelope)


def _what_is_wrong(
    spec: _FrameSpec, envelope: dict[Any, Any], kind: frames.Body
) -> RemoteProtocolError:
    """Name the first field that a reader has stumbled over."""
    for item in spec.fields:
        value = envelope.get(item.key)
        if value is None:
            if item.default is MISSING:
                text = f"{_text(kind)}: {item.key} is missing"
                return RemoteProtocolError(text, BAD_FRAME)
            continue
        try:
            item.check(value)
        except ValueError as exc:
            text = f"{_text(kind)}: {item.key} must be {exc}"
            return RemoteProtocolError(text, BAD_FRAME)
    raise AssertionError("the reader has made the same checks")


# Kinds whose sender waits for an answer, with the fields that name what it waits for.
_ASKED: Final[dict[type, tuple[str, ...]]] = {
    frames.Open: ("call", "attempt"),
    frames.Query: ("query",),
    frames.Registrations: ("request",),
}


def _about(spec: _FrameSpec, envelope: dict[Any, Any]) -> dict[str, Any]:
    """Read what a refusal of a frame must name; nothing unless all of it can be read."""
    wanted = _ASKED.get(cast("type", spec.frame), ())
    about: dict[str, Any] = {}
    for item in spec.fields:
        if item.attribute in wanted:
            try:
                about[item.attribute] = item.check(envelope.get(item.key))
            except ValueError:
                return {}
    return about


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
        arrays = _unpackb(memoryview(frame)[HEADER_BYTES:], use_list=False)
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
        value = _unpackb(body, use_list=True)
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
