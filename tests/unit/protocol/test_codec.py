"""Bytes ↔ frames: golden vectors, limits, refusals."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import fields
from typing import Any, get_args

import pytest
from trunkline_protocol import chunks, codec, frames, limits
from trunkline_protocol.codec import Direction
from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.ids import RouteName, StreamKey

from tests.support import golden


def committed(name: str) -> list[dict[str, Any]]:
    return json.loads((golden.VECTORS / name).read_text(encoding="utf-8"))


def part_bytes(part: str | dict[str, Any]) -> bytes:
    if isinstance(part, str):
        return bytes.fromhex(part)
    return bytes.fromhex(part["hex"]) * part["times"]


def an_envelope(**fields_: object) -> bytes:
    return codec.pack_body(fields_)


def read(parts: list[bytes], vector: dict[str, Any]) -> None:
    if vector["lane"]:
        codec.decode_lane_arrays(parts[0], codec.decode_lane_header(parts[0]).count)
    else:
        codec.decode(parts, Direction(vector["direction"]))


CONTROL = committed("control.json")
LANE = committed("lane.json")
REFUSALS = committed("refusals.json")
DECODED = [v for v in REFUSALS if v["id"].startswith("undecodable/")]


# --- golden vectors -------------------------------------------------------------------------


@pytest.mark.parametrize("name", golden.FILES)
def test_committed_vectors_are_what_the_code_writes(name: str) -> None:
    """Bytes of a released version never change; `python -m tests.support.golden` adds new ones."""
    assert (golden.VECTORS / name).read_text(encoding="utf-8") == golden.rendered(name)


def test_every_kind_has_its_vectors() -> None:
    """A frame kind without a vector does not exist."""
    kinds = {frame.KIND.decode() for frame in get_args(frames.Frame)}
    for form in ("full", "minimal"):
        assert {v["kind"] for v in CONTROL if v["id"].endswith(form)} == kinds
    full = {v["kind"]: v["fields"] for v in CONTROL if v["id"].endswith("/full")}
    for frame in get_args(frames.Frame):
        assert len(full[frame.KIND.decode()]) == len(fields(frame))


def test_every_full_vector_sets_every_field() -> None:
    """A field that always has its default in the vectors is not pinned by them."""
    for frame in golden.EXAMPLES:
        for item in fields(frame):
            assert getattr(frame, item.name) != item.default, (frame.KIND, item.name)


def test_every_lane_kind_has_its_vector() -> None:
    """Each chunk kind and the echo are pinned."""
    names = "".join(v["id"] for v in LANE)
    for chunk in get_args(chunks.StreamChunk):
        assert chunk.__name__ in names
    assert "echo" in names


def test_every_refusal_of_the_spec_has_its_vector() -> None:
    """SPEC section 8 names the codes."""
    spec = (golden.VECTORS.parent / "SPEC.md").read_text(encoding="utf-8")
    section = spec.split("## 8. Refusals")[1].split("## 9.")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {code.strip(" `") for row in rows for code in row.split(",")}
    assert {v["code"] for v in REFUSALS if v["id"].startswith("answer/")} == named


@pytest.mark.parametrize("vector", CONTROL, ids=lambda v: v["id"])
def test_control_vector_decodes(vector: dict[str, Any]) -> None:
    """Golden bytes give the golden fields in every direction the kind may travel."""
    parts = [bytes.fromhex(part) for part in vector["parts"]]
    assert vector["directions"]
    for direction in map(Direction, vector["directions"]):
        frame = codec.decode(parts, direction)
        assert golden.plain(frame) == vector["fields"]
        assert codec.encode(frame) == parts


@pytest.mark.parametrize("vector", LANE, ids=lambda v: v["id"])
def test_lane_vector_decodes(vector: dict[str, Any]) -> None:
    """Golden bytes of the lane give the golden header and chunks."""
    frame = bytes.fromhex(vector["frame"])
    header = codec.decode_lane_header(frame)
    if vector["id"] == "echo":
        assert (header.kind, header.first, header.count) == (codec.PROBED, vector["nonce"], 0)
        assert len(frame) == codec.HEADER_BYTES
        return
    assert header.kind == codec.CHUNKS
    assert (header.stream_key.hex(), header.first) == (vector["streamKey"], vector["first"])
    decoded = chunks.chunks_from_arrays(codec.decode_lane_arrays(frame, header.count))
    arrays = [chunks.chunk_to_array(chunk) for chunk in decoded]
    assert golden.plain(arrays) == vector["arrays"]


@pytest.mark.parametrize("vector", DECODED, ids=lambda v: v["id"])
def test_undecodable_vector_is_refused(vector: dict[str, Any]) -> None:
    """Each golden piece of bad input has its code."""
    parts = [part_bytes(part) for part in vector["parts"]]
    with pytest.raises(RemoteProtocolError) as caught:
        read(parts, vector)
    assert caught.value.code == vector["code"]


# --- tolerance ------------------------------------------------------------------------------


def test_unknown_keys_are_ignored() -> None:
    """A later minor version may append fields."""
    parts = [b"PROBE", an_envelope(nonce=3, later={"x": 1})]
    assert codec.decode(parts, Direction.CLIENT_TO_BROKER) == frames.Probe(3)


def test_longer_entries_are_cut() -> None:
    """A later minor version may append to the entries of a list."""
    parts = [b"DONE", an_envelope(calls=[[golden.CALL, 1, "later"]])]
    expected = frames.Done((frames.CallRef(golden.CALL, 1),))
    assert codec.decode(parts, Direction.CLIENT_TO_BROKER) == expected


def test_nil_means_the_default() -> None:
    """Nil and a missing key are the same."""
    parts = [b"BYE", an_envelope(reason=None)]
    assert codec.decode(parts, Direction.CLIENT_TO_BROKER) == frames.Bye()


def test_a_missing_body_is_an_empty_one() -> None:
    """A kind with a body may come in two parts."""
    query = frames.Query(golden.QUERY, "status")
    assert codec.decode(codec.encode(query)[:2], Direction.CLIENT_TO_BROKER) == query


def test_an_entry_of_the_list_limit_passes_and_one_more_does_not() -> None:
    """`MAX_LIST_ENTRIES` calls fit into one frame."""
    entry = frames.CallRef(golden.CALL, 0)
    full = frames.Done((entry,) * limits.MAX_LIST_ENTRIES)
    assert codec.decode(codec.encode(full), Direction.CLIENT_TO_BROKER) == full
    over = codec.encode(frames.Done((entry,) * (limits.MAX_LIST_ENTRIES + 1)))
    with pytest.raises(RemoteProtocolError, match="DONE: calls must be a list of at most"):
        codec.decode(over, Direction.CLIENT_TO_BROKER)


# --- limits ---------------------------------------------------------------------------------


def test_a_large_body_passes_and_a_larger_one_is_refused() -> None:
    """The limit of a body is checked without looking into it."""
    query = codec.encode(frames.Query(golden.QUERY, "x", body=bytes(limits.MAX_BODY_BYTES)))
    assert codec.decode(query, Direction.CLIENT_TO_BROKER)
    query[2] += b"\0"
    with pytest.raises(RemoteProtocolError, match="body too large") as caught:
        codec.decode(query, Direction.CLIENT_TO_BROKER)
    assert caught.value.code == codec.FRAME_TOO_LARGE


def test_a_lane_frame_over_the_limit_is_refused() -> None:
    """Nothing of it is decoded."""
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode_lane_arrays(bytes(limits.MAX_LANE_BODY_BYTES + 1), 0)
    assert caught.value.code == codec.FRAME_TOO_LARGE


def test_a_lane_body_that_is_no_array_is_refused() -> None:
    """The body is one array."""
    with pytest.raises(RemoteProtocolError, match="count does not match"):
        codec.decode_lane_arrays(bytes(codec.HEADER_BYTES) + b"\x80", 0)


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1a"])
def test_deep_bodies_are_refused(nest: bytes) -> None:
    """A body that a recursive reader could not walk never gets in."""
    assert codec.unpack_body(nest * limits.MAX_BODY_DEPTH + b"\xc0") is not None
    for depth in (limits.MAX_BODY_DEPTH + 1, 1000, 100_000):
        with pytest.raises(RemoteProtocolError) as caught:
            codec.unpack_body(nest * depth + b"\xc0")
        assert caught.value.code == codec.BAD_FRAME


def test_bodies() -> None:
    """An empty body is no value; bad and large ones are refused."""
    assert codec.unpack_body(b"") is None
    assert codec.unpack_body(codec.pack_body({"a": [1, "x", b"y"]})) == {"a": [1, "x", b"y"]}
    for bad, code in (
        (b"\xc1", "BAD_FRAME"),
        (bytes(limits.MAX_BODY_BYTES + 1), "FRAME_TOO_LARGE"),
    ):
        with pytest.raises(RemoteProtocolError) as caught:
            codec.unpack_body(bad)
        assert caught.value.code == code


def test_claimed_lengths_cost_no_memory() -> None:
    """Array headers may promise 2^19 entries each; only what really came is allocated."""
    claim = b"\xdd" + (2**19 - 2500).to_bytes(4, "big")
    parts = [b"BYE", claim * 400 + b"\xc0" * (2**19 - 2500)]
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            codec.decode(parts, Direction.CLIENT_TO_BROKER)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 * 1024 * 1024


def test_text_of_a_refusal_never_repeats_the_input() -> None:
    """A peer's bytes may be a secret."""
    parts = [b"HELLO", an_envelope(protocol=[1, 0], client=b"sk-secret", pid=1)]
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(parts, Direction.CLIENT_TO_BROKER)
    assert str(caught.value) == "HELLO: client must be exactly 16 bytes"


def test_parts_may_be_views() -> None:
    """Sockets hand out memory views when they do not copy."""
    parts = [memoryview(part) for part in codec.encode(frames.Probe(3))]
    assert codec.decode(parts, Direction.CLIENT_TO_BROKER) == frames.Probe(3)  # type: ignore[arg-type]


def test_lone_surrogates_pass_lane_and_envelopes_unchanged() -> None:
    """JSON allows a lone surrogate, so a provider may send one; it must not end the stream."""
    text = "a\ud800b"
    frame = codec.encode_lane(StreamKey(b"k" * 8), 0, [(1, 0, text)])
    assert codec.decode_lane_arrays(frame, 1) == ((1, 0, text),)
    assert codec.unpack_body(codec.pack_body({"text": text})) == {"text": text}


def test_the_first_frame_of_a_stream_is_known_by_its_head() -> None:
    key = StreamKey(b"k" * 8)
    assert codec.begins_stream(codec.encode_lane(key, 0, [(1, 0, "a")]))
    assert not codec.begins_stream(codec.encode_lane(key, 7, [(1, 0, "a")]))
    assert not codec.begins_stream(b"")


def test_a_worker_that_holds_all_it_may_can_still_say_so() -> None:
    """Every list of `REGISTER` full, with the longest name of a route; another kind may not."""
    route = RouteName("r" * limits.MAX_NAME_BYTES)
    count = range(limits.MAX_LIST_ENTRIES)
    calls = tuple(frames.HeldCall(golden.CALL, 0, golden.CLIENT, golden.KEY, route, 2**40, True)
                  for _ in count)  # fmt: skip
    full = frames.Register(
        (1, 0),
        golden.POOL,
        0,
        golden.BORN,
        1,
        "serving",
        calls=calls,
        leases=(golden.LEASE,) * len(count),
        attachments=(frames.HeldAttachment(golden.CALL, golden.IMAGE),) * len(count),
        lease_holders=(frames.HeldLease(golden.LEASE, golden.CLIENT),) * len(count),
    )
    parts = codec.encode(full)
    assert limits.MAX_ENVELOPE_BYTES < len(parts[1]) < limits.MAX_REGISTER_BYTES
    assert codec.decode(parts, Direction.WORKER_TO_BROKER) == full
    info, policy = {"id": route, "name": route}, golden.POLICY
    routes = [{"info": info, "policy": policy}] * (limits.MAX_LIST_ENTRIES // 2)
    serving = frames.Registrations(1, ({"adapter": 0, "since": 1, "routes": routes},))
    parts = codec.encode(serving)
    assert limits.MAX_ENVELOPE_BYTES < len(parts[1]) < limits.MAX_REGISTER_BYTES
    codec.decode(parts, Direction.WORKER_TO_BROKER)
    for kind, size in ((b"BYE", len(parts[1])), (b"REGISTER", limits.MAX_REGISTER_BYTES + 1)):
        with pytest.raises(RemoteProtocolError, match="too large"):
            codec.decode([kind, bytes(size)], Direction.WORKER_TO_BROKER)


@pytest.mark.parametrize("request_number", [9, -1, "x", 2**63, None])
def test_what_cannot_be_decoded_names_its_request_where_it_can_be_read(
    request_number: object,
) -> None:
    """A worker that waits for the answer to its registrations waits no longer."""
    envelope = {"request": request_number, "adapters": [], "discovery": [5]}
    parts = [frames.Registrations.KIND, codec.pack_body(envelope)]
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(parts, Direction.WORKER_TO_BROKER)
    assert caught.value.about == ({"request": 9} if request_number == 9 else {})
