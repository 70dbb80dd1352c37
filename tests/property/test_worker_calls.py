"""The worker's calls against a naive model: a list of what the adapter said, a reader that loses.

The reader sees only some of the frames, in any order and any number of times, and behaves as a
client does: it takes what continues its stream, gives credit for whole frames, resumes, cancels.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from trunkline_protocol.chunks import Finish, FinishReason, TextDelta, chunks_from_arrays
from trunkline_protocol.codec import decode_lane_arrays, decode_lane_header
from trunkline_protocol.frames import (
    CallRef,
    Cancel,
    Credit,
    Done,
    Ended,
    Resume,
    Start,
    Window,
)
from trunkline_protocol.ids import CallId, ClientId, RouteName, StreamKey
from trunkline_protocol.limits import MIN_FRAME_COST_BYTES
from trunkline_workers.core.calls import WorkerCalls
from trunkline_workers.core.effects import Begin, Pull, SendControl, SendLane, Stop

CALL = CallId(b"k" * 16)
_SIZES = st.one_of(st.just(0), st.integers(0, 700), st.just(70_000))
STOP = Finish(FinishReason("stop"))


class WorkerCallsMachine(RuleBasedStateMachine):
    """One attempt at a time; a new attempt when the old one is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = WorkerCalls()
        self.now_s = 0.0
        self.attempt = -1
        self._begin_model()
        self.is_over = True  # the first rule is a start

    def _begin_model(self) -> None:
        self.said: list[Any] = []  # by the adapter, the truth
        self.frames: list[bytes] = []  # on the link
        self.got: list[Any] = []  # by the reader, in order
        self.consumed = self.consumed_bytes = 0
        self.window = (8, 4096)
        self.sent = self.sent_bytes = self.highest_consumed = 0
        self.begins = 0
        self.is_finished = self.is_stopped = self.is_over = False
        self.is_waiting = False  # as the puller does, once it finds no room
        self.is_woken = False  # and what it has been told since
        self.ended: list[Ended] = []

    # --- effects -----------------------------------------------------------------------------

    def perform(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case SendLane():
                    self.on_lane(effect.frame)
                case SendControl():
                    assert isinstance(effect.frame, Ended)
                    self.ended.append(effect.frame)
                case Begin():
                    self.begins += 1
                case Stop():
                    self.is_stopped = True  # also behind a finish that still waits: harmless
                case Pull():
                    assert not self.is_finished
                    assert not self.is_stopped
                    self.is_woken = True
                case _:
                    pass

    def on_lane(self, frame: bytes) -> None:
        header = decode_lane_header(frame)
        chunks = chunks_from_arrays(decode_lane_arrays(frame, header.count))
        assert chunks == self.said[header.first : header.first + header.count]
        assert chunks
        end = header.first + header.count
        if end > self.sent:  # new: within the credit, and only the next one
            assert header.first == self.sent
            assert self.sent < self.consumed + self.window[0]
            assert end <= self.consumed + self.window[0]
            assert self.sent_bytes < self.consumed_bytes + self.window[1]
            self.sent = end
            self.sent_bytes += max(MIN_FRAME_COST_BYTES, len(frame))
        self.frames.append(frame)

    # --- rules -------------------------------------------------------------------------------

    @precondition(lambda self: self.is_over)
    @rule(chunks=st.integers(1, 12), size=st.sampled_from([512, 4096, 100_000]))
    def start(self, chunks: int, size: int) -> None:
        self.attempt += 1
        self._begin_model()
        self.window = (chunks, size)
        self._start()
        assert self.begins == 1

    def _start(self) -> None:
        client, key = ClientId(b"c" * 16), StreamKey(b"s" * 8)
        start = Start(CALL, self.attempt, client, key, RouteName("r"), "m", *self.window)
        self.perform(self.calls.on_start(start, self.now_s))

    @precondition(lambda self: self.attempt >= 0)
    @rule()
    def start_again(self) -> None:
        before = len(self.ended)
        is_ended = bool(self.ended)
        self._start()
        assert self.begins == 1
        assert len(self.ended) == before + is_ended  # an ended one says so again

    @precondition(lambda self: self._may_say())
    @rule(sizes=st.lists(_SIZES, min_size=1, max_size=20))
    def say(self, sizes: list[int]) -> None:
        chunks = [TextDelta(0, f"{len(self.said) + i} " + "x" * n) for i, n in enumerate(sizes)]
        self.said += chunks
        arrays = [chunk.to_array() for chunk in chunks]
        self.perform(self.calls.on_chunks(CALL, self.attempt, arrays, self.now_s))
        self.is_waiting = not self.calls.ask_room(CALL, self.attempt)

    @precondition(lambda self: self.is_woken)
    @rule()
    def wake(self) -> None:
        """The puller wakes, at any time after it was told, and asks again."""
        self.is_woken = False
        self.is_waiting = not self.calls.ask_room(CALL, self.attempt)

    @precondition(lambda self: self._may_say())
    @rule(count=st.integers(0, 3))
    def finish(self, count: int) -> None:
        last = [TextDelta(0, f"last {number}") for number in range(count)]
        self.said += [*last, STOP]
        self.is_finished = True
        arrays = [chunk.to_array() for chunk in last]
        self.perform(self.calls.on_finish(CALL, self.attempt, STOP, None, self.now_s, arrays))

    def _may_say(self) -> bool:
        return not (self.is_over or self.is_finished or self.is_stopped or self.is_waiting)

    @precondition(lambda self: self.frames and not self.is_over)
    @rule(which=st.integers(0, 1_000_000), is_kept=st.booleans())
    def deliver(self, which: int, is_kept: bool) -> None:
        """Any frame of the link arrives; it may arrive again."""
        frame = self.frames[which % len(self.frames)]
        if not is_kept:
            self.frames.remove(frame)
        self._take(frame)

    def _take(self, frame: bytes) -> None:
        header = decode_lane_header(frame)
        if header.first != len(self.got):
            return  # behind or ahead; frames are the same ones whenever they are sent
        self.got += chunks_from_arrays(decode_lane_arrays(frame, header.count))
        self.consumed_bytes += max(MIN_FRAME_COST_BYTES, len(frame))
        self.consumed = len(self.got)

    @precondition(lambda self: self.frames and not self.is_over)
    @rule(kept=st.integers(1, 3))
    def read_on(self, kept: int) -> None:
        """The first frames of the link arrive in order, the others are lost; credit follows."""
        for frame in self.frames[:kept]:
            self._take(frame)
        self.frames.clear()
        self.credit(is_stale=False)

    @precondition(lambda self: self.frames)
    @rule()
    def lose_all(self) -> None:
        self.frames.clear()

    @precondition(lambda self: not self.is_over)
    @rule(is_stale=st.booleans())
    def credit(self, is_stale: bool) -> None:
        totals = (len(self.got), self.consumed, self.consumed_bytes)
        if is_stale:
            totals = (0, 0, 0)
        self.perform(self.calls.on_credit(Credit(CALL, self.attempt, *totals), self.now_s))

    @precondition(lambda self: not self.is_over)
    @rule()
    def resume(self) -> None:
        """What the reader lacks is all sent again, so it can always get on."""
        expected = len(self.got)
        before = len(self.frames)
        self.perform(self.calls.on_resume(Resume(CALL, self.attempt, expected), self.now_s))
        if expected < self.sent:
            assert decode_lane_header(self.frames[before]).first <= expected

    @precondition(lambda self: not self.is_over)
    @rule(chunks=st.integers(1, 12), size=st.sampled_from([512, 4096, 100_000]))
    def window_changes(self, chunks: int, size: int) -> None:
        self.window = (chunks, size)
        window = Window(CALL, self.attempt, chunks, size)
        self.perform(self.calls.on_window(window, self.now_s))

    @precondition(lambda self: not self.is_over)
    @rule()
    def cancel(self) -> None:
        self.perform(self.calls.on_cancel(Cancel(CALL, self.attempt), self.now_s))
        assert self.ended
        self.is_over = True

    @precondition(lambda self: not self.is_over and self.got and self.got[-1] == STOP)
    @rule()
    def done(self) -> None:
        assert self.got == self.said
        self.perform(self.calls.on_done(Done((CallRef(CALL, self.attempt),)), self.now_s))
        assert self.calls.tail_count == 0
        self.is_over = True

    @rule(passed_s=st.floats(0.0, 5.0))
    def time_passes(self, passed_s: float) -> None:
        """Less than the retention time between two words, as long as somebody asks."""
        self.now_s += passed_s
        if not self.is_over:
            window = Window(CALL, self.attempt, *self.window)
            self.perform(self.calls.on_window(window, self.now_s))
        self.perform(self.calls.on_tick(self.now_s))

    # --- invariants --------------------------------------------------------------------------

    @invariant()
    def the_end_is_reported_once_all_is_sent(self) -> None:
        for ended in self.ended:
            if ended.finish["kind"] == "stop":
                assert self.sent == ended.last == len(self.said)

    @invariant()
    def credit_that_comes_back_is_told(self) -> None:
        is_running = not (self.is_over or self.is_finished or self.is_stopped)
        if is_running and self.is_waiting and self.calls.room(CALL, self.attempt):
            assert self.is_woken

    @invariant()
    def one_item_waits_at_most(self) -> None:
        assert self.calls.queues()["waitingChunks"] <= 20 + 4

    @invariant()
    def what_the_reader_got_is_what_was_said(self) -> None:
        assert self.got == self.said[: len(self.got)]


TestWorkerCalls = WorkerCallsMachine.TestCase
