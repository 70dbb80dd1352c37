"""Requests in whose workers' deaths they ran: who has a turn, who is barred, who is cleared."""

from __future__ import annotations

from uuid import uuid4

import pytest
from trunkline_broker.core.suspicion import BARRED_S, MAX_SUSPECTS, Suspicion, key_of
from trunkline_protocol.codec import pack_body

A, B, C = b"a", b"b", b"c"


def test_a_key_is_that_of_equal_requests() -> None:
    """Route, model and body count; of a large body its ends and its length."""
    large = bytes(200_000)
    keys = {
        key_of("p", "m", b"body"),
        key_of("q", "m", b"body"),
        key_of("p", "n", b"body"),
        key_of("p", "m", b"other"),
        key_of("p", "m\ud800", b"other"),
        key_of("p", "m", large),
        key_of("p", "m", large + b"\0"),
        key_of("p", "m", b"1" + large[1:]),
        key_of("p", "m", large[1:] + b"1"),
    }
    assert len(keys) == 9
    assert key_of("p", "m", memoryview(large)) == key_of("p", "m", large)


def test_the_random_ids_of_a_request_do_not_count() -> None:
    """An agent that sends the same text again draws new ids; other ids and texts do count."""

    def key(text: str = "hello", session: str | None = None, name: str = "id") -> bytes:
        message = {name: str(uuid4()), "content": [{"type": "text", "text": text}]}
        body = {"messages": [message, dict(message)], "sessionId": session}
        return key_of("p", "m", pack_body(body))

    assert key() == key()
    assert key(session=str(uuid4())) == key(session=str(uuid4()))
    assert key(session="one") != key(session="two")
    assert key(name="key") != key(name="key")
    texts = [str(uuid4()), str(uuid4())]
    assert key(texts[0]) != key(texts[1])
    large = "x" * 200_000
    assert key(large) == key(large)


def test_the_second_death_alone_bars_a_request() -> None:
    """For a minute; what ran beside it is cleared."""
    suspicion = Suspicion()
    assert suspicion.on_death({A: 0.2, B: 5.0}, 0.0) == frozenset()
    assert suspicion.is_suspect(A, 1.0)
    assert suspicion.is_suspect(B, 1.0)
    assert suspicion.begin(A, 1.0) == pytest.approx(1.3)
    assert suspicion.on_death({A: 0.2, C: 9.0}, 1.2) == {A}
    assert suspicion.barred_s(A, 1.2) == BARRED_S
    assert not suspicion.is_suspect(A, 1.3)
    assert not suspicion.is_suspect(B, 1.3)
    assert not suspicion.is_suspect(C, 1.3)
    assert suspicion.on_death({A: 0.1}, 1.4) == frozenset()  # it had begun before it was barred
    assert suspicion.barred_s(A, 1.2 + BARRED_S) == 0.0
    assert len(suspicion) == 0


def test_a_request_that_ran_for_longer_than_before_is_a_bystander() -> None:
    """However many workers die under it."""
    suspicion = Suspicion()
    for number in range(10):
        fresh = b"fresh %d" % number
        assert suspicion.on_death({A: 3.0**number, fresh: 0.1}, 0.1 * number) == frozenset()
        assert suspicion.is_suspect(A, 0.1 * number)


def test_of_several_on_trial_the_one_that_ran_for_as_long_as_before_is_named() -> None:
    """A request crashes at the same point again; two that may be it are tried once more."""
    for other_s, barred in ((9.0, {A}), (5.2, set[bytes]())):
        suspicion = Suspicion()
        suspicion.on_death({A: 1.0, B: 5.0}, 0.0)
        assert suspicion.on_death({A: 1.1, B: other_s}, 10.0) == barred


def test_a_request_beside_which_a_younger_one_ran_is_not_barred() -> None:
    """Its turn was over, so the younger one may be the culprit: the next turn will tell."""
    suspicion = Suspicion()
    suspicion.on_death({A: 5.0}, 0.0)
    assert suspicion.begin(A, 1.0) == 3.0
    assert suspicion.on_death({A: 5.0, B: 1.0}, 6.0) == frozenset()
    assert suspicion.begin(A, 7.0) == pytest.approx(8.5)
    assert suspicion.on_death({A: 5.0, C: 60.0}, 12.0) == {A}


def test_two_on_trial_at_once_are_tried_again_one_by_one() -> None:
    """Their turns were too short to tell; now a turn lasts as long as the suspicion does."""
    suspicion = Suspicion()
    suspicion.on_death({A: 10.0, B: 10.0}, 0.0)
    assert suspicion.begin(A, 1.0) == 3.0
    assert suspicion.begin(B, 4.0) == 3.0
    assert suspicion.on_death({A: 13.0, B: 7.0}, 11.0) == frozenset()
    assert suspicion.begin(B, 12.0) == pytest.approx(11.5)
    assert suspicion.begin(A, 24.0) == pytest.approx(20.5)
    assert suspicion.on_death({A: 10.0, B: 22.0}, 34.0) == {A}
    assert not suspicion.is_suspect(B, 35.0)


def test_of_several_on_trial_the_one_that_was_tried_before_is_named() -> None:
    """It is in its long turn; the others have had one death."""
    suspicion = Suspicion()
    suspicion.on_death({A: 10.0, B: 10.0}, 0.0)
    suspicion.on_death({A: 13.0, B: 7.0}, 11.0)
    suspicion.on_death({C: 10.0}, 12.0)
    assert suspicion.on_death({A: 5.0, C: 6.0}, 20.0) == {A}


def test_a_crowd_of_suspects_has_short_turns() -> None:
    """All together wait for some 15 s, so none of them waits for longer than a call may."""
    suspicion = Suspicion()
    crowd = {bytes([number]): 30.0 + number for number in range(100)}
    suspicion.on_death(crowd, 0.0)
    assert sum(suspicion.begin(key, 1.0) for key in crowd) == pytest.approx(15.0)


def test_the_likeliest_culprit_is_tried_first() -> None:
    """The one that had run for the shortest time; one that was cleared need not wait at all."""
    suspicion = Suspicion()
    suspicion.on_death({A: 3.0, B: 0.2}, 0.0)
    assert sorted((A, B, C), key=lambda key: suspicion.order(key, 1.0)) == [C, B, A]


def test_suspects_are_forgotten_after_a_minute_and_bounded() -> None:
    """Unless they run again before that."""
    suspicion = Suspicion()
    suspicion.on_death({A: 1.0}, 0.0)
    suspicion.on_death({B: 1.0}, 30.0)
    assert suspicion.begin(B, 89.0) > 0
    assert not suspicion.is_suspect(A, 60.0)
    assert suspicion.is_suspect(B, 100.0)
    assert suspicion.begin(C, 100.0) == 0.0
    suspicion.on_death({C: 1.0}, 300.0)
    assert len(suspicion) == 1
    suspicion.on_death({number.to_bytes(4, "big"): 1.0 for number in range(9000)}, 301.0)
    assert len(suspicion) == MAX_SUSPECTS
    assert suspicion.high_water == MAX_SUSPECTS
