"""What one stream says again, and to a new broker."""

from __future__ import annotations

import pytest
from trunkline.core.effects import NOTHING
from trunkline.core.giving_up import is_suspect
from trunkline.core.phase import Phase
from trunkline_protocol.frames import Cancel, Open, Resume
from trunkline_protocol.limits import QUIET_AFTER_S, QUIET_MAX_S, REPEAT_MAX_S

from tests.unit.client.a_stream import KEY, give, in_phase, kinds, sent, taken, texts


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
    assert not is_suspect(stream, 10.0)
    stream.on_sent(3, 10.0)
    assert not is_suspect(stream, 10.9)
    assert is_suspect(stream, 11.0)


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
