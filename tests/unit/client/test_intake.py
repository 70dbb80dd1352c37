"""Positions, what waits, and the credit that is owed."""

from __future__ import annotations

from trunkline.core.intake import Intake
from trunkline_protocol.chunks import Finish, FinishReason
from trunkline_protocol.limits import MIN_FRAME_COST_BYTES, RESUME_AFTER_S

from tests.unit.client.a_stream import texts


def an_intake(chunks: int = 10, size: int = 10_000) -> Intake:
    intake = Intake(0.0)
    intake.window_chunks, intake.window_bytes = chunks, size
    return intake


def test_frames_leave_in_the_order_in_which_they_came() -> None:
    """Each as its own list; nothing is left."""
    intake = an_intake()
    intake.add(texts(0, 2), 2, 40, 1.0)
    intake.add(texts(2, 1), 1, 40, 1.0)
    assert (intake.expected, intake.waiting_chunks, intake.has_waiting) == (3, 3, True)
    assert intake.take() == texts(0, 2)
    assert intake.take() == texts(2, 1)
    assert intake.take() is None
    assert (intake.waiting_chunks, intake.has_waiting) == (0, False)


def test_a_frame_is_consumed_whole_and_costs_at_least_the_minimum() -> None:
    """Taking it does not consume it yet, and consuming twice counts once."""
    intake = an_intake()
    intake.add(texts(0, 2), 2, 40, 1.0)
    intake.add(texts(2, 1), 1, 5000, 1.0)
    intake.take()
    assert intake.consumed == 0
    intake.consume()
    intake.consume()
    assert (intake.consumed, intake.consumed_bytes) == (2, MIN_FRAME_COST_BYTES)
    intake.take()
    intake.consume()
    assert (intake.consumed, intake.consumed_bytes) == (3, MIN_FRAME_COST_BYTES + 5000)


def test_an_end_of_our_own_has_no_position() -> None:
    """No worker sent it, so no total grows."""
    intake = an_intake()
    end = Finish(FinishReason("stop"))
    intake.add_end(end)
    assert intake.take() == [end]
    intake.consume()
    assert (intake.expected, intake.consumed, intake.consumed_bytes) == (0, 0, 0)


def test_what_waits_can_be_dropped() -> None:
    """Positions stay."""
    intake = an_intake()
    intake.add(texts(0, 2), 2, 40, 1.0)
    intake.drop_waiting()
    assert (intake.take(), intake.expected, intake.waiting_chunks) == (None, 2, 0)


def test_credit_is_owed_from_half_of_either_window() -> None:
    """Not below, and not again before as much was consumed again."""
    intake = an_intake(chunks=4, size=10_000)
    for first in range(4):
        intake.add(texts(first, 1), 1, 40, 1.0)
    owed: list[bool] = []
    for _ in range(4):
        intake.take()
        intake.consume()
        owed.append(intake.owes_credit)
        if intake.owes_credit:
            intake.note_credited()
    assert owed == [False, True, False, True]
    by_bytes = an_intake(chunks=100, size=10_000)
    by_bytes.add(texts(0, 1), 1, 5000, 1.0)
    by_bytes.take()
    by_bytes.consume()
    assert by_bytes.owes_credit


def test_nothing_consumed_owes_nothing() -> None:
    """Not even under an unknown window."""
    assert not Intake(0.0).owes_credit


def test_being_behind_counts_from_when_it_was_learned() -> None:
    """A stream that was quiet for long is not late the moment more is announced."""
    intake = an_intake()
    intake.note_sent(3, 10.0)
    assert intake.is_behind
    assert intake.resume_due_s() == 10.0 + RESUME_AFTER_S
    intake.note_sent(5, 10.2)
    assert intake.resume_due_s() == 10.0 + RESUME_AFTER_S
    intake.note_sent(2, 10.3)
    assert intake.known_next == 5


def test_a_resume_is_outstanding_until_all_it_asked_for_is_here() -> None:
    """Its pause starts when it was said, or at the last progress."""
    intake = an_intake()
    intake.note_sent(3, 1.0)
    assert not intake.is_resuming
    intake.note_resumed(1.5)
    assert intake.is_resuming
    assert intake.resume_due_s() == 1.5 + RESUME_AFTER_S
    intake.add(texts(0, 2), 2, 40, 1.6)
    assert intake.is_resuming
    assert intake.resume_due_s() == 1.6 + RESUME_AFTER_S
    intake.add(texts(2, 1), 1, 40, 1.7)
    assert not intake.is_resuming
    assert not intake.is_behind
