"""The bounded exits of a call: none needs a particular frame."""

from __future__ import annotations

import pytest
from trunkline.core import giving_up
from trunkline.core.effects import Count, Effects, Suspected
from trunkline.core.mux import Mux
from trunkline.core.phase import Phase
from trunkline.core.stream_state import StreamState
from trunkline_protocol import frames
from trunkline_protocol.codec import encode_probed

from tests.unit.client.a_mux import a_mux, come_up, opened, running, types
from tests.unit.client.a_stream import CALL, ERROR, SERVER, a_request, give, in_phase, sent


def in_mux(phase: Phase) -> tuple[Mux, StreamState]:
    """Return a client that has sent everything about one call in a phase."""
    mux = a_mux()
    recovery = "policy" if phase in {Phase.HELD, Phase.BACKOFF} else "none"
    stream = (opened if phase is Phase.OPENING else running)(mux, a_request(recovery))
    match phase:
        case Phase.TAIL:
            mux.on_control(frames.Ended(stream.call, 0, 3, {"kind": "stop"}), 0.0)
        case Phase.HELD:
            give(stream, 0, [ERROR])
        case Phase.BACKOFF:
            offer = frames.Retry(
                stream.call, 1, "r", "r", "normal", "k", 1, 100.0, {"code": "X", "message": "m"}
            )
            mux.on_control(offer, 0.0)
        case Phase.CANCELLING:
            mux.cancel(stream, 0.0)
        case _:
            pass
    assert stream.phase is phase
    return mux, stream


def lived(mux: Mux, until_s: float, every_s: float = 0.5) -> list[object]:
    """Let a broker answer everything but what is asked about calls; return all effects."""
    effects: list[object] = []
    now_s = 0.0
    while now_s < until_s:
        now_s += every_s
        mux.on_control(frames.Event("adapters-updated"), now_s)
        while mux.next_deadline_s() <= now_s:
            effects.extend(_ticked(mux, now_s))
    return effects


def _ticked(mux: Mux, now_s: float) -> Effects:
    effects = mux.on_tick(now_s)
    for frame in sent(effects):
        if isinstance(frame, frames.Probe):  # the lane is well
            mux.on_lane(encode_probed(frame.nonce), now_s)
    return effects


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.CLOSED])
def test_a_call_that_is_never_answered_ends_in_every_phase(phase: Phase) -> None:
    """Suspected in half a minute, over in less than three."""
    mux, stream = in_mux(phase)
    first = lived(mux, 40.0)
    suspected = [effect for effect in first if isinstance(effect, Suspected)]
    assert [effect.call for effect in suspected] == [stream.call]
    assert "questions unanswered" in suspected[0].state
    later = lived(mux, 300.0)
    assert stream.is_over
    assert mux.open_count == 0
    assert mux.next_deadline_s() == float("inf")
    assert Count("unanswered_calls") in [*first, *later]
    assert mux.take(stream, 300.0)[0][-1].reason.kind == (
        "aborted" if phase is Phase.CANCELLING else "error"
    )
    assert mux.take(stream, 300.0)[0] == []


def test_a_quiet_call_is_asked_about_from_its_second_restatement_on() -> None:
    """By an `OPEN` without a body that starts nothing; an answer makes it rare again."""
    mux = a_mux()
    stream = running(mux)
    said: list[tuple[float, type]] = []
    while (at_s := mux.next_deadline_s()) < 70.0:
        for frame in sent(mux.on_tick(at_s)):
            said.append((at_s, type(frame)))
            if isinstance(frame, frames.Open):
                assert (frame.seen, frame.body, frame.attempt) == (True, b"", 0)
                window = frames.Window(stream.call, 0, 8, 65536)
                mux.on_control(window, at_s + 0.001)
    times = [at_s for at_s, kind in said if kind is frames.Open]
    assert times == pytest.approx([3.25, 7.5, 15.75, 32.0, 62.25], abs=0.5)
    assert {kind for _, kind in said} == {frames.Open, frames.Restate}
    assert not stream.is_over


def test_a_broker_that_stands_still_ends_nothing_for_ten_minutes() -> None:
    """Then nobody can tell it from none."""
    mux = a_mux()
    stream = running(mux)
    now_s = 0.0
    while now_s < giving_up.STANDSTILL_S - 1:
        now_s = max(now_s + 0.1, mux.next_deadline_s())
        assert not any(isinstance(effect, Suspected) for effect in mux.on_tick(now_s))
    assert not stream.is_over
    while now_s < giving_up.STANDSTILL_S + 40:
        now_s = max(now_s + 0.1, mux.next_deadline_s())
        mux.on_tick(now_s)
    assert stream.is_over
    assert mux.open_count == 0


def test_chunks_that_never_come_end_the_call() -> None:
    """Although the broker answers every question: what is asked for is not sent."""
    mux = a_mux()
    stream = running(mux)
    now_s = 0.0
    while not stream.is_over:
        now_s += 0.25
        assert now_s < 200.0
        mux.on_control(frames.Sent((frames.Progress(stream.call, 0, 5),)), now_s)
        for frame in sent(_ticked(mux, now_s)):
            if isinstance(frame, frames.Open):
                mux.on_control(frames.Window(stream.call, 0, 8, 65536), now_s)
    assert now_s > 60.0
    assert mux.take(stream, now_s)[0][0].reason.failure.code == "TRANSPORT"


def test_what_was_not_sent_is_said_again() -> None:
    """Of every frame that a client sends."""
    mux = a_mux()
    stream = running(mux)
    ref = frames.CallRef(stream.call, 0)
    entry = stream.restated(0.0)
    for frame, again, by_s in (
        (frames.Credit(stream.call, 0, 0, 0, 0), frames.Restate, 1.0),
        (frames.Restate((entry,)), frames.Restate, 2.0),
        (frames.Done((ref,)), frames.Done, 2.5),
    ):
        mux.on_unsent(frame, by_s - 1.0)
        said: list[object] = []
        while (at_s := mux.next_deadline_s()) <= by_s + 0.25:
            said += sent(mux.on_tick(at_s))
        assert again in types(said), frame
    stream.asking.ask(9.0, 9.0, 10.0)
    mux.on_unsent(frames.Cancel(stream.call, 0), 10.0)
    assert stream.asking.count == 0
    stream.lacking.ask(9.0, 9.0, 10.0)
    mux.on_unsent(frames.Resume(stream.call, 0, 0), 10.0)
    assert stream.lacking.count == 0
    mux.on_unsent(frames.Cancel(CALL, 0), 10.0)  # over meanwhile
    mux.on_unsent(frames.Bye(), 10.0)


def test_an_open_that_was_not_sent_is_repeated_before_the_broker_is_heard() -> None:
    mux = a_mux()
    stream = opened(mux)
    mux.on_unsent(frames.Open(stream.call, 0, stream.stream_key, "r", "m"), 0.0)
    assert types(sent(mux.on_tick(0.5))) == [frames.Open]
    assert types(sent(mux.on_tick(1.5))) == [frames.Hello]  # that one may lie in a queue


@pytest.mark.parametrize("phase", [Phase.CANCELLING, Phase.CLOSED])
def test_what_is_over_is_given_up_without_a_word(phase: Phase) -> None:
    stream = in_phase(phase)
    assert stream.abandon(SERVER, 1.0) == ()
    assert stream.phase is Phase.CLOSED


def test_a_new_connection_is_no_answer() -> None:
    """A link that breaks again and again does not keep an unanswered call for ever."""
    mux = a_mux()
    stream = running(mux)
    now_s = 0.0
    while not stream.is_over:
        now_s += 0.5
        assert now_s < 400.0
        if now_s % 10 == 0:
            mux.on_disconnected(now_s)
            come_up(mux, now_s=now_s)
        mux.on_control(frames.Event("adapters-updated"), now_s)
        _ticked(mux, now_s)
