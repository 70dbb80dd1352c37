"""The report of unbounded adapter output fits, and the other side decodes it."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    FinishReason,
    ReplayEnvelope,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    Usage,
    chunks_from_arrays,
)
from trunkline_protocol.codec import (
    Direction,
    decode,
    decode_lane_arrays,
    decode_lane_header,
    encode_lane,
)
from trunkline_protocol.failure import LlmError, LlmFailure
from trunkline_protocol.frames import Ended, Heartbeat, Reply, Start
from trunkline_protocol.ids import CallId, ClientId, QueryId, RouteName, StreamKey
from trunkline_protocol.redact import Redactor
from trunkline_workers.boundary import StreamGuard
from trunkline_workers.core.calls import WorkerCalls
from trunkline_workers.core.effects import SendControl, SendLane
from trunkline_workers.core.fitting import fitted

CODE = re.compile(r"[A-Z0-9_]{1,64}")
KEY = StreamKey(b"k" * 8)
START = Start(CallId(b"c" * 16), 0, ClientId(b"i" * 16), KEY, RouteName("r"), "m", 1024, 1 << 30)

characters = st.characters(codec=None)  # half a surrogate pair included
lengths = st.sampled_from([0, 1, 64, 65, 200, 4096, 70_000, 600_000])
texts = st.builds(lambda part, size: (part * (size // max(1, len(part)) + 1))[:size],
                  st.text(characters, min_size=1, max_size=8), lengths)  # fmt: skip
numbers = st.one_of(st.integers(), st.sampled_from([2**63, 2**64, -(2**70), 10**400]))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.floats(), texts, st.just({1}), st.just(object)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
    ),
    max_leaves=6,
)
failures = st.builds(
    LlmFailure, texts, texts, request_id=st.one_of(st.none(), texts.filter(lambda text: text != ""))
)
counts = st.builds(
    TokenUsage, st.integers(min_value=0), st.one_of(st.just(2**80), st.integers(min_value=0))
)
kinds = st.one_of(st.sampled_from(["stop", "error", "aborted"]), texts)
extras = st.dictionaries(
    st.text(max_size=5).filter(lambda key: key not in {"kind", "failure"}), values, max_size=2
)
reasons = st.builds(FinishReason, kinds, failures, extras)
finishes = st.builds(Finish, reasons, st.one_of(st.none(), st.builds(ReplayEnvelope, values)))
chunks = st.one_of(
    st.builds(TextDelta, st.integers(), texts),
    st.builds(BlockStart, st.integers(0, 2), texts),
    st.builds(ToolCallDelta, st.integers(0, 2), texts, texts),
    st.builds(BlockEnd, st.integers(0, 2), st.dictionaries(st.just("type"), values)),
    st.builds(Usage, counts),
    finishes,
    values,
)


def read(frames: list[bytes]) -> list[Any]:
    """Decode lane frames as a client does."""
    seen: list[Any] = []
    for frame in frames:
        header = decode_lane_header(frame)
        assert header.first == len(seen)
        seen += chunks_from_arrays(decode_lane_arrays(frame, header.count))
    return seen


@given(st.lists(chunks, max_size=4), st.one_of(st.none(), failures))
def test_every_end_of_a_stream_fits_and_is_decoded(items: list[Any], raised: Any) -> None:
    guard = StreamGuard(Redactor(["a-secret-of-ours"]))
    if not any(guard.take(item) for item in items) and raised is not None:
        guard.fail(LlmError(raised))
    finish = guard.end()
    calls = WorkerCalls()
    calls.on_start(START, 0.0)
    usage = None if guard.usage is None else guard.usage.to_dict()
    effects = calls.on_finish(START.call, 0, finish, usage, 1.0, guard.arrays)
    seen = read([effect.frame for effect in effects if isinstance(effect, SendLane)])
    assert isinstance(seen[-1], Finish)
    ended = [effect.frame for effect in effects if isinstance(effect, SendControl)]
    assert len(ended) == 1
    parts, is_short = fitted(ended[0])
    assert parts is not None
    assert not is_short, "bounds where texts are made keep every report small"
    report = decode(parts, Direction.WORKER_TO_BROKER)
    assert isinstance(report, Ended)
    failure = report.finish.get("failure")
    assert len(report.finish["kind"]) <= 64
    assert failure is None or CODE.fullmatch(failure["code"])
    assert failure is None or len(failure["message"]) <= 4096


@given(values, texts)
def test_a_frame_that_does_not_fit_is_replaced_by_a_short_one(value: Any, text: str) -> None:
    finish = {"kind": text, "failure": {"message": text * 2, "code": text}, "x": value}
    for frame in (
        Ended(START.call, 0, 5, finish, {"n": value}, {"y": value}),
        Reply(QueryId(b"q" * 16), {"message": text, "code": value}),
        Heartbeat((), {"load": value, "text": text * 3}),
    ):
        parts, is_short = fitted(frame)
        assert parts is not None
        if is_short:
            assert type(decode(parts, Direction.WORKER_TO_BROKER)) is type(frame)


def test_chunks_of_any_text_are_read_as_they_were_written() -> None:
    arrays = [TextDelta(0, "half \ud800").to_array()]
    assert read([encode_lane(KEY, 0, arrays)]) == [TextDelta(0, "half \ud800")]
