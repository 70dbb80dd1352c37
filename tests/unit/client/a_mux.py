"""A client's core as the tests have it: connected, with calls, and moved through time."""

from __future__ import annotations

from typing import Any

from trunkline.core.effects import Effects
from trunkline.core.mux import Mux
from trunkline.core.requests import CallRequest
from trunkline.core.stream_state import StreamState
from trunkline_protocol import frames
from trunkline_protocol.chunks import Finish
from trunkline_protocol.codec import encode_probed
from trunkline_protocol.ids import ClientId, Epoch, Generation, PoolName

from tests.unit.client.a_stream import STOP, a_request, lane, sent, texts

LANE = "ipc:///lane"


def a_mux(*, up: bool = True) -> Mux:
    mux = Mux(ClientId(b"c" * 16), 7, "me", b"s" * 32, 0.0)
    if up:
        come_up(mux)
    return mux


def welcome(epoch: int = 1, orphan_ms: int = 0) -> frames.Welcome:
    return frames.Welcome((1, 0), Epoch(epoch), LANE, orphan_timeout_ms=orphan_ms)


def come_up(mux: Mux, epoch: int = 1, now_s: float = 0.0) -> Effects:
    """Connect, greet, prove; return what is said once the lane is proven."""
    mux.on_connected(now_s)
    probe = sent(mux.on_control(welcome(epoch), now_s))[0]
    return mux.on_lane(encode_probed(probe.nonce), now_s)


def opened(mux: Mux, request: CallRequest | None = None, now_s: float = 0.0) -> StreamState:
    stream, _ = mux.open(mux.new_call_id(), request or a_request(), now_s)
    return stream


def accept(mux: Mux, stream: StreamState, now_s: float = 0.0, window: int = 8) -> Effects:
    frame = frames.Accepted(
        stream.call,
        stream.attempt,
        PoolName("p"),
        0,
        Generation(Epoch(1), 1),
        window,
        65536,
        {"mode": "always"},
    )
    return mux.on_control(frame, now_s)


def running(mux: Mux, request: CallRequest | None = None, now_s: float = 0.0) -> StreamState:
    stream = opened(mux, request, now_s)
    accept(mux, stream, now_s)
    return stream


def give(mux: Mux, stream: StreamState, first: int, count: int, now_s: float = 0.0) -> Effects:
    return mux.on_lane(lane(first, texts(first, count), stream.stream_key), now_s)


def end(mux: Mux, stream: StreamState, finish: Finish = STOP, now_s: float = 0.0) -> Effects:
    return mux.on_lane(lane(stream.intake.expected, [finish], stream.stream_key), now_s)


def ticked(mux: Mux, until_s: float) -> list[Any]:
    """Let time pass; return the frames that were sent meanwhile."""
    out: list[Any] = []
    while (at_s := mux.next_deadline_s()) <= until_s:
        out.extend(sent(mux.on_tick(at_s)))
    return out


def types(said: list[Any]) -> list[type]:
    return [type(frame) for frame in said]
