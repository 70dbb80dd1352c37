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
    assert questions.next_deadline_s() == 5.0
    reply = Reply(query.query, body=b"x")
    assert questions.on_reply(reply, None) == [Answered(query.query, b"x")]
    assert questions.on_reply(reply, None) == [Count("late_replies")]
    assert len(questions) == 0
    assert questions.next_deadline_s() == float("inf")


def test_a_query_waits_for_a_broker() -> None:
    """It goes out when one answers."""
    questions = Questions()
    assert questions.ask(a_query("swap"), 5.0, 0.0, can_send=False) is NOTHING
    assert kinds(questions.speak(is_new_epoch=True)) == [Query]


def test_only_harmless_queries_are_asked_again() -> None:
    """One that changes something fails when another broker answers, and waits for the same one."""
    questions = Questions()
    questions.ask(a_query("models", 1), 5.0, 0.0, can_send=True)
    questions.ask(a_query("swap", 2), 5.0, 0.0, can_send=True)
    assert kinds(questions.speak(is_new_epoch=False)) == [Query]
    effects = questions.speak(is_new_epoch=True)
    assert kinds(effects) == [Query, Answered]
    assert len(questions) == 1


def test_a_call_is_prepared_also_if_the_broker_is_restarted_meanwhile() -> None:
    """What the lost answer granted is released by its own lease."""
    questions = Questions()
    query = a_query("prepareCall")
    questions.ask(query, 5.0, 0.0, can_send=True)
    assert kinds(questions.speak(is_new_epoch=True)) == [Query]
    assert questions.on_reply(Reply(query.query, body=b"x"), None) == [Answered(query.query, b"x")]


def test_a_query_times_out() -> None:
    """The answerer is told, if it may have heard of it."""
    questions = Questions()
    questions.ask(a_query("models", 1), 5.0, 0.0, can_send=True)
    questions.ask(a_query("models", 2), 6.0, 0.0, can_send=False)
    assert questions.on_tick(4.9, can_send=True) == []
    assert kinds(questions.on_tick(5.0, can_send=True)) == [QueryCancel, Answered]
    assert kinds(questions.on_tick(6.0, can_send=True)) == [Answered]


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
