"""The client core and the worker core back to back: nothing lost, doubled, reordered or left over.

The second half proves the guards: each rule, switched off, must break some of the same seeds.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trunkline.core.effects import NOTHING, Effects
from trunkline.core.mux import Mux
from trunkline.core.requests import CallRequest
from trunkline.core.stream_state import StreamState
from trunkline_protocol.chunks import chunks_from_arrays
from trunkline_protocol.codec import LaneHeader, decode_lane_arrays
from trunkline_protocol.frames import Start
from trunkline_protocol.ids import CallId
from trunkline_workers.core.calls import WorkerCalls
from trunkline_workers.core.effects import Begin, CallEffect

from tests.support.lane_world import a_weather, played

_SEEDS = range(60)


@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_every_call_is_seen_once_in_order_and_whole(seed: int) -> None:
    """Whatever the links and the broker do, every stream ends once with all of its chunks."""
    assert played(seed) == []


@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_without_broker_deaths_too(seed: int) -> None:
    """The same on links that lose, double and reorder, under one broker."""
    assert played(seed, deaths=0) == []


class _UnslicedStream(StreamState):
    """Takes every frame as if it came at the right place (rule 3 off)."""

    def on_chunks(self, header: LaneHeader, frame: bytes, now_s: float) -> Effects:
        if header.first + header.count <= self.intake.expected:
            chunks = chunks_from_arrays(decode_lane_arrays(frame, header.count))
            self.intake.add(chunks, 0, 0, now_s)
            return [*self.woken]
        return super().on_chunks(header, frame, now_s)


class _SilentStream(StreamState):
    """Never restates what is quiet (rule 5 off)."""

    def is_quiet(self, now_s: float) -> bool:
        return False


class _DeafStream(StreamState):
    """Never asks for what is lacking (rules 3 and 5 off)."""

    def _resume(self, now_s: float) -> Effects:
        self.intake.note_resumed(now_s)
        return NOTHING


def _mux_of(stream_type: type[StreamState]) -> type[Mux]:
    class _Mux(Mux):
        def _new_stream(self, call: CallId, request: CallRequest, now_s: float) -> StreamState:
            return stream_type(call, request, self._drawn.stream_key(), now_s)

    return _Mux


class _ForgetfulWorker(WorkerCalls):
    """Starts the adapter for every `START` (rule 7 off)."""

    def on_start(self, start: Start, now_s: float) -> list[CallEffect]:
        effects = super().on_start(start, now_s)
        return effects if any(isinstance(one, Begin) for one in effects) else [Begin(start)]


@pytest.mark.parametrize("stream_type", [_UnslicedStream, _SilentStream, _DeafStream])
def test_a_rule_of_the_client_switched_off_is_noticed(stream_type: type[StreamState]) -> None:
    """Slicing, restating and resuming are each needed by some seed, and the oracle sees it."""
    assert any(played(seed, _mux_of(stream_type)) for seed in _SEEDS)


def test_a_second_start_is_noticed() -> None:
    """Without the idempotent start some seed runs an adapter twice."""
    assert any(played(seed, calls_type=_ForgetfulWorker) for seed in _SEEDS)


def test_the_seeds_cover_bad_weather() -> None:
    """Among the seeds are losses, doubles and broker deaths, so the oracle has something to see."""
    weathers = [a_weather(Random(seed)) for seed in _SEEDS]  # noqa: S311  no secret
    assert any(one.loss == 0.2 for one in weathers)
    assert any(one.double > 0 for one in weathers)
    assert any(one.broker_deaths for one in weathers)
