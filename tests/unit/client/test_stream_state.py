"""The table of SPEC.md section 5.2, every phase with every event, and the rules beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trunkline.core.effects import NOTHING, Count, Effects, RetryBegan, RetryOffered, Wake
from trunkline.core.intake import MAX_WAITING_CHUNKS
from trunkline.core.readings import failure_from
from trunkline.core.stream_state import Phase, StreamState
from trunkline_protocol.chunks import BlockEnd, Finish, FinishReason, TextDelta
from trunkline_protocol.codec import decode_lane_header, encode_lane
from trunkline_protocol.failure import Code, LlmFailure
from trunkline_protocol.frames import Cancel, Credit, Done, Open, Resume
from trunkline_protocol.ids import StreamKey
from trunkline_protocol.limits import QUIET_AFTER_S, QUIET_MAX_S, REPEAT_MAX_S, RESUME_AFTER_S

from tests.unit.client.a_stream import (
    ERROR,
    KEY,
    NEXT_KEY,
    SERVER,
    STOP,
    a_stream,
    accepted,
    ended,
    give,
    in_phase,
    kinds,
    lane,
    retry,
    retry_started,
    sent,
    taken,
    texts,
)

LIVE = (Phase.OPENING, Phase.OPEN, Phase.TAIL)
DEAF = (Phase.HELD, Phase.BACKOFF, Phase.CANCELLING, Phase.CLOSED)
ABORTED = LlmFailure("gone", "ABORTED")


def at(stream: StreamState) -> int:
    return stream.intake.expected


def finish_of(stream: StreamState) -> FinishReason:
    """Return the one finish that an application gets."""
    finishes = [chunk for chunk in taken(stream) if isinstance(chunk, Finish)]
    assert len(finishes) == 1
    return finishes[0].reason


# --- frames in order ------------------------------------------------------------------------


@pytest.mark.parametrize("phase", LIVE)
def test_a_frame_in_order_is_delivered(phase: Phase) -> None:
    """It wakes the reader; the first one confirms an `OPEN`."""
    stream = in_phase(phase)
    assert give(stream, 0, texts(0, 2)) is stream.woken
    assert stream.phase is (Phase.OPEN if phase is Phase.OPENING else phase)
    assert taken(stream) == texts(0, 2)


@pytest.mark.parametrize("phase", DEAF)
def test_a_frame_is_dropped_where_nobody_waits_for_it(phase: Phase) -> None:
    """It changes nothing and is counted."""
    stream = in_phase(phase)
    before = at(stream)
    assert give(stream, before, texts(0, 1)) == [Count("late_lane_frames")]
    assert (stream.phase, at(stream)) == (phase, before)


@pytest.mark.parametrize("phase", LIVE)
def test_a_finish_in_order_ends_the_stream(phase: Phase) -> None:
    """Everything is delivered, the worker may forget, the call is closed."""
    stream = in_phase(phase)
    assert kinds(give(stream, 0, [*texts(0, 1), STOP])) == [Done, Wake]
    assert stream.phase is Phase.CLOSED
    assert stream.is_over
    assert taken(stream) == [*texts(0, 1), STOP]


@pytest.mark.parametrize("phase", [Phase.OPENING, Phase.OPEN])
def test_an_error_finish_is_held_while_a_retry_may_come(phase: Phase) -> None:
    """Recovery "policy": chunks before it are readable, the finish waits for the broker."""
    stream = in_phase(phase, "policy")
    assert kinds(give(stream, 0, [*texts(0, 1), ERROR])) == [Wake]
    assert stream.phase is Phase.HELD
    assert taken(stream) == texts(0, 1)
    assert not stream.is_over


def test_an_error_finish_after_ended_is_final() -> None:
    """`ENDED` came, so the broker has decided already."""
    stream = in_phase(Phase.TAIL, "policy")
    assert kinds(give(stream, 0, [*texts(0, 1), ERROR])) == [Done, Wake]
    assert finish_of(stream) == ERROR.reason


def test_other_finishes_and_other_calls_are_not_held() -> None:
    """Only `error`, and only with recovery "policy"."""
    aborted = Finish(FinishReason("aborted", ABORTED))
    for recovery, finish in (("policy", STOP), ("policy", aborted), ("none", ERROR)):
        stream = in_phase(Phase.OPEN, recovery)
        give(stream, 0, [finish])
        assert stream.phase is Phase.CLOSED


def test_a_second_frame_does_not_wake_again() -> None:
    """Whoever reads has something to take already."""
    stream = in_phase(Phase.OPEN)
    assert give(stream, 0, texts(0, 1)) is stream.woken
    assert give(stream, 1, texts(1, 1)) is NOTHING


# --- frames out of order --------------------------------------------------------------------


def test_a_frame_wholly_below_is_dropped() -> None:
    """A repeated one is counted; an empty one is not even that."""
    stream = in_phase(Phase.OPEN)
    give(stream, 0, texts(0, 3))
    assert give(stream, 1, texts(1, 2)) == [Count("repeated_lane_frames")]
    assert give(stream, 3, []) is NOTHING
    assert taken(stream) == texts(0, 3)


def test_an_overlapping_frame_is_sliced() -> None:
    """Only what is new is delivered; its cost is its share of the frame."""
    stream = in_phase(Phase.OPEN)
    give(stream, 0, texts(0, 3))
    frame = lane(1, [TextDelta(0, "x" * 2000)] * 4)
    stream.on_chunks(decode_lane_header(frame), frame, 0.0)
    chunks = taken(stream)
    assert len(chunks) == 5
    assert at(stream) == 5
    assert stream.intake.consumed == 5
    assert stream.intake.consumed_bytes == 512 + len(frame) // 2


@pytest.mark.parametrize("phase", LIVE)
def test_a_gap_leads_to_one_resume(phase: Phase) -> None:
    """What lies beyond is dropped; a further frame beyond asks nothing more."""
    stream = in_phase(phase)
    effects = give(stream, 5, texts(5, 1), now_s=1.0)
    assert [frame.expected for frame in sent(effects)] == [0]
    assert stream.phase is (Phase.OPEN if phase is Phase.OPENING else phase)
    assert sent(give(stream, 6, texts(6, 1), now_s=1.1)) == []
    assert taken(stream) == []


def test_a_resume_is_said_again_after_250_ms_without_progress() -> None:
    """Progress postpones it; the part that is still lacking is asked for then."""
    stream = in_phase(Phase.OPEN)
    give(stream, 5, texts(5, 1), now_s=1.0)
    assert stream.next_deadline_s() == 1.0 + RESUME_AFTER_S
    assert stream.on_tick(1.1) is NOTHING
    give(stream, 0, texts(0, 2), now_s=1.2)
    assert stream.next_deadline_s() == 1.2 + RESUME_AFTER_S
    assert [frame.expected for frame in sent(stream.on_tick(1.45))] == [2]
    assert stream.next_deadline_s() == 1.45 + RESUME_AFTER_S


def test_a_new_gap_after_the_old_one_was_filled_asks_at_once() -> None:
    """The outstanding RESUME was answered, so another may go out."""
    stream = in_phase(Phase.OPEN)
    give(stream, 1, texts(1, 1))
    give(stream, 0, texts(0, 2))
    assert kinds(give(stream, 3, texts(3, 1))) == [Count, Resume]


def test_loss_is_found_by_what_the_worker_says_it_has_sent() -> None:
    """`SENT` beyond `expected` leads to a RESUME 250 ms later, not at once."""
    stream = in_phase(Phase.OPEN)
    stream.restated(1.9)
    assert stream.on_sent(4, 2.0) is NOTHING
    assert stream.next_deadline_s() == 2.0 + RESUME_AFTER_S
    assert [frame.expected for frame in sent(stream.on_tick(2.25))] == [0]
    give(stream, 0, texts(0, 4), now_s=2.3)
    assert not stream.intake.is_behind


@pytest.mark.parametrize("phase", DEAF)
def test_sent_means_nothing_where_nothing_is_awaited(phase: Phase) -> None:
    """No RESUME follows."""
    stream = in_phase(phase)
    before = stream.intake.known_next
    assert stream.on_sent(99, 1.0) is NOTHING
    assert stream.intake.known_next == before


# --- workers that break the rules -----------------------------------------------------------


def test_what_is_no_chunk_ends_the_call() -> None:
    """The application gets one error finish, the worker a CANCEL."""
    stream = in_phase(Phase.OPEN)
    give(stream, 0, texts(0, 1))
    frame = encode_lane(KEY, 1, [["garbage"]])
    effects = stream.on_chunks(decode_lane_header(frame), frame, 1.0)
    assert kinds(effects) == [Cancel, Wake]
    assert stream.phase is Phase.CANCELLING
    chunks = taken(stream)
    assert chunks[:-1] == texts(0, 1)
    assert isinstance(chunks[-1], Finish)
    assert chunks[-1].reason.failure is not None
    assert chunks[-1].reason.failure.code == "MALFORMED_RESPONSE"


def test_a_worker_that_ignores_credit_is_stopped() -> None:
    """What waits here is bounded whatever it sends."""
    stream = in_phase(Phase.OPEN)
    count = 0
    while stream.phase is Phase.OPEN:
        give(stream, count, texts(count, 512))
        count += 512
    assert stream.intake.waiting_chunks <= MAX_WAITING_CHUNKS
    assert finish_of(stream).failure == LlmFailure(
        "the worker sends more than it was granted", "INVARIANT"
    )


def test_a_left_out_block_that_no_delta_builds_ends_the_call() -> None:
    """It is found when the application takes it."""
    stream = in_phase(Phase.OPEN)
    give(stream, 0, [BlockEnd(0, None)])
    give(stream, 1, texts(1, 1))
    chunks, effects = stream.take(1.0)
    assert [type(chunk) for chunk in chunks] == [Finish]
    assert kinds(effects) == [Cancel]
    assert stream.take(1.0) == ([], NOTHING)
    assert stream.is_over


def test_the_same_behind_a_finish_that_has_arrived() -> None:
    """The call is closed already, so nobody is told."""
    stream = in_phase(Phase.OPEN)
    give(stream, 0, [BlockEnd(0, None)])
    give(stream, 1, [STOP])
    chunks, effects = stream.take(1.0)
    assert [type(chunk) for chunk in chunks] == [Finish]
    assert effects is NOTHING
    assert taken(stream) == []


def test_nothing_behind_a_finish_is_shown() -> None:
    """A worker that goes on after its finish in the same frame is stopped."""
    stream = in_phase(Phase.OPEN)
    give(stream, 0, [*texts(0, 1), STOP, *texts(2, 1)])
    chunks, effects = stream.take(1.0)
    assert chunks == [*texts(0, 1), STOP]
    assert kinds(effects) == [Cancel]
    assert taken(stream) == []


# --- credit ---------------------------------------------------------------------------------


def test_credit_is_given_per_half_window_and_never_per_chunk() -> None:
    """Eight chunks of window: after four consumed ones, in whole frames."""
    stream = in_phase(Phase.OPEN)
    for first in range(0, 8, 2):
        give(stream, first, texts(first, 2))
    seen = [sent(stream.take(0.0)[1]) for _ in range(5)]
    totals = [(frame.received, frame.consumed) for frames in seen for frame in frames]
    assert totals == [(8, 4), (8, 8)]
    assert [len(frames) for frames in seen] == [0, 0, 1, 0, 1]


def test_credit_in_bytes_counts_what_frames_cost() -> None:
    """Half of the byte window is consumed although few chunks were."""
    stream = a_stream()
    stream.on_accepted(accepted(chunks=100, size=2048), 0.0)
    for first in range(3):
        give(stream, first, texts(first, 1))
    seen = [sent(stream.take(0.0)[1]) for _ in range(4)]
    assert [len(frames) for frames in seen] == [0, 0, 1, 0]
    assert isinstance(seen[2][0], Credit)
    assert seen[2][0].consumed_bytes == 1024


def test_while_the_window_is_unknown_every_frame_is_credited() -> None:
    """It may be a single chunk."""
    stream = in_phase(Phase.OPENING)
    give(stream, 0, texts(0, 1))
    stream.take(0.0)
    assert kinds(stream.take(0.0)[1]) == [Credit]


def test_a_smaller_window_makes_credit_due() -> None:
    """What was below half of the old window may be above half of the new."""
    stream = a_stream()
    stream.on_accepted(accepted(chunks=100), 0.0)
    give(stream, 0, texts(0, 2))
    taken(stream)
    assert kinds(stream.on_window(4, 65536, 0.0)) == [Credit]
    assert stream.on_window(100, 65536, 0.0) is NOTHING


def test_no_credit_for_what_is_over() -> None:
    """The worker was told DONE."""
    stream = in_phase(Phase.OPEN)
    give(stream, 0, [*texts(0, 7), STOP])
    assert stream.take(0.0)[1] is NOTHING
    assert stream.take(0.0) == ([], NOTHING)
    assert stream.on_window(1, 1, 0.0) is NOTHING


# --- ACCEPTED, QUEUED -----------------------------------------------------------------------


def test_accepted_tells_who_serves() -> None:
    """Pool, slot, generation, policy and window."""
    stream = in_phase(Phase.OPENING)
    assert stream.on_accepted(accepted(), 0.0) == []
    assert stream.phase is Phase.OPEN
    assert stream.served_by is not None
    assert stream.served_by.pool == "p"
    assert stream.intake.window_chunks == 8


def test_queued_confirms_without_a_position() -> None:
    """A queued call is opened, not restated, for the next broker."""
    stream = in_phase(Phase.OPENING)
    assert stream.on_queued(0.0) is NOTHING
    assert stream.phase is Phase.OPEN
    assert not stream.has_position
    assert kinds(stream.speak(1.0)) == [Open]
    assert stream.phase is Phase.OPENING


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.TAIL, Phase.HELD, Phase.CLOSED])
def test_a_second_confirmation_changes_no_phase(phase: Phase) -> None:
    """It may come again after a restart of the broker."""
    stream = in_phase(phase)
    assert list(stream.on_queued(1.0)) == []
    assert list(stream.on_accepted(accepted(), 1.0)) == []
    assert stream.phase is phase


def test_a_confirmation_of_a_cancelled_call_is_answered_with_cancel() -> None:
    """The broker did not know yet."""
    stream = in_phase(Phase.CANCELLING)
    assert kinds(stream.on_queued(1.0)) == [Cancel]
    assert kinds(stream.on_accepted(accepted(), 1.0)) == [Cancel]


def test_a_confirmed_re_offer_begins_the_attempt() -> None:
    """The delay was over when the new broker heard of it."""
    stream = in_phase(Phase.BACKOFF)
    assert kinds(stream.on_accepted(accepted(attempt=1), 1.0)) == [RetryBegan]
    assert stream.phase is Phase.OPEN
    assert stream.begun == 2


# --- ENDED ----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.OPENING, Phase.OPEN])
def test_ended_never_ends_by_itself(phase: Phase) -> None:
    """The lane is waited for, and resumed 250 ms later."""
    stream = in_phase(phase)
    assert stream.on_ended(ended(2), 1.0) is NOTHING
    assert stream.phase is Phase.TAIL
    assert stream.next_deadline_s() == 1.0 + RESUME_AFTER_S
    assert kinds(stream.on_tick(1.25)) == [Resume]
    assert kinds(give(stream, 0, [*texts(0, 1), STOP])) == [Done, Wake]


def test_ended_of_what_was_all_received_ends() -> None:
    """A worker that sent no finish chunk: the one of ENDED is delivered."""
    stream = in_phase(Phase.OPEN)
    give(stream, 0, texts(0, 2))
    assert kinds(stream.on_ended(ended(2), 1.0)) == [Done, Wake]
    assert finish_of(stream).kind == "stop"


def test_the_last_chunk_after_ended_ends_too() -> None:
    """The same in the other order."""
    stream = in_phase(Phase.OPEN)
    stream.on_ended(ended(2), 1.0)
    assert kinds(give(stream, 0, texts(0, 2))) == [Done, Wake]
    assert finish_of(stream).kind == "stop"


def test_ended_with_what_is_no_finish_is_an_error() -> None:
    """The stream still ends once."""
    stream = in_phase(Phase.OPEN)
    frame = ended(0)
    stream.on_ended(type(frame)(frame.call, 0, 0, {"kind": "error"}), 1.0)
    assert finish_of(stream).kind == "error"


def test_ended_releases_a_held_finish() -> None:
    """No retry comes."""
    stream = in_phase(Phase.HELD)
    assert kinds(stream.on_ended(ended(1, ERROR), 1.0)) == [Done, Wake]
    assert finish_of(stream) == ERROR.reason


def test_ended_in_backoff_ends_the_call() -> None:
    """The broker has withdrawn the offer."""
    stream = in_phase(Phase.BACKOFF)
    aborted = Finish(FinishReason("aborted", ABORTED))
    assert kinds(stream.on_ended(ended(0, aborted), 1.0)) == [Wake]
    assert finish_of(stream).kind == "aborted"
    other = in_phase(Phase.BACKOFF)
    other.on_ended(ended(0, STOP), 1.0)
    assert finish_of(other).kind == "aborted"


@pytest.mark.parametrize("phase", [Phase.TAIL, Phase.CLOSED])
def test_ended_again_changes_nothing(phase: Phase) -> None:
    """It is repeated after a restart."""
    stream = in_phase(phase)
    assert stream.on_ended(ended(9), 1.0) is NOTHING
    assert stream.phase is phase


# --- FAILED, LOST ---------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.OPENING, Phase.OPEN, Phase.BACKOFF])
def test_failed_delivers_what_came_and_then_the_failure(phase: Phase) -> None:
    """Nobody will send more."""
    stream = in_phase(phase)
    if phase is Phase.OPEN:
        give(stream, 0, texts(0, 2))
    assert kinds(stream.on_failed(SERVER)) == [Wake]
    chunks = taken(stream)
    assert len(chunks) == (3 if phase is Phase.OPEN else 1)
    assert chunks[-1] == Finish(FinishReason("error", SERVER))
    assert stream.phase is Phase.CLOSED


def test_an_aborted_failure_is_an_aborted_finish() -> None:
    """The kind follows from the code."""
    stream = in_phase(Phase.OPEN)
    stream.on_failed(ABORTED)
    assert finish_of(stream).kind == "aborted"


def test_failed_after_ended_means_the_tail_is_lost() -> None:
    """`STREAM_CLOSED`, whatever the broker names."""
    stream = in_phase(Phase.TAIL)
    stream.on_failed(SERVER)
    failure = finish_of(stream).failure
    assert failure is not None
    assert failure.code == "STREAM_CLOSED"


@pytest.mark.parametrize("event", ["failed", "lost"])
def test_a_held_finish_is_delivered_when_its_worker_is_gone(event: str) -> None:
    """It is what the adapter said."""
    stream = in_phase(Phase.HELD)
    effects = stream.on_failed(SERVER) if event == "failed" else stream.on_lost(1.0)
    assert kinds(effects) == [Wake]
    assert finish_of(stream) == ERROR.reason


def test_lost_before_anything_was_received_opens_again() -> None:
    """Same call, attempt and key; from OPENING, OPEN and TAIL alike."""
    for phase in LIVE:
        stream = in_phase(phase)
        frames = sent(stream.on_lost(5.0))
        assert [type(frame) for frame in frames] == [Open]
        assert frames[0].stream_key == KEY
        assert frames[0].body == b"body"
        assert not frames[0].seen
        assert stream.phase is Phase.OPENING


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.TAIL])
def test_lost_after_something_was_received_ends(phase: Phase) -> None:
    """Never replayed: `TRANSPORT`."""
    stream = in_phase(phase, seen=True)
    assert kinds(stream.on_lost(5.0)) == [Wake]
    failure = finish_of(stream).failure
    assert failure is not None
    assert failure.code == "TRANSPORT"


def test_a_late_lost_about_what_was_opened_again_is_no_loss() -> None:
    """It answers what was said before; if it is true it will be said again."""
    stream = in_phase(Phase.OPEN)
    stream.on_lost(5.0)
    give(stream, 0, texts(0, 1), now_s=5.1)
    assert stream.on_lost(5.2) is NOTHING
    assert stream.phase is Phase.OPEN
    assert kinds(stream.on_lost(5.0 + QUIET_AFTER_S)) == [Wake]


def test_lost_in_backoff_offers_the_retry_again() -> None:
    """With what is left of the delay."""
    stream = in_phase(Phase.BACKOFF)
    frames = sent(stream.on_lost(0.04))
    assert frames[0].retry_offer == {
        "retryId": "retry-1",
        "policyKey": "key",
        "retry": 1,
        "delayMs": pytest.approx(60.0),
    }
    assert frames[0].attempt == 1
    assert sent(stream.on_lost(9.0))[0].retry_offer["delayMs"] == 0.0


_ENDS: dict[str, Callable[[StreamState], Effects]] = {
    "ended": lambda stream: stream.on_ended(ended(0), 1.0),
    "failed": lambda stream: stream.on_failed(SERVER),
    "lost": lambda stream: stream.on_lost(1.0),
    "retry": lambda stream: stream.on_retry(retry(), NEXT_KEY, 1.0),
}


@pytest.mark.parametrize("event", list(_ENDS))
def test_every_end_closes_a_cancelled_call_and_leaves_a_closed_one(event: str) -> None:
    """Nothing more reaches the application."""
    for phase in (Phase.CANCELLING, Phase.CLOSED):
        stream = in_phase(phase)
        waiting = taken(stream)
        assert _ENDS[event](stream) is NOTHING
        assert stream.phase is Phase.CLOSED
        assert len(waiting) == 1
        assert taken(stream) == []


# --- RETRY ----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [*LIVE, Phase.HELD])
def test_a_retry_of_what_nobody_has_seen_waits_for_its_start(phase: Phase) -> None:
    """What arrived is forgotten, the old attempt done, the offer told."""
    stream = in_phase(phase, "policy")
    if phase is Phase.OPEN:
        give(stream, 0, texts(0, 1))
    effects = stream.on_retry(retry(), NEXT_KEY, 1.0)
    assert kinds(effects) == [Done, RetryOffered]
    assert sent(effects)[0].calls[0].attempt == 0
    assert (stream.phase, stream.attempt, stream.stream_key) == (Phase.BACKOFF, 1, NEXT_KEY)
    assert taken(stream) == []
    assert kinds(stream.on_retry_started(retry_started(), 1.1)) == [RetryBegan, Open]
    assert (stream.phase, stream.begun) == (Phase.OPENING, 2)


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.TAIL, Phase.HELD])
def test_a_retry_of_what_was_seen_is_turned_down(phase: Phase) -> None:
    """The failure is delivered and the offered attempt cancelled."""
    stream = in_phase(phase, "policy", seen=True)
    effects = stream.on_retry(retry(), NEXT_KEY, 1.0)
    assert kinds(effects) == [Done, Cancel, Wake]
    assert [sent(effects)[0].calls[0].attempt, sent(effects)[1].attempt] == [0, 1]
    assert finish_of(stream).failure == SERVER
    assert stream.phase is Phase.CANCELLING
    assert stream.begun == 1


def test_what_is_assembled_to_the_end_may_always_be_repeated() -> None:
    """`generate` takes chunks but shows none."""
    stream = a_stream("policy", replayable=True)
    give(stream, 0, texts(0, 1))
    taken(stream)
    assert kinds(stream.on_retry(retry(), NEXT_KEY, 1.0)) == [Done, RetryOffered]


def test_a_second_offer_replaces_the_first() -> None:
    """There is no old attempt to be done."""
    stream = in_phase(Phase.BACKOFF)
    assert kinds(stream.on_retry(retry(retry_id="other"), KEY, 1.0)) == [RetryOffered]
    assert stream.phase is Phase.BACKOFF


def test_an_offer_made_again_is_not_told_again() -> None:
    """After a restart the delay is another, and only the first broker knew the failure."""
    stream = in_phase(Phase.BACKOFF)
    unknown = LlmFailure("before the restart", Code.UNKNOWN)
    assert kinds(stream.on_retry(retry(delay_ms=5.0, failure=unknown), KEY, 1.0)) == []
    assert stream.phase is Phase.BACKOFF
    (began, _) = stream.on_retry_started(retry_started(), 1.0)
    assert isinstance(began, RetryBegan)
    assert (began.notice.delay_ms, began.notice.failure.code) == (5.0, "SERVER")


def test_an_offer_made_again_keeps_its_key() -> None:
    """An `OPEN` with it may be under way; another offer begins under a key of its own."""
    stream = in_phase(Phase.BACKOFF)
    key = sent(stream.speak(0.5))[0].stream_key
    other = StreamKey(b"o" * 8)
    stream.on_retry(retry(delay_ms=5.0), other, 1.0)
    assert stream.stream_key == key
    stream.on_retry(retry(retry_id="other"), other, 1.1)
    assert stream.stream_key == other


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.BACKOFF])
def test_a_start_nobody_was_offered_is_ignored(phase: Phase) -> None:
    """It is late, or about another retry."""
    stream = in_phase(phase)
    assert stream.on_retry_started(retry_started(), 1.0) is NOTHING
    assert stream.phase is phase


def test_a_start_of_another_retry_is_ignored() -> None:
    """Its id differs."""
    stream = in_phase(Phase.BACKOFF)
    assert stream.on_retry_started(retry_started(retry_id="other"), 1.0) is NOTHING
    assert stream.phase is Phase.BACKOFF


# --- cancel ---------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [*LIVE, Phase.HELD, Phase.BACKOFF])
def test_cancel_is_final_at_once(phase: Phase) -> None:
    """One aborted finish, nothing that waited; the broker is told until it confirms."""
    stream = in_phase(phase)
    if phase is Phase.OPEN:
        give(stream, 0, texts(0, 3))
    assert kinds(stream.cancel(1.0)) == [Cancel, Wake]
    assert stream.phase is Phase.CANCELLING
    assert stream.cancel(1.0) is NOTHING
    assert finish_of(stream).kind == "aborted"


@pytest.mark.parametrize("phase", [Phase.CANCELLING, Phase.CLOSED])
def test_cancel_of_what_is_over_does_nothing(phase: Phase) -> None:
    """It may be said twice, and too late."""
    stream = in_phase(phase)
    assert stream.cancel(1.0) is NOTHING
    assert stream.phase is phase


def test_cancel_of_what_was_never_sent_tells_nobody() -> None:
    """The broker has not heard of it."""
    stream = in_phase(Phase.OPENING)
    stream.was_sent = False
    assert kinds(stream.cancel(1.0)) == [Wake]
    assert stream.phase is Phase.CLOSED


@pytest.mark.parametrize("phase", list(Phase))
def test_giving_up_closes_every_call_and_tells_nobody(phase: Phase) -> None:
    """There is no broker to tell."""
    stream = in_phase(phase)
    was_over = stream.is_over
    effects = stream.give_up(SERVER)
    assert kinds(effects) == ([] if was_over else [Wake])
    assert stream.phase is Phase.CLOSED


# --- saying it again ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "kind"), [(Phase.OPENING, Open), (Phase.CANCELLING, Cancel), (Phase.BACKOFF, Open)]
)
def test_what_is_unconfirmed_is_repeated_with_growing_pauses(phase: Phase, kind: type) -> None:
    """0.5 s, doubling to 8 s."""
    stream = in_phase(phase)
    pauses: list[float] = []
    now_s = stream.next_deadline_s()
    assert stream.on_tick(now_s - 0.01) is NOTHING
    for _ in range(6):
        assert kinds(stream.on_tick(now_s)) == [kind]
        pauses.append(stream.next_deadline_s() - now_s)
        now_s = stream.next_deadline_s()
    assert pauses == pytest.approx([1.0, 2.0, 4.0, 8.0, 8.0, 8.0])


def test_the_broker_is_left_to_say_when_a_delay_is_over() -> None:
    """Only its silence, well after the delay, makes the client speak."""
    stream = in_phase(Phase.BACKOFF)
    assert stream.next_deadline_s() == 0.1 + REPEAT_MAX_S


def test_a_quiet_call_is_restated_ever_more_rarely() -> None:
    """1 s, doubling to 30 s; progress starts it over."""
    stream = in_phase(Phase.OPEN)
    pauses: list[float] = []
    now_s = 0.0
    for _ in range(7):
        due_s = stream.quiet_due_s()
        pauses.append(due_s - now_s)
        assert not stream.is_quiet(due_s - 0.01)
        assert stream.is_quiet(due_s)
        stream.restated(due_s)
        now_s = due_s
    assert all(
        wanted <= pause <= wanted + 0.25
        for pause, wanted in zip(pauses, (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, QUIET_MAX_S), strict=True)
    )
    give(stream, 0, texts(0, 1), now_s=now_s + 1.0)
    assert stream.quiet_due_s() <= now_s + 1.0 + QUIET_AFTER_S + 0.25


def test_a_restatement_holds_all_totals() -> None:
    """And so counts as credit."""
    stream = in_phase(Phase.OPEN)
    give(stream, 0, texts(0, 1))
    give(stream, 1, texts(1, 1))
    stream.take(0.0)
    stream.take(0.0)
    entry = stream.restated(1.0)
    assert (entry.received, entry.consumed, entry.consumed_bytes) == (2, 1, 512)
    assert entry.stream_key == KEY
    assert not stream.intake.owes_credit


@pytest.mark.parametrize("phase", [Phase.OPENING, Phase.BACKOFF, Phase.CANCELLING, Phase.CLOSED])
def test_nothing_else_is_restated(phase: Phase) -> None:
    """They have repeats of their own, or nothing to say."""
    stream = in_phase(phase)
    assert not stream.is_quiet(1000.0)
    assert not stream.has_position


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        (Phase.OPENING, [Open]),
        (Phase.OPEN, []),
        (Phase.TAIL, []),
        (Phase.HELD, []),
        (Phase.BACKOFF, [Open]),
        (Phase.CANCELLING, [Cancel]),
        (Phase.CLOSED, []),
    ],
)
def test_what_a_new_broker_is_told(phase: Phase, said: list[type]) -> None:
    """Calls with a position are restated by the caller instead."""
    stream = in_phase(phase)
    assert kinds(stream.speak(1.0)) == said
    assert stream.has_position is (phase in {Phase.OPEN, Phase.TAIL, Phase.HELD})


def test_a_proven_lane_resumes_at_once_what_is_behind() -> None:
    """The rest waits for nothing."""
    stream = in_phase(Phase.OPEN)
    assert stream.on_proof(1.0) is NOTHING
    stream.on_sent(3, 1.0)
    assert kinds(stream.on_proof(1.0)) == [Resume]


def test_a_stream_is_suspect_after_a_second_behind() -> None:
    """Then the lane itself may be deaf."""
    stream = in_phase(Phase.OPEN)
    assert not stream.is_suspect(10.0)
    stream.on_sent(3, 10.0)
    assert not stream.is_suspect(10.9)
    assert stream.is_suspect(11.0)


def test_the_body_is_kept_only_while_it_may_be_sent_again() -> None:
    """Once part of an unrecovered call was seen, it never is."""
    for recovery, body in (("none", b""), ("policy", b"body")):
        stream = in_phase(Phase.OPEN, recovery)
        give(stream, 0, texts(0, 4))
        taken(stream)
        frames = sent(stream._open(1.0))  # pyright: ignore[reportPrivateUsage]  # what it would send
        assert frames[0].body == body


def test_nothing_is_due_for_a_closed_call() -> None:
    """It may be forgotten."""
    stream = in_phase(Phase.CLOSED)
    assert stream.next_deadline_s() == float("inf")
    assert stream.on_tick(1000.0) is NOTHING


def test_a_failure_that_is_none_says_so() -> None:
    """A control frame may carry any map."""
    assert failure_from(SERVER.to_dict()) == SERVER
    assert failure_from({"code": 5}).code == "UNKNOWN"
