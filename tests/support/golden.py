"""Examples of every frame, and the golden files under `protocol/trunkline_protocol/vectors/`.

`python -m tests.support.golden` writes the files anew; existing bytes must not change within a
major version of the protocol, so look at the difference before committing it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import trunkline_protocol
from trunkline_protocol import chunks, codec, frames, limits
from trunkline_protocol.codec import Direction
from trunkline_protocol.ids import (
    CallId,
    ClientId,
    Epoch,
    Generation,
    LeaseId,
    PoolName,
    QueryId,
    RouteName,
    StreamKey,
)

VECTORS: Final = Path(trunkline_protocol.__file__).parent / "vectors"

CLIENT: Final = ClientId(bytes(range(0x10, 0x20)))
CALL: Final = CallId(bytes(range(0x20, 0x30)))
OTHER_CALL: Final = CallId(bytes(range(0x30, 0x40)))
KEY: Final = StreamKey(bytes(range(0x40, 0x48)))
QUERY: Final = QueryId(bytes(range(0x50, 0x60)))
LEASE: Final = LeaseId(bytes(range(0x60, 0x70)))
TOKEN: Final = bytes(range(0x70, 0x80))
EPOCH: Final = Epoch(1_796_000_000_000_000_000)
BORN: Final = Generation(EPOCH, 7)
POOL: Final = PoolName("local")
ROUTE: Final = RouteName("anthropic")
FAILURE: Final = {"message": "try later", "code": "RATE_LIMIT", "status": 429}
POLICY: Final = {
    "mode": "normal",
    "maxRetries": 2,
    "retryableCodes": ["TRANSPORT"],
    "initialDelayMs": 500,
    "maxDelayMs": 30_000,
    "jitterRatio": 0.2,
}
BODY: Final = codec.pack_body({"provider": "anthropic", "model": "m", "messages": []})
IMAGE: Final = "sha256:" + bytes(range(0x80, 0xA0)).hex()
TRACEPARENT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

EXAMPLES: Final[tuple[frames.Frame, ...]] = (
    frames.Hello((1, 0), CLIENT, 4242, "agent", ("detach",)),
    frames.Welcome((1, 0), EPOCH, "ipc:///run/lane", "0.1.0", ("detach",), 4096, 30_000),
    frames.Who(EPOCH),
    frames.Refused("OVERLOADED", "64 calls are open", CALL, 1, QUERY, 3),
    frames.Bye("done"),
    frames.Stopping("restart", restart=True),
    frames.Open(
        CALL,
        1,
        KEY,
        ROUTE,
        "m",
        recovery="policy",
        seen=True,
        detachable=True,
        lease=LEASE,
        retry_offer={"retryId": "r1", "retry": 1},
        attachments=(IMAGE,),
        traceparent=TRACEPARENT,
        body=BODY,
    ),
    frames.Accepted(CALL, 1, POOL, 2, BORN, 1024, 1_048_576, POLICY, TOKEN),
    frames.Queued(CALL, 1, "starting"),
    frames.Start(
        CALL,
        1,
        CLIENT,
        KEY,
        ROUTE,
        "m",
        1024,
        1_048_576,
        True,
        TOKEN,
        LEASE,
        (IMAGE,),
        TRACEPARENT,
        4242,
        BODY,
    ),
    frames.Window(CALL, 1, 512, 524_288),
    frames.Credit(CALL, 1, 300, 256, 131_072),
    frames.Resume(CALL, 1, 300),
    frames.Restate(
        (
            frames.Restated(CALL, 1, KEY, ROUTE, 300, 256, 131_072, is_recovered=True),
            frames.Restated(OTHER_CALL, 0, KEY, ROUTE, 0, 0, 0),
        ),
        {"chunks": [512, 1024, 2048]},
    ),
    frames.Sent((frames.Progress(CALL, 1, 301), frames.Progress(OTHER_CALL, 0, 0))),
    frames.Cancel(CALL, 1),
    frames.Ended(
        CALL, 1, 302, {"kind": "stop"}, {"inputTokens": 12, "outputTokens": 300}, {"chunks": 302}
    ),
    frames.Failed(CALL, 1, FAILURE),
    frames.Lost(CALL, 1),
    frames.Done((frames.CallRef(CALL, 1), frames.CallRef(OTHER_CALL, 0))),
    frames.Retry(CALL, 2, "r2", ROUTE, "normal", "k", 1, 612.5, FAILURE, 2),
    frames.RetryStarted(CALL, 2, "r2"),
    frames.Probe(77),
    frames.Attach(CALL, TOKEN, KEY, CLIENT, 1024, 1_048_576),
    frames.Snapshot(CALL, 1, 300, codec.pack_body([{"type": "text", "text": "so far"}])),
    frames.Query(QUERY, "listModels", "anthropic", 5000, CLIENT, 4242, codec.pack_body({})),
    frames.QueryCancel(QUERY),
    frames.Reply(QUERY, FAILURE, codec.pack_body([{"id": "m", "name": "M"}])),
    frames.Event("adapters-updated"),
    frames.Register(
        (1, 0),
        POOL,
        2,
        BORN,
        4243,
        "serving",
        TOKEN,
        ("detach",),
        (
            frames.HeldCall(CALL, 1, CLIENT, KEY, ROUTE, 301, False, TOKEN, is_detached=True),
            frames.HeldCall(OTHER_CALL, 0, CLIENT, KEY, ROUTE, 5, is_ended=True),
        ),
        (LEASE,),
        (frames.HeldAttachment(CALL, IMAGE),),
        (frames.HeldLease(LEASE, CLIENT),),
        (frames.HeldClient(CLIENT, 4242),),
    ),
    frames.Registered(EPOCH, "ipc:///run/workers/lane", BORN, 30_000, ("detach",), "/run/images"),
    frames.Registrations(
        4,
        ({"adapter": 0, "routes": [{"info": {"id": "anthropic", "name": "A"}, "policy": POLICY}]},),
        ({"entries": [{"provider": "anthropic"}]},),
        ("anthropic",),
    ),
    frames.Committed(4),
    frames.Role("draining"),
    frames.Heartbeat(
        (frames.Progress(CALL, 1, 301),), {"inFlight": 1}, (frames.Holding(CALL, 1, True),)
    ),
)
"""One frame of every kind, with every field set."""

CHUNKS: Final[tuple[chunks.StreamChunk, ...]] = (
    chunks.BlockStart(0, "reasoning"),
    chunks.ReasoningDelta(0, "so"),
    chunks.BlockEnd(0, None),
    chunks.BlockStart(1, "text"),
    chunks.TextDelta(1, "grüß"),
    chunks.BlockEnd(1, {"type": "text", "text": "grüß dich"}),
    chunks.ToolCallDelta(2, "call_1", '{"a":', "look"),
    chunks.ToolCallDelta(2, None, "1}"),
    chunks.Usage(chunks.TokenUsage.from_dict({"inputTokens": 12, "outputTokens": 3})),
    chunks.Finish(
        chunks.FinishReason.from_dict({"kind": "tool-calls"}),
        chunks.ReplayEnvelope.from_dict({"response": {"id": "x"}, "blocks": [None, 1, {}]}),
    ),
)
"""One of every kind of chunk, with its optional parts present and absent."""

REFUSAL_CODES: Final = (
    "BAD_FRAME",
    "UNKNOWN_KIND",
    "FRAME_TOO_LARGE",
    "VERSION",
    "BAD_TOKEN",
    "UNKNOWN_POOL",
    "SUPERSEDED",
    "DUPLICATE_ADAPTER",
    "INVALID_ADAPTER",
    "DUPLICATE_DIRECTORY",
    "INVALID_DIRECTORY",
    "DUPLICATE_DISCOVERY",
    "BAD_CREDIT",
    "OVERLOADED",
    "STOPPING",
)
"""SPEC section 8."""


class Undecodable(NamedTuple):
    """Bytes that must be refused; a part may be `(byte, times)`."""

    why: str
    lane: bool
    direction: Direction
    parts: tuple[bytes | tuple[bytes, int], ...]
    code: str


_TO: Final = Direction.CLIENT_TO_BROKER
_DEEP: Final = b"\x81\xa4load" + b"\x81\xa1a" * (limits.MAX_DEPTH + 1) + b"\xc0"

UNDECODABLE: Final = (
    Undecodable("no parts", False, _TO, (), "BAD_FRAME"),
    Undecodable("a kind alone", False, _TO, (b"HELLO",), "BAD_FRAME"),
    Undecodable("four parts", False, _TO, (b"OPEN", b"\x80", b"", b""), "BAD_FRAME"),
    Undecodable("unknown kind", False, _TO, (b"PING", b"\x80"), "UNKNOWN_KIND"),
    Undecodable("kind of another direction", False, _TO, (b"START", b"\x80"), "UNKNOWN_KIND"),
    Undecodable("endless kind", False, _TO, ((b"A", 17), b"\x80"), "UNKNOWN_KIND"),
    Undecodable("no MessagePack", False, _TO, (b"PROBE", b"\xc1"), "BAD_FRAME"),
    Undecodable("cut short", False, _TO, (b"PROBE", b"\x81\xa5nonce"), "BAD_FRAME"),
    Undecodable("two values", False, _TO, (b"PROBE", b"\x80\x80"), "BAD_FRAME"),
    Undecodable("no map", False, _TO, (b"PROBE", b"\x90"), "BAD_FRAME"),
    Undecodable("a field is missing", False, _TO, (b"PROBE", b"\x80"), "BAD_FRAME"),
    Undecodable("nil is missing", False, _TO, (b"PROBE", b"\x81\xa5nonce\xc0"), "BAD_FRAME"),
    Undecodable("negative", False, _TO, (b"PROBE", b"\x81\xa5nonce\xff"), "BAD_FRAME"),
    Undecodable("true is no number", False, _TO, (b"PROBE", b"\x81\xa5nonce\xc3"), "BAD_FRAME"),
    Undecodable("a body where none is", False, _TO, (b"BYE", b"\x80", b""), "BAD_FRAME"),
    Undecodable(
        "large envelope",
        False,
        _TO,
        (b"BYE", (b"\xc0", limits.MAX_ENVELOPE_BYTES + 1)),
        "FRAME_TOO_LARGE",
    ),
    Undecodable("deep map", False, Direction.WORKER_TO_BROKER, (b"HEARTBEAT", _DEEP), "BAD_FRAME"),
    Undecodable("lane: short", True, Direction.BROKER_TO_CLIENT, ((b"\x01", 20),), "BAD_FRAME"),
    Undecodable(
        "lane: unknown kind", True, Direction.BROKER_TO_CLIENT, ((b"\x00", 21),), "UNKNOWN_KIND"
    ),
    Undecodable(
        "lane: count over the limit",
        True,
        Direction.BROKER_TO_CLIENT,
        (b"\x01" + bytes(16) + (limits.MAX_LANE_CHUNKS + 1).to_bytes(4, "big"),),
        "FRAME_TOO_LARGE",
    ),
    Undecodable(
        "lane: count is not the count",
        True,
        Direction.BROKER_TO_CLIENT,
        (codec.encode_lane(KEY, 0, [[0, 0, "text"]])[:20] + b"\x02\x91\x93\x00\x00\xa4text",),
        "BAD_FRAME",
    ),
    Undecodable(
        "lane: no MessagePack",
        True,
        Direction.BROKER_TO_CLIENT,
        (codec.encode_lane(KEY, 0, [[0, 0, "text"]])[:21] + b"\xc1",),
        "BAD_FRAME",
    ),
)


def minimal(frame: frames.Frame) -> frames.Frame:
    """Return the frame with only its required fields."""
    required = {
        item.name: getattr(frame, item.name) for item in fields(frame) if item.default is MISSING
    }
    return type(frame)(**required)


def directions(frame: frames.Frame) -> list[Direction]:
    """Return the directions in which this kind may travel."""
    return [way for way, kinds in codec.DIRECTIONS.items() if frame.KIND in kinds]


def plain(value: object) -> object:
    """Return the JSON form: bytes as `{"$hex": …}`, frames and entries as camelCase maps."""
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[object]", value)]
    if is_dataclass(value) and not isinstance(value, type):
        return {codec._camel(item.name): plain(getattr(value, item.name)) for item in fields(value)}
    return value


def control_vectors() -> Iterator[dict[str, object]]:
    """Yield two golden pairs of every kind: every field set, and only the required ones."""
    for full in EXAMPLES:
        for name, frame in (("full", full), ("minimal", minimal(full))):
            kind = frame.KIND.decode()
            yield {
                "id": f"{kind}/{name}",
                "kind": kind,
                "directions": [way.value for way in directions(frame)],
                "fields": plain(frame),
                "parts": [part.hex() for part in codec.encode(frame)],
            }


def lane_vectors() -> Iterator[dict[str, object]]:
    """Yield a chunk frame of one chunk for each kind, one with all of them, and an echo."""
    groups: list[tuple[str, list[chunks.StreamChunk]]] = [
        (f"chunk/{number}-{type(chunk).__name__}", [chunk]) for number, chunk in enumerate(CHUNKS)
    ]
    for name, group in [*groups, ("chunks/all", list(CHUNKS)), ("chunks/none", [])]:
        arrays = [chunks.chunk_to_array(chunk) for chunk in group]
        yield {
            "id": name,
            "streamKey": KEY.hex(),
            "first": 2**40 + 5,
            "arrays": plain(arrays),
            "frame": codec.encode_lane(KEY, 2**40 + 5, arrays).hex(),
        }
    yield {"id": "echo", "nonce": 77, "frame": codec.encode_probed(77).hex()}


def refusal_vectors() -> Iterator[dict[str, object]]:
    """Yield bytes that must be refused, and the answer for every code of SPEC section 8."""
    for case in UNDECODABLE:
        yield {
            "id": f"undecodable/{case.why}",
            "lane": case.lane,
            "direction": case.direction.value,
            "parts": [
                part.hex() if isinstance(part, bytes) else {"hex": part[0].hex(), "times": part[1]}
                for part in case.parts
            ],
            "code": case.code,
        }
    for code in REFUSAL_CODES:
        frame = frames.Refused(code, "why")
        yield {
            "id": f"answer/{code}",
            "code": code,
            "fields": plain(frame),
            "parts": [part.hex() for part in codec.encode(frame)],
        }


FILES: Final = {
    "control.json": control_vectors,
    "lane.json": lane_vectors,
    "refusals.json": refusal_vectors,
}


def rendered(name: str) -> str:
    """Return the text of one golden file as this code would write it: one vector per line."""
    lines = [json.dumps(vector, ensure_ascii=False) for vector in FILES[name]()]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main() -> None:
    """Write the golden files."""
    VECTORS.mkdir(exist_ok=True)
    for name in FILES:
        (VECTORS / name).write_text(rendered(name), encoding="utf-8")


if __name__ == "__main__":
    main()
