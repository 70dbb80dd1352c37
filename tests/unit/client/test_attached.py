"""A call that was taken over from another client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from trunkline.core.attached import AttachedStream
from trunkline.core.effects import NOTHING, Count, Effects, Send, Wake
from trunkline.core.phase import Phase
from trunkline.ticket import Ticket
from trunkline_protocol.codec import pack_body
from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.frames import (
    Attach,
    Bye,
    CallRef,
    Cancel,
    Done,
    Failed,
    Lost,
    Resume,
    Snapshot,
)

from tests.unit.client.a_mux import a_mux
from tests.unit.client.a_mux import give as give_mux
from tests.unit.client.a_stream import (
    CALL,
    KEY,
    NEXT_KEY,
    SERVER,
    STOP,
    a_request,
    accepted,
    ended,
    give,
    kinds,
    retry,
    sent,
    taken,
    texts,
)

TOKEN = b"t" * 16
ATTACH = Send(Attach(CALL, TOKEN, KEY))


def an_attached() -> AttachedStream:
    stream = AttachedStream(CALL, a_request(), KEY, 0.0, TOKEN)
    stream.was_sent = True
    return stream


def a_snapshot(position: int, chunks: Sequence[Any], attempt: int = 0) -> Snapshot:
    body = pack_body([chunk.to_array() for chunk in chunks])
    return Snapshot(CALL, attempt, position, body=body)


def test_it_says_attach_until_a_snapshot_comes() -> None:
    """With growing pauses, as `OPEN`."""
    stream = an_attached()
    assert stream.speak(0.0) == [ATTACH]
    assert stream.on_tick(0.4) == NOTHING
    assert stream.on_tick(0.5) == [ATTACH]
    assert stream.is_attaching
    assert stream.on_snapshot(a_snapshot(7, texts(0, 2), attempt=3), 1.0) == [*stream.woken]
    assert not stream.is_attaching
    assert (stream.phase, stream.attempt) == (Phase.OPEN, 3)
    assert (stream.intake.expected, stream.intake.consumed) == (7, 7)
    assert stream.take(1.0)[0] == texts(0, 2)
    assert stream.take(1.0) == ([], NOTHING)
    assert not stream.intake.owes_credit
    assert stream.has_position
    assert stream._open(1.0) == NOTHING
    assert stream.on_snapshot(a_snapshot(9, ()), 1.0) == [Count("repeated_snapshots")]


def test_a_snapshot_with_the_finish_is_the_whole_call() -> None:
    """The worker may forget it."""
    stream = an_attached()
    effects = stream.on_snapshot(a_snapshot(3, [*texts(0, 1), STOP]), 0.0)
    assert effects == [Send(Done((CallRef(CALL, 0),))), *stream.woken]
    assert stream.take(0.0)[0][-1] == STOP
    assert stream.is_over


@pytest.mark.parametrize("body", [b"\xc1", pack_body(5), pack_body([[99]]), b""])
def test_a_snapshot_of_nonsense_ends_it(body: bytes) -> None:
    """The worker is told to stop."""
    stream = an_attached()
    effects = stream.on_snapshot(Snapshot(CALL, 0, 1, body=body), 0.0)
    assert effects[0] == Send(Cancel(CALL, 0))
    assert stream.take(0.0)[0][0].reason.failure.code == "MALFORMED_RESPONSE"


def test_lost_before_and_after_the_snapshot() -> None:
    """It can't be opened again; cancelled it is just closed."""
    for had_snapshot in (False, True):
        stream = an_attached()
        if had_snapshot:
            stream.on_snapshot(a_snapshot(0, ()), 0.0)
        stream.on_lost(5.0)
        assert stream.take(5.0)[0][-1].reason.failure.code == "STREAM_CLOSED"
    stream = an_attached()
    stream.cancel(0.0)
    assert stream.on_lost(0.0) == NOTHING
    assert stream.phase is Phase.CLOSED


def test_a_ticket_is_one_word_and_reads_back() -> None:
    """Whatever the names are."""
    ticket = Ticket(CALL, TOKEN, "a/b c.d", "ü")
    assert Ticket.parse(ticket.text()) == ticket
    assert len(ticket.text().split()) == 1
    assert TOKEN.hex() not in repr(ticket)


@pytest.mark.parametrize("text", ["", "x", "00.zz.a/b", "00.00.a", "00.00"])
def test_what_is_no_ticket(text: str) -> None:
    """The error does not repeat it."""
    with pytest.raises(LocalProtocolError) as caught:
        Ticket.parse(text)
    assert text not in str(caught.value) or len(text) < 2


def test_before_its_snapshot_nothing_is_a_position_or_an_end() -> None:
    """`ATTACH` is repeated whatever comes; lane frames that overtook are asked for at once."""
    stream = an_attached()
    stream.speak(0.0)
    early: list[Effects] = [
        give(stream, 7, texts(7, 2)),
        give(stream, 0, texts(0, 1)),
        stream.on_accepted(accepted(), 0.1),
        stream.on_queued(0.1),
        stream.on_sent(5, 0.1),
        stream.on_ended(ended(9), 0.1),
    ]
    assert early == [(Count("frames_before_a_snapshot"),)] * len(early)
    assert stream.is_attaching
    assert stream.phase is Phase.OPENING
    assert stream.on_tick(0.5) == [ATTACH]
    effects = stream.on_snapshot(a_snapshot(7, texts(0, 7)), 1.0)
    assert effects == [Send(Resume(CALL, 0, 7)), *stream.woken]
    give(stream, 7, texts(7, 2), now_s=1.1)
    give(stream, 9, [STOP], now_s=1.1)
    assert taken(stream) == [*texts(0, 9), STOP]


@pytest.mark.parametrize("had_snapshot", [False, True])
def test_a_further_attempt_is_turned_down(*, had_snapshot: bool) -> None:
    """Its request is unknown here: the failure is final, and the broker is told."""
    stream = an_attached()
    if had_snapshot:
        stream.on_snapshot(a_snapshot(0, ()), 0.0)
    effects = stream.on_retry(retry(), NEXT_KEY, 1.0)
    assert Send(Cancel(CALL, 1)) in effects
    assert taken(stream)[-1].reason.failure == SERVER
    assert stream.is_over


def test_any_attempt_may_be_refused_before_the_snapshot() -> None:
    """The client does not know which one runs; other frames that name it change nothing."""
    for frame in (Lost(CALL, 3), Failed(CALL, 3, SERVER.to_dict())):
        mux = a_mux()
        stream, effects = mux.attach(CALL, a_request(), TOKEN, 0.0)
        assert kinds(effects) == [Attach]
        assert mux.on_control(ended(4, attempt=3), 0.1) == [Count("frames_of_other_attempts")]
        mux.on_control(frame, 0.2)
        assert stream.is_over
        assert mux.open_count == 0


def test_attaching_is_given_up_while_the_broker_answers() -> None:
    """After the orphan timeout, whatever comes meanwhile; the call itself is left alone."""
    mux = a_mux()
    stream, _ = mux.attach(CALL, a_request(), TOKEN, 0.0)
    said: list[object] = []
    while not stream.is_over:
        at_s = mux.next_deadline_s()
        assert at_s < 40.0
        said += sent(mux.on_tick(at_s))
        mux.on_control(ended(4), at_s)
        give_mux(mux, stream, 3, 1, at_s)
    assert {type(frame) for frame in said} == {Attach}
    assert len(said) >= 5
    assert mux.take(stream, 40.0)[0][0].reason.failure.code == "TRANSPORT"
    assert mux.open_count == 0


def test_closing_while_it_attaches_ends_nothing() -> None:
    """The call belongs to its worker, and to whoever attaches next."""
    mux = a_mux()
    stream, _ = mux.attach(CALL, a_request(), TOKEN, 0.0)
    assert kinds(mux.close(0.1)) == [Wake, Bye, Bye]
    assert stream.is_over
