"""Any bytes become a frame or `RemoteProtocolError`; any frame survives the wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args

import msgpack
from hypothesis import given
from hypothesis import strategies as st
from trunkline_protocol import chunks, codec, frames, limits
from trunkline_protocol import wire_checks as check
from trunkline_protocol.codec import Direction
from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.ids import Generation, StreamKey
from trunkline_protocol.printable import one_line, readable

from tests.support import golden

DIRECTIONS = st.sampled_from(Direction)
KINDS = st.sampled_from([frame.KIND for frame in get_args(frames.Frame)])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = TEXT.map(one_line)
UINTS = st.integers(0, check.MAX_UINT)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT | st.binary()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT | st.integers(0, 9) | st.binary(max_size=3), inner, max_size=4)
        | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=4))
    ),
    max_leaves=12,
)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
MAPS = st.dictionaries(TEXT, PLAIN, max_size=4)
ENVELOPE_KEYS = st.sampled_from(
    sorted({codec._camel(item.name) for frame in get_args(frames.Frame) for item in fields(frame)})
)


def decoded_or_refused(decode: Callable[[], object]) -> None:
    code = None
    try:
        decode()
    except RemoteProtocolError as exc:
        code = exc.code
    assert code in {None, "BAD_FRAME", "UNKNOWN_KIND", "FRAME_TOO_LARGE", "MALFORMED_CHUNK"}


# --- any bytes ------------------------------------------------------------------------------


@given(DIRECTIONS, st.lists(st.binary(max_size=64), max_size=5))
def test_any_parts(direction: Direction, parts: list[bytes]) -> None:
    """Parts that mean nothing are refused with a code."""
    decoded_or_refused(lambda: codec.decode(parts, direction))


@given(DIRECTIONS, KINDS, st.binary(max_size=200), st.none() | st.binary(max_size=16))
def test_any_envelope(direction: Direction, kind: bytes, packed: bytes, body: bytes | None) -> None:
    """A known kind with any envelope bytes."""
    parts = [kind, packed] if body is None else [kind, packed, body]
    decoded_or_refused(lambda: codec.decode(parts, direction))


@given(DIRECTIONS, KINDS, st.dictionaries(ENVELOPE_KEYS, VALUES, max_size=6))
def test_any_values(direction: Direction, kind: bytes, envelope: dict[str, Any]) -> None:
    """A known kind with known keys and values of any type; what is accepted encodes again."""
    parts = [kind, codec.pack_body(envelope)]

    def decode() -> None:
        frame = codec.decode(parts, direction)
        assert codec.decode(codec.encode(frame), direction) == frame or "nan" in repr(frame)

    decoded_or_refused(decode)


@given(st.sampled_from(golden.EXAMPLES), st.data())
def test_damaged_frames(frame: frames.Frame, data: st.DataObject) -> None:
    """A good frame with one byte changed, cut off or added."""
    parts = codec.encode(frame)
    packed = bytearray(parts[1])
    position = data.draw(st.integers(0, len(packed) - 1))
    match data.draw(st.sampled_from(["change", "cut", "add"])):
        case "change":
            packed[position] = data.draw(st.integers(0, 255))
        case "cut":
            del packed[position:]
        case _:
            packed.insert(position, data.draw(st.integers(0, 255)))
    for direction in golden.directions(frame):
        decoded_or_refused(lambda way=direction: codec.decode([parts[0], bytes(packed)], way))


def read_lane(frame: bytes) -> None:
    header = codec.decode_lane_header(frame)
    chunks.chunks_from_arrays(codec.decode_lane_arrays(frame, header.count))


@given(st.binary(max_size=200))
def test_any_lane_bytes(frame: bytes) -> None:
    """The lane refuses what it can't read."""
    decoded_or_refused(lambda: read_lane(frame))


@given(st.lists(VALUES | st.lists(VALUES, max_size=6), max_size=6))
def test_any_lane_values(values: list[Any]) -> None:
    """A sound frame around values that may be no chunks."""
    decoded_or_refused(lambda: read_lane(codec.encode_lane(golden.KEY, 0, values)))


@given(st.integers(0, 8), st.lists(VALUES, max_size=5))
def test_any_chunk_fields(kind: int, values: list[Any]) -> None:
    """A chunk kind with fields of any type."""
    decoded_or_refused(lambda: read_lane(codec.encode_lane(golden.KEY, 0, [[kind, *values]])))


@given(st.binary(max_size=200) | VALUES.map(codec.pack_body))
def test_any_body(body: bytes) -> None:
    """A body is a value or refused."""
    decoded_or_refused(lambda: codec.unpack_body(body))


@given(st.sampled_from([b"\x91", b"\x81\xa1a", b"\x81\x91\x01"]), st.integers(0, 3000))
def test_any_depth(nest: bytes, depth: int) -> None:
    """Depth never becomes a recursion error, wherever the value stands."""
    deep = nest * depth + b"\xc0"
    header = codec.encode_lane(golden.KEY, 0, [0])[: codec.HEADER_BYTES]
    decoded_or_refused(lambda: codec.unpack_body(deep))
    decoded_or_refused(lambda: read_lane(header + b"\x91" + deep))
    decoded_or_refused(lambda: read_lane(header + b"\x91\x93\x04\x00" + deep))
    parts = [b"HEARTBEAT", b"\x81\xa4load" + deep]
    decoded_or_refused(lambda: codec.decode(parts, Direction.WORKER_TO_BROKER))


# --- round trips ----------------------------------------------------------------------------

STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    check.version: st.tuples(UINTS, UINTS),
    check.uint: UINTS,
    check.number: st.floats(0, allow_nan=False, allow_infinity=False),
    check.boolean: st.booleans(),
    check.name: NAMES,
    check.label: NAMES,
    check.text: TEXT.map(readable),
    check.place: TEXT,
    check.binary: st.binary(max_size=64),
    check.recovery: st.sampled_from(sorted(check.RECOVERIES)),
    check.role: st.sampled_from(sorted(check.ROLES)),
    check.names: st.lists(NAMES, max_size=3).map(tuple),
    check.mapping: MAPS,
    check.mappings: st.lists(MAPS, max_size=2).map(tuple),
    check.client_id: st.binary(min_size=16, max_size=16),
    check.call_id: st.binary(min_size=16, max_size=16),
    check.stream_key: st.binary(min_size=8, max_size=8),
    check.query_id: st.binary(min_size=16, max_size=16),
    check.lease_id: st.binary(min_size=16, max_size=16),
    check.lease_ids: st.lists(st.binary(min_size=16, max_size=16), max_size=2).map(tuple),
    check.route_name: NAMES,
    check.pool_name: NAMES,
    check.epoch: UINTS,
    check.generation: st.builds(Generation, UINTS, UINTS),
}


def entries(entry: Any) -> st.SearchStrategy[Any]:
    made = [STRATEGIES[check._BY_TYPE[str(item.type)]] for item in fields(entry)]
    return st.lists(st.tuples(*made).map(lambda row: entry(*row)), max_size=3).map(tuple)


def built(frame: Any) -> st.SearchStrategy[Any]:
    values: dict[str, st.SearchStrategy[Any]] = {}
    for item in fields(frame):
        if item.name == "body":
            values["body"] = st.binary(max_size=20)
            continue
        test = codec._check_of(str(item.type))
        known = entries(test._entry) if isinstance(test, check.list_of) else STRATEGIES[test]
        values[item.name] = known | st.none() if item.default is None else known
    return st.builds(frame, **values)


FRAMES = st.one_of([built(frame) for frame in get_args(frames.Frame)])


@given(FRAMES)
def test_frames_survive(frame: frames.Frame) -> None:
    """Encode and decode give the same frame, in each direction it may travel."""
    for direction in golden.directions(frame):
        assert codec.decode(codec.encode(frame), direction) == frame


DELTAS = st.one_of(
    st.builds(chunks.BlockStart, st.integers(0, 99), TEXT),
    st.builds(chunks.TextDelta, st.integers(0, 99), TEXT),
    st.builds(chunks.ReasoningDelta, st.integers(0, 99), TEXT),
    st.builds(chunks.ToolCallDelta, st.integers(0, 99), st.none() | TEXT, TEXT, st.none() | TEXT),
    st.builds(chunks.BlockEnd, st.integers(0, 99), st.none() | TEXT.map(lambda t: {"type": t})),
)


@given(st.integers(0, 2**64 - 1), st.lists(DELTAS, max_size=20), st.binary(min_size=8, max_size=8))
def test_lane_frames_survive(first: int, items: list[chunks.StreamChunk], key: bytes) -> None:
    """Positions, key and chunks come out as they went in."""
    arrays = [chunks.chunk_to_array(chunk) for chunk in items]
    frame = codec.encode_lane(StreamKey(key), first, arrays)
    header = codec.decode_lane_header(frame)
    assert (header.stream_key, header.first, header.count) == (key, first, len(items))
    assert chunks.chunks_from_arrays(codec.decode_lane_arrays(frame, header.count)) == items


@given(st.integers(0, limits.MAX_LANE_CHUNKS * 2))
def test_lane_count_limit(count: int) -> None:
    """A frame holds at most `MAX_LANE_CHUNKS` chunks."""
    frame = codec.encode_lane(golden.KEY, 0, [None] * count)
    try:
        header = codec.decode_lane_header(frame)
    except RemoteProtocolError:
        assert count > limits.MAX_LANE_CHUNKS
    else:
        assert len(codec.decode_lane_arrays(frame, header.count)) == count <= limits.MAX_LANE_CHUNKS
