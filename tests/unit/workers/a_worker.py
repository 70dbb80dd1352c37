"""Factories and shorthand for tests of the worker's cores."""

from __future__ import annotations

from typing import Any

from trunkline_protocol.chunks import (
    Finish,
    FinishReason,
    StreamChunk,
    TextDelta,
    chunks_from_arrays,
)
from trunkline_protocol.codec import decode_lane_arrays, decode_lane_header
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.frames import CallRef, Cancel, Credit, Done, Resume, Start
from trunkline_protocol.ids import CallId, ClientId, RouteName, StreamKey
from trunkline_workers.core.effects import SendControl, SendLane

CALL = CallId(b"k" * 16)
CLIENT = ClientId(b"c" * 16)
KEY = StreamKey(b"s" * 8)
ME = (CALL, 0)


def a_start(
    *,
    call: CallId = CALL,
    attempt: int = 0,
    client: ClientId = CLIENT,
    window_chunks: int = 4,
    window_bytes: int = 1024 * 1024,
) -> Start:
    """Return a `START`."""
    return Start(
        call, attempt, client, KEY, RouteName("route"), "model", window_chunks, window_bytes
    )


def a_credit(received: int, consumed: int, consumed_bytes: int, attempt: int = 0) -> Credit:
    """Return a `CREDIT` of the one call."""
    return Credit(CALL, attempt, received, consumed, consumed_bytes)


def a_resume(expected: int) -> Resume:
    """Return a `RESUME` of the one call."""
    return Resume(CALL, 0, expected)


def a_cancel(call: CallId = CALL) -> Cancel:
    """Return a `CANCEL`."""
    return Cancel(call, 0)


def a_done(call: CallId = CALL) -> Done:
    """Return a `DONE`."""
    return Done((CallRef(call, 0),))


def texts(*pieces: str) -> list[tuple[object, ...]]:
    """Return text deltas as lane arrays."""
    return [TextDelta(0, piece).to_array() for piece in pieces]


STOP = Finish(FinishReason("stop"))


def a_failure(code: str) -> Finish:
    """Return a finish `error` with a code."""
    return Finish(FinishReason("error", LlmFailure("failed", code)))


def lane(effects: list[Any]) -> list[tuple[int, list[StreamChunk]]]:
    """Return the lane frames among effects as (first, chunks)."""
    frames = [effect.frame for effect in effects if isinstance(effect, SendLane)]
    out: list[tuple[int, list[StreamChunk]]] = []
    for frame in frames:
        header = decode_lane_header(frame)
        arrays = decode_lane_arrays(frame, header.count)
        out.append((header.first, chunks_from_arrays(arrays)))
    return out


def control(effects: list[Any]) -> list[Any]:
    """Return the control frames among effects."""
    return [effect.frame for effect in effects if isinstance(effect, SendControl)]


def kinds(effects: list[Any]) -> list[str]:
    """Return the names of the effects' classes in order."""
    return [type(effect).__name__ for effect in effects]
