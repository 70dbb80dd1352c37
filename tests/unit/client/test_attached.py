"""A call that was taken over from another client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from trunkline.core.attached import AttachedStream
from trunkline.core.effects import NOTHING, Count, Send
from trunkline.core.stream_state import Phase
from trunkline.ticket import Ticket
from trunkline_protocol.codec import pack_body
from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.frames import Attach, CallRef, Cancel, Done, Snapshot

from tests.unit.client.a_stream import CALL, KEY, STOP, a_request, texts

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
