"""Questions that are answered by nothing: suspected, then hopeless, and never because of a stop."""

from __future__ import annotations

from trunkline.core.asking import SUSPECT_S, UNANSWERED_S, Asking

NEVER_S = float("-inf")


def asked(count: int, every_s: float = 2.0) -> Asking:
    """Return questions at 0, `every_s` … of a broker that is heard all the time."""
    asking = Asking()
    for at in range(count):
        asking.ask(at * every_s, NEVER_S, at * every_s)
    return asking


def test_three_unanswered_questions_are_suspected_once() -> None:
    """If they took ten seconds; an answer begins anew."""
    assert not asked(3, 8.0).take_suspicion()
    asking = asked(5)
    assert not asking.take_suspicion()
    asking.ask(SUSPECT_S, NEVER_S, SUSPECT_S)
    assert asking.take_suspicion()
    assert not asking.take_suspicion()
    asking.answered()
    assert asking.count == 0
    assert not asking.take_suspicion()


def test_a_minute_of_them_is_hopeless() -> None:
    assert not asked(30).is_hopeless
    assert asked(int(UNANSWERED_S / 2.0) + 1).is_hopeless


def test_a_broker_that_stands_still_is_asked_once() -> None:
    """And a stop counts as one pause at most."""
    asking = Asking()
    for at in range(100):
        asking.ask(-1.0, NEVER_S, float(at))
    assert asking.count == 1
    for at in range(1000, 1006):
        asking.ask(float(at), NEVER_S, float(at))
    assert not asking.is_hopeless


def test_chunks_are_answers() -> None:
    asking = asked(40)
    asking.ask(81.0, 80.0, 81.0)
    assert asking.count == 1
    assert not asking.is_hopeless


def test_a_question_that_was_not_sent_is_none() -> None:
    asking = asked(2)
    asking.take_back()
    assert asking.count == 1
    asking.take_back()
    asking.take_back()
    assert asking.count == 0
