"""Streams, frames and phases for the tests of the client's core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trunkline.core.effects import Effects, Send
from trunkline.core.phase import Phase
from trunkline.core.requests import CallRequest
from trunkline.core.stream_state import StreamState
from trunkline_protocol import frames
from trunkline_protocol.chunks import Finish, FinishReason, StreamChunk, TextDelta
from trunkline_protocol.codec import decode_lane_header, encode_lane
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.ids import CallId, Epoch, Generation, PoolName, RouteName, StreamKey

CALL = CallId(b"c" * 16)
KEY = StreamKey(b"k" * 8)
NEXT_KEY = StreamKey(b"n" * 8)
ROUTE = RouteName("r")
SERVER = LlmFailure("busy", "SERVER")
STOP = Finish(FinishReason("stop"))
ERROR = Finish(FinishReason("error", SERVER))


def a_request(recovery: str = "none", *, replayable: bool = False) -> CallRequest:
    return CallRequest(ROUTE, "m", b"body", recovery=recovery, is_replayable=replayable)


def a_stream(
    recovery: str = "none", *, replayable: bool = False, now_s: float = 0.0
) -> StreamState:
    stream = StreamState(CALL, a_request(recovery, replayable=replayable), KEY, now_s)
    stream.was_sent = True
    return stream


def accepted(attempt: int = 0, chunks: int = 8, size: int = 65536) -> frames.Accepted:
    generation = Generation(Epoch(1), 1)
    return frames.Accepted(
        CALL, attempt, PoolName("p"), 0, generation, chunks, size, {"mode": "always"}
    )


def ended(last: int, finish: Finish = STOP, attempt: int = 0) -> frames.Ended:
    return frames.Ended(CALL, attempt, last, finish.reason.to_dict())


def retry(
    attempt: int = 1,
    delay_ms: float = 100.0,
    retry_id: str = "retry-1",
    failure: LlmFailure = SERVER,
) -> frames.Retry:
    return frames.Retry(
        CALL, attempt, retry_id, ROUTE, "normal", "key", 1, delay_ms, failure.to_dict(), 3
    )


def retry_started(attempt: int = 1, retry_id: str = "retry-1") -> frames.RetryStarted:
    return frames.RetryStarted(CALL, attempt, retry_id)


def texts(first: int, count: int) -> list[StreamChunk]:
    return [TextDelta(0, f"<{at}>") for at in range(first, first + count)]


def lane(first: int, chunks: Sequence[StreamChunk], key: StreamKey = KEY) -> bytes:
    return encode_lane(key, first, [chunk.to_array() for chunk in chunks])


def give(
    stream: StreamState, first: int, chunks: Sequence[StreamChunk], now_s: float = 0.0
) -> Effects:
    """Hand a stream a lane frame."""
    frame = lane(first, chunks, stream.stream_key)
    return stream.on_chunks(decode_lane_header(frame), frame, now_s)


def taken(stream: StreamState, now_s: float = 0.0) -> list[StreamChunk]:
    """Take everything that waits."""
    out: list[StreamChunk] = []
    while chunks := stream.take(now_s)[0]:
        out.extend(chunks)
    return out


def sent(effects: Effects) -> list[Any]:
    """Return the frames among effects."""
    return [effect.frame for effect in effects if isinstance(effect, Send)]


def kinds(effects: Effects) -> list[type]:
    """Return what effects are, frames by their own type."""
    return [type(effect.frame) if isinstance(effect, Send) else type(effect) for effect in effects]


def in_phase(phase: Phase, recovery: str = "none", *, seen: bool = False) -> StreamState:
    """Return a stream in a phase; `seen`: the application has taken a chunk."""
    stream = a_stream("policy" if phase in {Phase.HELD, Phase.BACKOFF} else recovery)
    if phase is not Phase.OPENING:
        stream.on_accepted(accepted(), 0.0)
    if seen:
        give(stream, 0, texts(0, 1))
        stream.take(0.0)
    at = stream.intake.expected
    match phase:
        case Phase.TAIL:
            stream.on_ended(ended(at + 3), 0.0)
        case Phase.HELD:
            give(stream, at, [ERROR])
        case Phase.BACKOFF:
            stream.on_retry(retry(), NEXT_KEY, 0.0)
        case Phase.CANCELLING:
            stream.cancel(0.0)
        case Phase.CLOSED:
            give(stream, at, [STOP])
        case _:
            pass
    assert stream.phase is phase
    return stream
