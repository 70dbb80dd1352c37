"""One stream and what the broker says of it, in every phase."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trunkline.core.effects import NOTHING, Effects, RetryBegan, RetryOffered, Wake
from trunkline.core.phase import Phase
from trunkline.core.stream_state import StreamState
from trunkline_protocol.chunks import Finish, FinishReason
from trunkline_protocol.failure import Code, LlmFailure
from trunkline_protocol.frames import Cancel, Done, Open, Resume
from trunkline_protocol.ids import StreamKey
from trunkline_protocol.limits import QUIET_AFTER_S, RESUME_AFTER_S

from tests.unit.client.a_phase import ABORTED, LIVE, finish_of
from tests.unit.client.a_stream import (
    CALL,
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
    retry,
    retry_started,
    sent,
    taken,
    texts,
)

_ENDS: dict[str, Callable[[StreamState], Effects]] = {
    "ended": lambda stream: stream.on_ended(ended(0), 1.0),
    "failed": lambda stream: stream.on_failed(SERVER),
    "lost": lambda stream: stream.on_lost(1.0),
    "retry": lambda stream: stream.on_retry(retry(), NEXT_KEY, 1.0),
}


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


def test_a_tail_that_another_client_took_over_ends_in_aborted() -> None:
    """The worker goes on for the other client, so nothing is said of its end."""
    stream = in_phase(Phase.TAIL)
    stream.on_failed(ABORTED)
    reason = finish_of(stream)
    assert reason.kind == "aborted"
    assert reason.failure == ABORTED


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


@pytest.mark.parametrize("event", list(_ENDS))
def test_every_end_closes_a_cancelled_call_and_leaves_a_closed_one(event: str) -> None:
    """Nothing more reaches the application."""
    for phase in (Phase.CANCELLING, Phase.CLOSED):
        stream = in_phase(phase)
        waiting = taken(stream)
        effects = _ENDS[event](stream)
        if event == "retry" and phase is Phase.CANCELLING:  # the offer is turned down, too
            assert sent(effects) == [Cancel(CALL, 1)]
            assert stream.phase is Phase.CANCELLING
        else:
            assert effects is NOTHING
            assert stream.phase is Phase.CLOSED
        assert len(waiting) == 1
        assert taken(stream) == []


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
