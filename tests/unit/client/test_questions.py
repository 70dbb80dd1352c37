"""Queries: asked, answered once, repeated only where that is harmless."""

from __future__ import annotations

from trunkline.core.effects import NOTHING, Answered, Count
from trunkline.core.questions import Questions
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.frames import Query, QueryCancel, Reply
from trunkline_protocol.ids import QueryId
from trunkline_protocol.limits import MAX_OPEN_QUERIES_PER_CLIENT

from tests.unit.client.a_stream import SERVER, kinds


def a_query(op: str = "models", number: int = 1) -> Query:
    return Query(QueryId(bytes([number]) * 16), op)


def test_a_query_is_sent_and_answered_once() -> None:
    """A second answer is only counted."""
    questions = Questions()
    query = a_query()
    assert kinds(questions.ask(query, 5.0, 0.0, can_send=True)) == [Query]
    assert questions.next_deadline_s() == 0.5
    reply = Reply(query.query, body=b"x")
    assert questions.on_reply(reply, None) == [Answered(query.query, b"x")]
    assert questions.on_reply(reply, None) == [Count("late_replies")]
    assert len(questions) == 0
    assert questions.next_deadline_s() == float("inf")


def test_a_query_waits_for_a_broker() -> None:
    """It goes out when one answers."""
    questions = Questions()
    assert questions.ask(a_query("swap"), 5.0, 0.0, can_send=False) is NOTHING
    assert kinds(questions.speak(1.0, is_new_epoch=True)) == [Query]


def test_only_harmless_queries_are_asked_again() -> None:
    """One that changes something fails when another broker answers, and waits for the same one."""
    questions = Questions()
    questions.ask(a_query("models", 1), 5.0, 0.0, can_send=True)
    questions.ask(a_query("swap", 2), 5.0, 0.0, can_send=True)
    assert kinds(questions.speak(1.0, is_new_epoch=False)) == [Query]
    effects = questions.speak(1.0, is_new_epoch=True)
    assert kinds(effects) == [Query, Answered]
    assert len(questions) == 1


def test_a_call_is_prepared_also_if_the_broker_is_restarted_meanwhile() -> None:
    """What the lost answer granted is released by its own lease."""
    questions = Questions()
    query = a_query("prepareCall")
    questions.ask(query, 5.0, 0.0, can_send=True)
    assert kinds(questions.speak(1.0, is_new_epoch=True)) == [Query]
    assert questions.on_reply(Reply(query.query, body=b"x"), None) == [Answered(query.query, b"x")]


def test_a_query_times_out() -> None:
    """The answerer is told, if it may have heard of it."""
    questions = Questions()
    questions.ask(a_query("models", 1), 5.0, 0.0, can_send=True)
    questions.ask(a_query("models", 2), 6.0, 0.0, can_send=False)
    assert questions.on_tick(4.9, 0.0, can_send=True) == []
    assert kinds(questions.on_tick(5.0, 0.0, can_send=True)) == [QueryCancel, Answered]
    assert kinds(questions.on_tick(6.0, 0.0, can_send=True)) == [Answered]


def test_an_abandoned_query_is_called_off() -> None:
    """Only where somebody works on it and can be told."""
    for was_sent, can_send, said in ((True, True, 1), (False, True, 0), (True, False, 0)):
        questions = Questions()
        query = a_query()
        questions.ask(query, 5.0, 0.0, can_send=was_sent)
        assert len(questions.abandon(query.query, can_send=can_send)) == said
        assert questions.abandon(query.query, can_send=can_send) is NOTHING
        assert len(questions) == 0


def test_a_refusal_is_an_answer() -> None:
    """Of a query that waits."""
    questions = Questions()
    query = a_query()
    questions.ask(query, 5.0, 0.0, can_send=True)
    assert questions.on_refused(query.query, SERVER) == [Answered(query.query, b"", SERVER)]
    assert questions.on_refused(query.query, SERVER) is NOTHING


def test_open_queries_are_bounded() -> None:
    """The one too many is answered at once."""
    questions = Questions()
    for number in range(MAX_OPEN_QUERIES_PER_CLIENT):
        query = Query(QueryId(number.to_bytes(16, "big")), "models")
        questions.ask(query, 5.0, 0.0, can_send=True)
    effects = questions.ask(a_query(), 5.0, 0.0, can_send=True)
    assert isinstance(effects[0], Answered)
    assert effects[0].failure is not None
    assert effects[0].failure.code == "OVERLOADED"


def test_giving_up_answers_all() -> None:
    """Nobody waits for ever."""
    questions = Questions()
    questions.ask(a_query("models", 1), 5.0, 0.0, can_send=True)
    questions.ask(a_query("swap", 2), 5.0, 0.0, can_send=True)
    effects = questions.give_up("TRANSPORT", "gone")
    assert [effect.failure for effect in effects if isinstance(effect, Answered)] == [
        LlmFailure("gone", "TRANSPORT")
    ] * 2
    assert len(questions) == 0


def test_a_harmless_query_is_repeated_until_it_is_answered() -> None:
    """As `OPEN`: with growing pauses, and only if the broker has read what was said before."""
    questions = Questions()
    questions.ask(a_query("models", 1), 60.0, 0.0, can_send=True)
    questions.ask(a_query("swap", 2), 60.0, 0.0, can_send=True)
    said: list[float] = []
    while (at_s := questions.next_deadline_s()) < 20.0:
        if kinds(questions.on_tick(at_s, at_s, can_send=True)) == [Query]:
            said.append(at_s)
    assert said == [0.5, 1.5, 3.5, 7.5, 15.5]
    assert not questions.take_unheard()
    at_s = questions.next_deadline_s()
    assert questions.on_tick(at_s, 15.0, can_send=True) == []
    assert questions.take_unheard()
    assert not questions.take_unheard()


def test_a_query_that_was_not_sent_is_sent_later() -> None:
    """Whatever it asks for: nobody has heard it."""
    for op in ("models", "swap"):
        questions = Questions()
        query = a_query(op)
        questions.ask(query, 60.0, 0.0, can_send=True)
        questions.on_unsent(query, 0.0)
        assert questions.next_deadline_s() == 0.5
        assert kinds(questions.on_tick(0.5, -1.0, can_send=True)) == [Query]
        questions.on_unsent(query, 0.5)
        assert questions.on_tick(1.0, -1.0, can_send=False) == []
        assert kinds(questions.speak(2.0, is_new_epoch=True)) == [Query]
        assert questions.abandon(query.query, can_send=True) != NOTHING
        questions.on_unsent(query, 3.0)  # nobody waits any more
        assert questions.next_deadline_s() == float("inf")


def test_the_answerer_is_told_later_that_nobody_waits() -> None:
    """If that did not go out, or there was no broker; at most as many as may be open."""
    questions = Questions()
    query = a_query()
    questions.ask(query, 60.0, 0.0, can_send=True)
    questions.on_unsent(QueryCancel(query.query), 1.0)
    assert questions.is_busy
    questions.abandon(query.query, can_send=False)
    assert questions.next_deadline_s() == 1.5
    assert questions.on_tick(1.5, 0.0, can_send=False) == []
    assert questions.next_deadline_s() == float("inf")
    assert kinds(questions.speak(2.0, is_new_epoch=False)) == [QueryCancel]
    questions.on_unsent(QueryCancel(query.query), 3.0)
    assert kinds(questions.on_tick(3.5, 0.0, can_send=True)) == [QueryCancel]
    assert not questions.is_busy
    for number in range(MAX_OPEN_QUERIES_PER_CLIENT + 1):
        questions.on_unsent(QueryCancel(QueryId(number.to_bytes(16, "big"))), 4.0)
    assert len(questions.speak(5.0, is_new_epoch=False)) == MAX_OPEN_QUERIES_PER_CLIENT
