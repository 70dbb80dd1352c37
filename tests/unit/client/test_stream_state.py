"""The table of SPEC.md section 5.2, every phase with every event, and the rules beside it."""

from __future__ import annotations

import pytest
from trunkline.core.effects import NOTHING, Count, Wake
from trunkline.core.intake import MAX_WAITING_CHUNKS
from trunkline.core.phase import Phase
from trunkline.core.readings import failure_from
from trunkline.core.stream_state import StreamState
from trunkline_protocol.chunks import BlockEnd, Finish, FinishReason, TextDelta
from trunkline_protocol.codec import decode_lane_header, encode_lane
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.frames import Cancel, Credit, Done, Resume
from trunkline_protocol.limits import RESUME_AFTER_S

from tests.unit.client.a_phase import ABORTED, LIVE, finish_of
from tests.unit.client.a_stream import (
    ERROR,
    KEY,
    SERVER,
    STOP,
    a_stream,
    accepted,
    give,
    in_phase,
    kinds,
    lane,
    sent,
    taken,
    texts,
)

DEAF = (Phase.HELD, Phase.BACKOFF, Phase.CANCELLING, Phase.CLOSED)


def at(stream: StreamState) -> int:
    return stream.intake.expected


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


def test_a_failure_that_is_none_says_so() -> None:
    """A control frame may carry any map."""
    assert failure_from(SERVER.to_dict()) == SERVER
    assert failure_from({"code": 5}).code == "UNKNOWN"
