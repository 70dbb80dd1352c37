"""Every state and event of the worker's table (SPEC 5.1), then bounds and times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from trunkline_protocol import limits
from trunkline_protocol.chunks import Finish, FinishReason, TokenUsage
from trunkline_protocol.failure import Code, LlmFailure
from trunkline_protocol.frames import Ended, Progress, Window
from trunkline_protocol.ids import CallId, ClientId, RouteName
from trunkline_workers.core import calls as calls_module
from trunkline_workers.core.attempt import Attempt
from trunkline_workers.core.calls import WorkerCalls
from trunkline_workers.core.effects import Begin, Count, Pull, SendLane

from tests.unit.workers.a_worker import (
    CALL,
    ME,
    STOP,
    a_cancel,
    a_credit,
    a_done,
    a_failure,
    a_resume,
    a_start,
    control,
    kinds,
    lane,
    texts,
)

COST = limits.MIN_FRAME_COST_BYTES
OTHER = CallId(b"o" * 16)


def running(**window: int) -> WorkerCalls:
    calls = WorkerCalls()
    calls.on_start(a_start(**window), 0.0)
    return calls


def paused(*, has_queue: bool = False) -> WorkerCalls:
    """Four chunks in one frame use up the window, and the puller waits; or a fifth chunk, too."""
    calls = running(window_chunks=4)
    calls.on_chunks(*ME, texts(*"abcd"), 1.0)
    if has_queue:
        calls.on_chunks(*ME, texts("e"), 1.0)
    assert calls.ask_room(*ME) == 0
    return calls


def tail() -> WorkerCalls:
    calls = running()
    calls.on_chunks(*ME, texts("a"), 1.0)
    calls.on_finish(*ME, STOP, None, 2.0)
    return calls


def gone() -> WorkerCalls:
    calls = tail()
    calls.on_done(a_done(), 3.0)
    return calls


def counted(effects: list[Any]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Count)]


# --- START -----------------------------------------------------------------------------------


def test_start_begins_the_adapter_once() -> None:
    calls = WorkerCalls()
    start = a_start()
    assert calls.on_start(start, 0.0) == [Begin(start)]
    assert calls.on_start(start, 0.0) == []
    assert calls.running_count == 1


def test_start_again_while_running_binds_the_new_client_and_window() -> None:
    calls = running(window_chunks=4)
    other = ClientId(b"d" * 16)
    assert calls.on_start(a_start(client=other, window_chunks=9), 1.0) == []
    assert calls.room(*ME) == 9
    effects = calls.on_chunks(*ME, texts("a"), 1.0)
    assert [effect.client for effect in effects if isinstance(effect, SendLane)] == [other]


def test_start_again_while_paused_goes_on_if_the_new_window_allows_it() -> None:
    calls = paused()
    assert calls.on_start(a_start(window_chunks=4), 2.0) == []
    assert calls.on_start(a_start(window_chunks=5), 2.0) == [Pull(*ME)]


def test_start_again_in_the_tail_repeats_the_end() -> None:
    calls = tail()
    assert [frame.last for frame in control(calls.on_start(a_start(), 3.0))] == [2]


def test_start_of_a_remembered_attempt_repeats_the_end_and_starts_nothing() -> None:
    effects = gone().on_start(a_start(), 4.0)
    assert kinds(effects) == ["SendControl"]
    assert control(effects)[0].finish == {"kind": "stop"}


def test_another_attempt_of_the_same_call_is_another_stream() -> None:
    calls = tail()
    assert kinds(calls.on_start(a_start(attempt=1), 3.0)) == ["Begin"]
    assert lane(calls.on_chunks(CALL, 1, texts("x"), 3.0))[0][0] == 0


def test_beyond_the_bound_only_the_new_call_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "MAX_OPEN_CALLS_PER_WORKER", 1)
    calls = running()
    effects = calls.on_start(a_start(call=OTHER), 0.0)
    assert kinds(effects) == ["SendLane", "SendControl"]
    assert control(effects)[0].finish["failure"]["code"] == Code.OVERLOADED
    assert calls.room(*ME) == 4


# --- chunks and credit -----------------------------------------------------------------------


def test_chunks_are_numbered_and_leave_in_one_frame() -> None:
    calls = running()
    ((first, chunks),) = lane(calls.on_chunks(*ME, texts("a", "b"), 1.0))
    assert (first, len(chunks)) == (0, 2)
    ((first, chunks),) = lane(calls.on_chunks(*ME, texts("c"), 1.0))
    assert (first, len(chunks)) == (2, 1)


def test_credit_in_chunks_pauses_and_credit_goes_on() -> None:
    calls = paused()
    assert calls.room(*ME) == 0
    assert calls.on_credit(a_credit(4, 2, COST // 2), 2.0) == [Pull(*ME)]
    assert calls.room(*ME) == 2


def test_what_passes_the_credit_waits_and_leaves_first() -> None:
    calls = paused(has_queue=True)
    effects = calls.on_credit(a_credit(4, 4, COST), 2.0)
    assert [first for first, _ in lane(effects)] == [4]
    assert kinds(effects) == ["SendLane", "Pull"]


def test_credit_that_is_eaten_by_the_queue_does_not_pull() -> None:
    calls = running(window_chunks=1)
    calls.on_chunks(*ME, texts("a", "b", "c"), 1.0)
    assert calls.ask_room(*ME) == 0
    effects = calls.on_credit(a_credit(1, 1, COST), 2.0)
    assert kinds(effects) == ["SendLane"]
    assert calls.room(*ME) == 0


def test_one_frame_may_overdraw_the_byte_window() -> None:
    calls = running(window_chunks=8, window_bytes=COST)
    assert len(lane(calls.on_chunks(*ME, texts("x" * 4000), 1.0))) == 1
    assert calls.ask_room(*ME) == 0
    effects = calls.on_credit(a_credit(1, 1, 4000), 2.0)
    assert kinds(effects) == ["Pull"]


def test_a_window_that_shrank_before_the_puller_woke_stops_nothing() -> None:
    """The puller finds no room and waits again; the next credit wakes it."""
    calls = running(window_chunks=204)
    calls.on_chunks(*ME, texts(*"x" * 204), 1.0)
    assert calls.ask_room(*ME) == 0
    assert calls.on_start(a_start(window_chunks=1024), 2.0) == [Pull(*ME)]
    assert calls.on_window(Window(*ME, 204, 1 << 20), 2.0) == []
    assert calls.ask_room(*ME) == 0
    assert calls.on_credit(a_credit(204, 204, COST), 3.0) == [Pull(*ME)]
    assert calls.ask_room(*ME) == 204


def test_a_puller_that_has_not_asked_again_is_woken_by_every_event() -> None:
    calls = paused()
    assert calls.on_window(Window(*ME, 5, 1 << 20), 2.0) == [Pull(*ME)]
    assert calls.on_resume(a_resume(4), 2.0) == [Pull(*ME)]
    assert calls.ask_room(*ME) == 1
    assert calls.on_resume(a_resume(4), 2.0) == []


def test_nothing_is_pulled_for_a_call_that_is_over_or_unknown() -> None:
    assert tail().ask_room(*ME) == 0
    assert gone().ask_room(*ME) == 0
    assert WorkerCalls().ask_room(*ME) == 0


def test_credit_while_running_changes_only_the_room() -> None:
    calls = running(window_chunks=4)
    calls.on_chunks(*ME, texts("a"), 1.0)
    assert calls.on_credit(a_credit(1, 1, COST), 2.0) == []
    assert calls.room(*ME) == 4


def test_stale_credit_changes_nothing() -> None:
    calls = running(window_chunks=4)
    calls.on_chunks(*ME, texts("a", "b"), 1.0)
    calls.on_credit(a_credit(2, 2, COST), 2.0)
    assert calls.on_credit(a_credit(1, 0, 0), 3.0) == []
    assert calls.room(*ME) == 4
    assert calls.progress() == ()


@pytest.mark.parametrize("totals", [(2, 0, 0), (1, 2, 0), (0, 1, 0), (1, 1, COST + 1)])
def test_credit_beyond_what_was_sent_is_counted_and_changes_nothing(
    totals: tuple[int, int, int],
) -> None:
    calls = running()
    calls.on_chunks(*ME, texts("a"), 1.0)
    assert counted(calls.on_credit(a_credit(*totals), 2.0)) == ["bad_credit"]
    assert calls.room(*ME) == 3


def test_credit_in_the_tail_frees_the_resend_window() -> None:
    calls = tail()
    assert calls.on_credit(a_credit(2, 2, 2 * COST), 3.0) == []
    assert lane(calls.on_resume(a_resume(0), 3.0)) == []


def test_frames_for_a_forgotten_call_are_counted() -> None:
    calls = gone()
    assert counted(calls.on_credit(a_credit(1, 1, 1), 4.0)) == ["frames_of_unknown_calls"]
    assert counted(calls.on_resume(a_resume(0), 4.0)) == ["frames_of_unknown_calls"]
    assert counted(calls.on_window(Window(CALL, 0, 1, 1), 4.0)) == ["frames_of_unknown_calls"]


def test_a_larger_window_goes_on_a_smaller_one_holds_back() -> None:
    calls = paused()
    assert calls.on_window(Window(CALL, 0, 6, 1024 * 1024), 2.0) == [Pull(*ME)]
    assert calls.room(*ME) == 2
    assert calls.on_window(Window(CALL, 0, 1, 1024 * 1024), 2.0) == []
    assert calls.room(*ME) == 0


def test_frames_grow_to_their_limit_and_no_further() -> None:
    calls = running(window_chunks=1000, window_bytes=1024 * 1024 * 1024)
    effects = calls.on_chunks(*ME, texts(*["x" * 1000] * 500), 1.0)
    frames = [effect.frame for effect in effects if isinstance(effect, SendLane)]
    assert len(frames) <= 10
    assert max(map(len, frames)) <= limits.MAX_LANE_FRAME_BYTES
    assert sum(len(chunks) for _, chunks in lane(effects)) == 500
    # Small chunks after large ones fill frames again.
    for _ in range(12):
        calls.on_chunks(*ME, texts("y"), 1.0)
    effects = calls.on_chunks(*ME, texts(*["y"] * 400), 1.0)
    assert len(lane(effects)) <= 2


def test_a_chunk_larger_than_a_frame_travels_alone() -> None:
    calls = running(window_chunks=9)
    effects = calls.on_chunks(*ME, texts("a", "x" * 100_000, "b"), 1.0)
    assert [len(chunks) for _, chunks in lane(effects)] == [1, 1, 1]


@pytest.mark.parametrize("bad", [object(), 2**70])
def test_a_chunk_without_a_form_ends_the_stream_behind_the_good_ones(bad: object) -> None:
    calls = running(window_chunks=9)
    arrays = [*texts("a"), (1, 0, bad), *texts("b")]
    effects = calls.on_chunks(*ME, arrays, 1.0)
    assert kinds(effects) == ["SendLane", "Stop", "SendControl"]
    ((_, chunks),) = lane(effects)
    assert len(chunks) == 2
    assert isinstance(chunks[1], Finish)
    assert control(effects)[0].finish["failure"]["code"] == Code.INVARIANT
    assert counted(calls.on_chunks(*ME, texts("late"), 1.0)) == ["late_chunks"]


def test_a_chunk_larger_than_any_reader_accepts_ends_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trunkline_workers.core import attempt

    monkeypatch.setattr(attempt, "MAX_LANE_BODY_BYTES", 100_000)
    calls = running(window_chunks=9)
    effects = calls.on_chunks(*ME, texts("x" * 100_001), 1.0)
    assert control(effects)[0].finish["failure"]["code"] == Code.INVARIANT


def test_a_finish_without_a_form_is_replaced() -> None:
    calls = running()
    finish = Finish(FinishReason("stop", extra={"odd": object()}))
    effects = calls.on_finish(*ME, finish, None, 1.0)
    assert kinds(effects) == ["SendLane", "SendControl"]
    assert control(effects)[0].finish["kind"] == "error"


def test_chunks_for_a_forgotten_call_are_counted() -> None:
    calls = gone()
    assert calls.on_chunks(*ME, texts("a", "b"), 4.0) == [Count("late_chunks", 2)]
    assert calls.on_finish(*ME, STOP, None, 4.0, texts("a")) == [Count("late_chunks", 2)]
    assert calls.room(*ME) == 0


# --- RESUME ----------------------------------------------------------------------------------


def test_resume_sends_the_very_same_frames_from_there_on() -> None:
    calls = running()
    first = calls.on_chunks(*ME, texts("a", "b"), 1.0)
    second = calls.on_chunks(*ME, texts("c"), 1.0)
    assert calls.on_resume(a_resume(2), 2.0)[:-1] == second
    assert calls.on_resume(a_resume(1), 2.0)[:-1] == [*first, *second]
    assert calls.on_resume(a_resume(3), 2.0) == []


def test_resume_while_paused_leaves_the_queue_alone() -> None:
    calls = paused(has_queue=True)
    assert [first for first, _ in lane(calls.on_resume(a_resume(0), 2.0))] == [0]
    assert calls.room(*ME) == 0


def test_resume_in_the_tail_sends_the_finish_again() -> None:
    effects = tail().on_resume(a_resume(1), 3.0)
    assert isinstance(lane(effects)[0][1][0], Finish)


def test_resume_beyond_what_was_sent_is_counted() -> None:
    calls = running()
    assert counted(calls.on_resume(a_resume(1), 1.0)) == ["bad_resume"]


# --- finish ----------------------------------------------------------------------------------


def test_the_finish_leaves_with_the_last_chunks_and_is_reported_after_them() -> None:
    calls = running()
    usage = TokenUsage(1, 2).to_dict()
    effects = calls.on_finish(*ME, STOP, usage, 2.5, texts("a", "b"))
    assert kinds(effects) == ["SendLane", "SendControl"]
    (ended,) = control(effects)
    figures = {"model": "model", "chunks": 3, "ttftMs": 2500.0, "durationMs": 2500.0}
    assert ended == Ended(CALL, 0, 3, {"kind": "stop"}, usage, figures)


def test_a_finish_without_credit_waits_and_so_does_its_report() -> None:
    calls = paused()
    assert kinds(calls.on_finish(*ME, STOP, None, 2.0)) == []
    assert calls.tail_count == 0
    assert kinds(calls.on_credit(a_credit(4, 4, COST), 3.0)) == ["SendLane", "SendControl"]
    assert (calls.running_count, calls.tail_count) == (0, 1)


def test_a_second_finish_is_counted() -> None:
    calls = tail()
    assert counted(calls.on_finish(*ME, STOP, None, 3.0)) == ["late_chunks"]


def test_figures_tell_the_request_id_and_the_time_to_the_first_chunk() -> None:
    calls = running()
    calls.on_chunks(*ME, texts("a"), 0.25)
    reason = FinishReason("error", LlmFailure("no", Code.SERVER, request_id="req-7"))
    (ended,) = control(calls.on_finish(*ME, Finish(reason), None, 1.0))
    assert ended.figures == {
        "model": "model",
        "chunks": 2,
        "ttftMs": 250.0,
        "durationMs": 1000.0,
        "requestId": "req-7",
    }


def test_the_time_to_the_first_chunk_is_known_while_the_attempt_runs() -> None:
    calls = running()
    assert calls.first_chunk_after_s(*ME) is None
    assert calls.first_chunk_after_s(*ME, told_s=1.0) == 1.0
    calls.on_chunks(*ME, texts("a"), 1.5)
    calls.on_chunks(*ME, texts("b"), 2.0)
    assert calls.first_chunk_after_s(*ME, told_s=3.0) == 1.5
    assert calls.first_chunk_after_s(OTHER, 0) is None


def test_a_cancelled_attempt_tells_what_it_has_cost() -> None:
    """Tokens and request id as far as they were known, and the chunks that were made."""
    calls = running()
    calls.on_chunks(*ME, texts("a", "b"), 0.5)
    calls.note(*ME, {"inputTokens": 7, "outputTokens": 1}, "req-8")
    (ended,) = control(calls.on_cancel(a_cancel(), 1.0))
    assert ended.usage == {"inputTokens": 7, "outputTokens": 1}
    assert ended.figures == {
        "model": "model",
        "chunks": 2,
        "ttftMs": 500.0,
        "durationMs": 1000.0,
        "requestId": "req-8",
    }
    assert control(calls.on_cancel(a_cancel(), 2.0)) == [ended]
    calls.note(*ME, None, "late")  # about an attempt that is gone: nothing
    assert control(calls.on_cancel(a_cancel(), 3.0)) == [ended]


def test_the_report_leaves_out_the_keys_of_other_finish_kinds() -> None:
    calls = running()
    finish = Finish(FinishReason("paused", extra={"why": "x" * 10}))
    (ended,) = control(calls.on_finish(*ME, finish, None, 1.0))
    assert ended.finish == {"kind": "paused"}


# --- CANCEL, DONE, client gone ---------------------------------------------------------------


@pytest.mark.parametrize("calls", [running(), paused(), paused(has_queue=True)])
def test_cancel_stops_the_adapter_answers_and_forgets(calls: WorkerCalls) -> None:
    effects = calls.on_cancel(a_cancel(), 2.0)
    assert kinds(effects) == ["Stop", "SendControl"]
    assert control(effects)[0].finish["kind"] == "aborted"
    assert (calls.running_count, calls.tail_count) == (0, 0)
    again = calls.on_cancel(a_cancel(), 2.0)
    assert control(again) == control(effects)
    assert kinds(calls.on_start(a_start(), 2.0)) == ["SendControl"]


def test_cancel_in_the_tail_forgets_it_and_repeats_the_end() -> None:
    calls = tail()
    (ended,) = control(calls.on_cancel(a_cancel(), 3.0))
    assert ended.finish == {"kind": "stop"}
    assert calls.tail_count == 0


def test_cancel_of_an_unknown_call_is_answered_and_a_late_start_starts_nothing() -> None:
    calls = WorkerCalls()
    (ended,) = control(calls.on_cancel(a_cancel(), 0.0))
    assert (ended.last, ended.finish["kind"]) == (0, "aborted")
    assert kinds(calls.on_start(a_start(), 1.0)) == ["SendControl"]


def test_done_while_running_is_counted_and_changes_nothing() -> None:
    for calls in (running(), paused()):
        assert counted(calls.on_done(a_done(), 2.0)) == ["bad_done"]
        assert calls.running_count == 1


def test_done_forgets_the_tail_and_may_be_repeated() -> None:
    calls = tail()
    assert calls.on_done(a_done(), 3.0) == []
    assert calls.on_done(a_done(), 3.0) == []
    assert calls.tail_count == 0


# --- what is reported ------------------------------------------------------------------------


def test_progress_names_streams_with_unreceived_chunks() -> None:
    calls = tail()
    assert calls.progress() == (Progress(CALL, 0, 2),)
    calls.on_credit(a_credit(2, 0, 0), 3.0)
    assert calls.progress() == ()


def test_routes_of_running_calls_are_named_once() -> None:
    """An ended one that waits to be received blocks nobody."""
    calls = tail()
    assert calls.routes() == ()
    for call, provider in ((OTHER, "b"), (CallId(b"3" * 16), "a"), (CallId(b"4" * 16), "b")):
        calls.on_start(replace(a_start(call=call), provider=RouteName(provider)), 3.0)
    assert calls.routes() == ("a", "b")


def test_held_calls_are_named_with_position_and_end_running_ones_first() -> None:
    calls = tail()
    calls.on_start(a_start(call=OTHER), 3.0)
    assert [(held.call, held.next, held.is_ended) for held in calls.held()] == [
        (OTHER, 0, False),
        (CALL, 2, True),
    ]
    assert [ended.call for ended in calls.endings()] == [CALL]


def test_what_is_held_in_memory_is_told() -> None:
    queues = paused(has_queue=True).queues()
    assert queues["waitingChunks"] == 1
    assert 0 < queues["keptBytes"] < COST
    assert queues["keptHighWater"] == queues["keptBytes"] <= queues["keptBound"]
    assert (queues["waitingItems"], queues["waitingHighWater"]) == (1, 1)
    assert queues["waitingBound"] == 2 * calls_module.MAX_OPEN_CALLS_PER_WORKER
    assert (queues["callsCount"], queues["callsHighWater"]) == (1, 1)


def test_an_attempt_is_not_reported_before_its_end() -> None:
    with pytest.raises(AssertionError):
        Attempt(a_start(), 0.0).ended()


# --- time and bounds -------------------------------------------------------------------------


def test_a_tail_is_kept_until_nothing_was_heard_for_the_retention_time() -> None:
    calls = tail()
    calls.on_resume(a_resume(2), 20.0)
    assert calls.on_tick(20.0 + limits.RETENTION_S - 0.1) == []
    assert counted(calls.on_tick(20.0 + limits.RETENTION_S)) == ["tails_expired"]
    assert kinds(calls.on_start(a_start(), 50.1)) == ["SendControl"]


def test_an_ended_call_is_forgotten_after_the_retention_time() -> None:
    calls = gone()
    calls.on_start(a_start(), 10.0)
    calls.on_tick(10.0 + limits.RETENTION_S - 0.1)
    assert kinds(calls.on_start(a_start(), 20.0)) == ["SendControl"]
    calls.on_tick(20.0 + limits.RETENTION_S)
    assert kinds(calls.on_start(a_start(), 60.0)) == ["Begin"]


def test_a_call_with_room_is_never_forgotten_by_time() -> None:
    calls = running()
    assert calls.on_tick(1e6) == []
    assert calls.running_count == 1


def test_tails_and_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "MAX_OPEN_CALLS_PER_WORKER", 2)
    monkeypatch.setattr(calls_module, "MAX_ENDED_CALLS", 1)
    calls = WorkerCalls()
    evicted: list[str] = []
    for number in range(4):
        call = CallId(bytes([number]) * 16)
        calls.on_start(a_start(call=call), 0.0)
        evicted += counted(calls.on_finish(call, 0, a_failure(Code.SERVER), None, 1.0))
    assert evicted == ["tails_evicted"] * 2
    assert calls.tail_count == 2
    assert kinds(calls.on_start(a_start(call=CallId(bytes([1]) * 16)), 1.0)) == ["SendControl"]
    assert kinds(calls.on_start(a_start(call=CallId(bytes([0]) * 16)), 1.0)) == ["Begin"]


def test_an_attempt_that_waits_for_credit_and_is_named_by_nobody_ends_after_hours() -> None:
    """Any frame about it begins that time anew; one that has room is its adapter's matter."""
    calls = paused()
    assert calls.on_tick(1.0 + limits.DETACHED_S - 2) == []
    calls.on_credit(a_credit(0, 0, 0), 100.0)
    assert calls.on_tick(limits.DETACHED_S + 99) == []
    effects = calls.on_tick(limits.DETACHED_S + 100)
    assert kinds(effects) == ["Stop", "SendControl", "Count"]
    assert control(effects)[0].finish["failure"]["code"] == Code.TRANSPORT
    assert calls.running_count == 0
    assert running().on_tick(2 * limits.DETACHED_S) == []
