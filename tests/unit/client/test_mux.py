"""All calls together: who gets what, what is held back, what is said again, what is left."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline.core.effects import (
    NOTHING,
    Answered,
    BecameReady,
    Count,
    Happened,
    Left,
    OpenLane,
    Rejected,
    Send,
    Wake,
)
from trunkline.core.phase import Phase
from trunkline.core.stream_state import StreamState
from trunkline_protocol import frames, limits
from trunkline_protocol.chunks import Finish, FinishReason
from trunkline_protocol.codec import encode_lane, encode_probed
from trunkline_protocol.ids import CallId, Epoch, QueryId, StreamKey

from tests.unit.client.a_mux import (
    LANE,
    a_mux,
    accept,
    come_up,
    end,
    give,
    opened,
    running,
    ticked,
    types,
    welcome,
)
from tests.unit.client.a_stream import (
    ERROR,
    ROUTE,
    SERVER,
    STOP,
    a_request,
    kinds,
    lane,
    sent,
    texts,
)

ABSENT = CallId(b"?" * 16)


def test_a_client_is_ready_when_its_lane_is_proven() -> None:
    """HELLO, WELCOME, probe, echo; a stray echo proves nothing."""
    mux = a_mux(up=False)
    assert (mux.is_up, mux.lane) == (False, "")
    assert kinds(mux.on_connected(0.0)) == [frames.Hello]
    effects = mux.on_control(welcome(), 0.0)
    assert kinds(effects) == [OpenLane, frames.Probe]
    assert mux.on_control(welcome(), 0.0) is NOTHING
    assert mux.on_lane(encode_probed(12345), 0.0) == [Count("stray_echoes")]
    assert mux.on_lane(encode_probed(sent(effects)[0].nonce), 0.0) == [BecameReady()]
    assert (mux.is_up, mux.lane) == (True, LANE)


def test_calls_wait_for_the_proof() -> None:
    """Opened before, sent after; one that was cancelled meanwhile is never sent."""
    mux = a_mux(up=False)
    stream = opened(mux)
    gone = opened(mux)
    assert kinds(mux.cancel(gone, 0.0)) == [Wake]
    assert not stream.was_sent
    effects = come_up(mux)
    assert kinds(effects) == [frames.Open, BecameReady]
    assert sent(effects)[0].call == stream.call
    assert stream.was_sent


def test_a_refused_greeting_ends_everything() -> None:
    """Calls, queries and whoever connects."""
    mux = a_mux(up=False)
    stream = opened(mux)
    mux.ask("models", "", b"", 5.0, 0.0)
    mux.on_connected(0.0)
    effects = mux.on_control(frames.Refused("VERSION", "no"), 0.0)
    assert kinds(effects) == [Rejected, Wake, Answered]
    assert stream.is_over
    late, effects = mux.open(mux.new_call_id(), a_request(), 0.0)
    assert kinds(effects) == [Wake]
    assert late.is_over
    assert mux.open_count == 0


def test_a_full_broker_is_told_to_who_connects_and_waited_for_by_who_was_there() -> None:
    """A client that was welcomed once goes on greeting: there may be room again."""
    full = frames.Refused("OVERLOADED", "4096 clients are here")
    mux = a_mux(up=False)
    mux.on_connected(0.0)
    assert mux.on_control(full, 0.0) == [Rejected("OVERLOADED", "4096 clients are here")]
    mux = a_mux()
    mux.on_disconnected(1.0)
    mux.on_connected(1.0)
    assert mux.on_control(full, 1.0) == [Count("refused_frames")]
    assert kinds(mux.on_tick(2.0)) == [frames.Hello]


def test_another_major_version_in_welcome_does_too() -> None:
    """The broker should have refused."""
    mux = a_mux(up=False)
    stream = opened(mux)
    mux.on_connected(0.0)
    effects = mux.on_control(frames.Welcome((2, 0), Epoch(1), LANE), 0.0)
    assert kinds(effects) == [Rejected, Wake]
    assert stream.is_over


def test_frames_go_to_the_stream_of_their_key() -> None:
    """And to nobody else; what belongs to nobody is counted."""
    mux = a_mux()
    one, two = running(mux), running(mux)
    assert give(mux, one, 0, 2) is one.woken
    assert mux.take(one, 0.0)[0] == texts(0, 2)
    assert mux.take(two, 0.0) == ([], NOTHING)
    stray = encode_lane(StreamKey(b"x" * 8), 0, [])
    assert mux.on_lane(stray, 0.0) == [Count("stray_lane_frames")]
    assert mux.on_lane(b"short", 0.0) == [Count("bad_lane_frames")]


def test_a_finished_call_is_forgotten() -> None:
    """Its late frames are strays, its ENDED is nothing while a DONE is under way."""
    mux = a_mux()
    stream = running(mux)
    assert kinds(end(mux, stream)) == [frames.Done, Wake]
    assert mux.open_count == 0
    assert give(mux, stream, 1, 1) == [Count("stray_lane_frames")]
    ended = frames.Ended(stream.call, 0, 1, {"kind": "stop"})
    assert mux.on_control(ended, 0.0) is NOTHING
    lost = frames.Lost(stream.call, 0)
    assert mux.on_control(lost, 0.0) == [Count("frames_of_unknown_calls")]
    assert mux.next_deadline_s() == float("inf")
    assert mux.take(stream, 0.0)[0] == [STOP]


def test_done_is_repeated_for_a_broker_that_still_names_the_call() -> None:
    """The DONE got lost with a connection, or with a broker; whatever names the call brings one."""
    mux = a_mux()
    stream = running(mux)
    end(mux, stream)
    ended = frames.Ended(stream.call, 0, 1, {"kind": "stop"})
    window = frames.Window(stream.call, 0, 1, 65_536)
    told = frames.Sent((frames.Progress(stream.call, 0, 1),))
    now_s = 0.0
    mux.on_tick(mux.next_deadline_s())
    for frame in (ended, window, told):
        mux.on_control(frame, now_s + 0.4)
        assert mux.next_deadline_s() == float("inf")
        now_s += 1.0
        mux.on_control(frame, now_s)
        again = [Send(frames.Done((frames.CallRef(stream.call, 0),)))]
        assert mux.on_tick(mux.next_deadline_s()) == again


def test_a_call_that_is_not_held_is_cancelled_for_a_broker_that_names_it() -> None:
    """This client gave it up while no broker answered, so nobody reads it: its place is freed."""
    mux = a_mux()
    for frame in (
        frames.Window(ABSENT, 2, 1, 65_536),
        frames.Queued(ABSENT, 2, "turn"),
        frames.Sent((frames.Progress(ABSENT, 2, 1),)),
    ):
        assert Send(frames.Cancel(ABSENT, 2)) in mux.on_control(frame, 0.0)
    ended = frames.Ended(ABSENT, 2, 1, {"kind": "stop"})
    assert mux.on_control(ended, 0.0) is NOTHING
    done = [Send(frames.Done((frames.CallRef(ABSENT, 2),)))]
    assert mux.on_tick(mux.next_deadline_s()) == done


def test_a_gap_is_asked_for_and_scheduled() -> None:
    """Once at once, again after 250 ms."""
    mux = a_mux()
    stream = running(mux)
    assert kinds(give(mux, stream, 4, 1, now_s=1.0)) == [Count, frames.Resume]
    assert mux.next_deadline_s() <= 1.0 + limits.RESUME_AFTER_S
    assert types(ticked(mux, 1.3)).count(frames.Resume) == 1


def test_credit_goes_out_while_reading() -> None:
    """Half of the window."""
    mux = a_mux()
    stream = running(mux)
    give(mux, stream, 0, 4)
    assert mux.take(stream, 0.0)[1] is NOTHING
    assert kinds(mux.take(stream, 0.0)[1]) == [frames.Credit]


def test_done_is_batched() -> None:
    """The first at once, those of the next 50 ms together."""
    mux = a_mux()
    streams = [running(mux) for _ in range(3)]
    assert kinds(end(mux, streams[0], now_s=1.0)) == [frames.Done, Wake]
    assert kinds(end(mux, streams[1], now_s=1.01)) == [Wake]
    assert kinds(end(mux, streams[2], now_s=1.02)) == [Wake]
    assert mux.next_deadline_s() == pytest.approx(1.0 + limits.DONE_BATCH_S)
    done = sent(mux.on_tick(1.06))
    assert [len(frame.calls) for frame in done] == [2]


def test_a_batch_of_done_is_bounded() -> None:
    """A full list goes out at once."""
    mux = a_mux()
    end(mux, running(mux), now_s=1.0)
    seen: list[int] = []
    for _ in range(limits.MAX_LIST_ENTRIES):
        seen.extend(len(frame.calls) for frame in sent(end(mux, running(mux), now_s=1.0)) if frame)
    assert seen == [limits.MAX_LIST_ENTRIES]


def test_control_frames_reach_their_call_and_attempt() -> None:
    """Those of another attempt are counted."""
    mux = a_mux()
    stream = opened(mux)
    other = frames.Queued(stream.call, 3)
    assert mux.on_control(other, 0.0) == [Count("frames_of_other_attempts")]
    mux.on_control(frames.Queued(stream.call, 0), 0.0)
    assert stream.phase is Phase.OPEN
    mux.on_control(frames.Window(stream.call, 0, 3, 999), 0.0)
    assert stream.intake.window_chunks == 3
    mux.on_control(frames.Ended(stream.call, 0, 5, {"kind": "stop"}), 0.0)
    assert stream.phase is Phase.TAIL
    mux.on_control(frames.Failed(stream.call, 0, SERVER.to_dict()), 0.0)
    assert stream.is_over


def test_sent_reaches_each_call_it_names() -> None:
    """Other attempts are left out; a call that this client does not hold is cancelled."""
    mux = a_mux()
    stream = running(mux)
    entries = tuple(
        frames.Progress(call, attempt, 4)
        for call, attempt in ((stream.call, 0), (stream.call, 1), (ABSENT, 0))
    )
    assert mux.on_control(frames.Sent(entries), 1.0) == [Send(frames.Cancel(ABSENT, 0))]
    assert stream.intake.known_next == 4


def test_a_retry_changes_the_key() -> None:
    """Frames of the old attempt are strays from then on."""
    mux = a_mux()
    stream = running(mux, a_request("policy", replayable=True))
    give(mux, stream, 0, 1)
    old = lane(1, texts(1, 1), stream.stream_key)
    retry = frames.Retry(stream.call, 1, "r1", ROUTE, "normal", "k", 1, 50.0, SERVER.to_dict(), 2)
    kinds_seen = kinds(mux.on_control(retry, 1.0))
    assert kinds_seen[0] is frames.Done
    assert mux.on_lane(old, 1.0) == [Count("stray_lane_frames")]
    started = frames.RetryStarted(stream.call, 1, "r1")
    effects = mux.on_control(started, 1.05)
    assert kinds(effects)[1] is frames.Open
    assert sent(effects)[0].stream_key == stream.stream_key
    assert give(mux, stream, 0, 1, now_s=1.1) is stream.woken


def test_what_was_opened_before_an_offer_came_again_is_heard() -> None:
    """A new broker says the delay that is left while the `OPEN` it answers is repeated.

    The repeated one may come after the delay and start the attempt: its chunks have that key.
    """
    mux = a_mux()
    stream = running(mux, a_request("policy"))
    retry = frames.Retry(stream.call, 1, "r1", ROUTE, "normal", "k", 1, 50.0, SERVER.to_dict(), 2)
    mux.on_control(retry, 0.0)
    mux.on_disconnected(0.1)
    (offered,) = [each for each in sent(come_up(mux, 2, 0.2)) if isinstance(each, frames.Open)]
    again = [each for each in ticked(mux, 20.0) if isinstance(each, frames.Open)]
    assert again
    assert {each.stream_key for each in again} == {offered.stream_key}
    mux.on_control(retry, 20.0)  # says the broker to the first of them
    accept(mux, stream, 20.0)  # and to the last
    assert Wake(stream.call) in mux.on_lane(lane(0, texts(0, 2), offered.stream_key), 20.0)
    assert len(mux.take(stream, 20.0)[0]) == 2


def test_a_request_is_not_put_beside_itself_while_a_broker_stands_still() -> None:
    """It may be large; a greeting asks whether anybody is there, and the answer sets it free."""
    mux = a_mux()
    stream = opened(mux, now_s=1.0)
    other = opened(mux, now_s=1.0)
    assert types(ticked(mux, 9.5)) == [frames.Hello] * 4  # one for all, after 0.5, 1, 2, 4 s
    mux.on_control(welcome(), 9.6)
    said = ticked(mux, 17.0)
    assert {frame.call for frame in said if isinstance(frame, frames.Open)} == {
        stream.call,
        other.call,
    }
    assert not [frame for frame in said if isinstance(frame, frames.Hello)]


def test_many_requests_ask_no_oftener_whether_anybody_is_there() -> None:
    """Opened one after the other, and repeated so: a greeting each would be a flood."""
    mux = a_mux()
    for number in range(100):
        opened(mux, now_s=1.0 + number * 0.01)
    assert 4 <= types(ticked(mux, 10.0)).count(frames.Hello) <= 18  # one in half a second


def test_a_new_connection_brings_every_request_again() -> None:
    """What was said on the old one may be lost."""
    mux = a_mux()
    opened(mux, now_s=1.0)
    mux.on_disconnected(1.1)
    assert types(sent(come_up(mux, 2, 1.2))) == [frames.Open]


def test_a_lost_unseen_call_is_opened_again() -> None:
    """Through the same gate as the first time."""
    mux = a_mux()
    stream = running(mux)
    assert kinds(mux.on_control(frames.Lost(stream.call, 0), 1.0)) == [frames.Open]


def test_refusals_end_what_they_name() -> None:
    """A call or a query; a bad credit and a frame that nobody knows end nothing."""
    mux = a_mux()
    stream = running(mux)
    query, _ = mux.ask("models", "", b"", 5.0, 0.0)
    ignored = [Count("refused_frames")]
    for refused in (
        frames.Refused("BAD_FRAME", "x"),
        frames.Refused("BAD_CREDIT", "x", call=stream.call),
        frames.Refused("OVERLOADED", "x", call=ABSENT),
        frames.Refused("OVERLOADED", "x", call=stream.call, attempt=5),
        frames.Refused("VERSION", "x"),
    ):
        assert mux.on_control(refused, 0.0) == ignored
    refused = frames.Refused("OVERLOADED", "x", call=stream.call)
    assert kinds(mux.on_control(refused, 0.0)) == [Wake]
    assert kinds(mux.on_control(frames.Refused("X", "x", query=query), 0.0)) == [Answered]


def test_what_a_client_does_not_use_is_counted() -> None:
    """Events and snapshots that nobody asked for."""
    mux = a_mux()
    assert mux.on_control(frames.Event("adapters-updated"), 0.0) == [Happened("adapters-updated")]
    snapshot = frames.Snapshot(ABSENT, 0, 0)
    assert mux.on_control(snapshot, 0.0) == [Count("unexpected_snapshots")]


def test_a_reply_ends_its_query() -> None:
    """With a body, or with a failure."""
    mux = a_mux()
    for failure in (None, SERVER):
        query, effects = mux.ask("models", "", b"", 5.0, 0.0)
        assert kinds(effects) == [frames.Query]
        fields = None if failure is None else failure.to_dict()
        answer = mux.on_control(frames.Reply(query, fields, b"x"), 0.0)
        assert answer == [Answered(query, b"x", failure)]
    assert mux.question_count == 0


def test_queries_time_out_and_can_be_abandoned() -> None:
    """Both are told to whoever works on them."""
    mux = a_mux()
    mux.ask("models", "", b"", 2.0, 0.0)
    assert types(ticked(mux, 1.9)) == [frames.Hello] * 3  # nothing was heard: is it there?
    assert mux.next_deadline_s() == 2.0
    assert kinds(mux.on_tick(2.0))[:2] == [frames.QueryCancel, Answered]
    query, _ = mux.ask("models", "", b"", 2.0, 2.0)
    assert kinds(mux.abandon(query)) == [frames.QueryCancel]
    assert mux.abandon(QueryId(b"?" * 16)) is NOTHING


def test_a_new_broker_is_told_everything() -> None:
    """RESTATE for what runs, OPEN for what is unconfirmed, CANCEL, DONE, harmless queries."""
    mux = a_mux()
    run, queue, cancelled = running(mux), opened(mux), running(mux)
    done = [running(mux), running(mux)]
    for stream in done:
        end(mux, stream, now_s=1.0)
    mux.ask("models", "", b"", 50.0, 1.0)
    mux.cancel(cancelled, 1.0)
    mux.on_disconnected(1.01)
    assert not mux.is_up
    assert ticked(mux, 1.9) == []
    mux.on_connected(2.0)
    greeted = mux.on_control(welcome(epoch=2), 2.0)
    assert kinds(greeted) == [frames.Probe, Happened, frames.Query]
    said = mux.on_lane(encode_probed(sent(greeted)[0].nonce), 2.0)
    assert kinds(said) == [frames.Open, frames.Cancel, frames.Restate, frames.Done, BecameReady]
    by_kind: dict[type, Any] = {type(frame): frame for frame in sent(said)}
    assert by_kind[frames.Open].call == queue.call
    assert by_kind[frames.Cancel].call == cancelled.call
    assert [entry.call for entry in by_kind[frames.Restate].calls] == [run.call]
    assert [ref.call for ref in by_kind[frames.Done].calls] == [done[1].call]


def test_a_query_that_changes_something_fails_with_its_broker() -> None:
    """It may have been done."""
    mux = a_mux()
    mux.ask("swap", "", b"", 50.0, 1.0)
    mux.on_control(frames.Who(Epoch(2)), 1.0)
    assert kinds(mux.on_control(welcome(epoch=2), 1.0)) == [frames.Probe, Happened, Answered]


def test_many_calls_are_restated_in_several_frames() -> None:
    """No envelope grows too large."""
    mux = a_mux()
    for _ in range(1500):
        running(mux)
    mux.on_disconnected(1.0)
    restates = [frame for frame in sent(come_up(mux, 2, 1.0)) if type(frame) is frames.Restate]
    assert [len(frame.calls) for frame in restates] == [1000, 500]


def test_who_is_answered_with_a_greeting() -> None:
    """Nothing is sent to a broker that does not know us."""
    mux = a_mux()
    stream = running(mux)
    assert kinds(mux.on_control(frames.Who(Epoch(2)), 1.0)) == [frames.Hello]
    assert give(mux, stream, 4, 1, now_s=1.0) == [Count("lane_gaps")]
    assert kinds(mux.cancel(stream, 1.0)) == [Wake]


def test_calls_end_when_no_broker_answers_for_long() -> None:
    """30 s, or what the broker said; a call that was opened later waits its own time."""
    mux = a_mux(up=False)
    mux.on_connected(0.0)
    probe = sent(mux.on_control(welcome(orphan_ms=10_000), 0.0))[0]
    mux.on_lane(encode_probed(probe.nonce), 0.0)
    stream = running(mux)
    cancelled = running(mux)
    mux.on_disconnected(1.0)
    mux.cancel(cancelled, 1.0)
    late = opened(mux, now_s=9.0)
    ticked(mux, 10.5)
    assert not stream.is_over
    ticked(mux, 11.6)
    assert stream.is_over
    assert not late.is_over
    finish = mux.take(stream, 12.0)[0][-1]
    assert isinstance(finish, Finish)
    assert finish.reason.failure is not None
    assert finish.reason.failure.code == "TRANSPORT"
    ticked(mux, 30.0)
    assert late.is_over
    assert cancelled.phase is Phase.CLOSED
    assert mux.open_count == 0


def test_an_open_that_a_silent_broker_never_confirms_ends_too() -> None:
    """The connection is there, but nobody answers on it."""
    mux = a_mux()
    stream, runs = opened(mux), running(mux)
    ticked(mux, 29.0)
    assert not stream.is_over
    ticked(mux, 45.0)
    assert stream.is_over
    assert not runs.is_over


def test_time_in_which_this_process_slept_is_nobodys_silence() -> None:
    """A late tick first extends what it would judge."""
    mux = a_mux()
    stream = running(mux)
    mux.on_disconnected(1.0)
    mux.on_tick(100.0, 99.0)
    assert not stream.is_over
    mux.on_tick(200.0, 0.1)
    assert stream.is_over


def test_while_no_broker_answers_time_does_not_stand_still() -> None:
    """What is due but can't be said is looked at again later, not at once."""
    mux = a_mux()
    running(mux)
    mux.on_disconnected(0.0)
    count = 0
    while mux.next_deadline_s() < 5.0:
        mux.on_tick(mux.next_deadline_s())
        count += 1
    assert count <= 25


def test_a_broker_that_restarts_gets_no_new_calls() -> None:
    """They wait for the next one; a refusal because of that ends nothing."""
    mux = a_mux()
    mux.on_control(frames.Stopping(restart=True), 1.0)
    stream, effects = mux.open(mux.new_call_id(), a_request(), 1.0)
    assert sent(effects) == []
    refused = frames.Refused("STOPPING", "x", call=stream.call)
    assert mux.on_control(refused, 1.0) == [Count("refused_frames")]
    mux.on_disconnected(1.1)
    assert frames.Open in kinds(come_up(mux, 2, 1.2))
    mux.on_control(frames.Stopping(), 2.0)
    assert kinds(mux.on_control(refused, 2.0)) == [Wake]


def test_quiet_calls_are_restated_together() -> None:
    """All in one frame, a second after the last word."""
    mux = a_mux()
    streams = [running(mux, now_s=0.01 * at) for at in range(5)]
    said = ticked(mux, 1.5)
    assert types(said) == [frames.Restate]
    assert {entry.call for entry in said[0].calls} == {stream.call for stream in streams}


def test_a_silent_stream_that_should_not_be_has_its_lane_probed() -> None:
    """RESUME waits for the echo and then goes out at once."""
    mux = a_mux()
    stream = running(mux)
    mux.on_control(frames.Sent((frames.Progress(stream.call, 0, 4),)), 2.0)
    said = ticked(mux, 3.2)
    probes = [frame for frame in said if type(frame) is frames.Probe]
    assert probes
    assert frames.Resume in types(said)
    assert frames.Resume not in types(ticked(mux, 3.45))
    effects = mux.on_lane(encode_probed(probes[-1].nonce), 3.45)
    assert kinds(effects) == [frames.Resume]


def test_open_calls_are_bounded() -> None:
    """The one too many ends at once, alone."""
    mux = a_mux()
    for _ in range(limits.MAX_OPEN_CALLS_PER_CLIENT):
        opened(mux)
    stream, effects = mux.open(mux.new_call_id(), a_request(), 0.0)
    assert kinds(effects) == [Wake]
    chunk = mux.take(stream, 0.0)[0][0]
    assert isinstance(chunk, Finish)
    assert chunk.reason.failure is not None
    assert chunk.reason.failure.code == "OVERLOADED"
    assert mux.open_count == limits.MAX_OPEN_CALLS_PER_CLIENT


def test_leaving_ends_everything_and_waits_for_the_broker() -> None:
    """CANCEL, the batch of DONE, BYE; the answer to a stranger's BYE says that all was read."""
    mux = a_mux()
    for at in range(2):
        end(mux, running(mux), now_s=1.0 + at / 1000)
    stream = running(mux)
    mux.ask("models", "", b"", 5.0, 1.0)
    effects = mux.close(1.01)
    assert kinds(effects) == [
        frames.Cancel,
        Wake,
        Answered,
        frames.Done,
        frames.Bye,
        frames.Bye,
    ]
    assert mux.is_leaving
    chunks = mux.take(stream, 1.01)[0]
    assert [type(chunk) for chunk in chunks] == [Finish]
    assert mux.on_control(frames.Who(Epoch(1)), 1.02) == [Left()]


def test_leaving_without_a_broker_waits_for_nobody() -> None:
    """There is nothing to say."""
    mux = a_mux(up=False)
    stream = opened(mux)
    assert kinds(mux.close(0.0)) == [Wake]
    assert not mux.is_leaving
    assert stream.is_over
    assert mux.open_count == 0


def test_a_call_that_is_over_in_a_taken_frame_is_forgotten() -> None:
    """A finish within a frame is found when it is taken; CANCEL goes out."""
    mux = a_mux()
    stream = running(mux)
    aborted = Finish(FinishReason("stop"))
    mux.on_lane(lane(0, [aborted, *texts(1, 1)], stream.stream_key), 0.0)
    assert kinds(mux.take(stream, 0.0)[1]) == [frames.Cancel]
    mux.on_control(frames.Ended(stream.call, 0, 2, {"kind": "stop"}), 0.0)
    assert mux.open_count == 0


def test_a_call_that_was_never_opened_can_be_cancelled() -> None:
    """It is in no table."""
    mux = a_mux()
    stream = StreamState(ABSENT, a_request(), StreamKey(bytes(8)), 0.0)
    assert kinds(mux.cancel(stream, 0.0)) == [Wake]
    assert mux.open_count == 0


def test_a_held_finish_is_released_through_control() -> None:
    """Recovery "policy": ENDED instead of RETRY."""
    mux = a_mux()
    stream = running(mux, a_request("policy"))
    assert kinds(end(mux, stream, ERROR)) == [Wake]
    assert mux.take(stream, 0.0) == ([], NOTHING)
    ended = frames.Ended(stream.call, 0, 1, ERROR.reason.to_dict())
    assert Wake in kinds(mux.on_control(ended, 0.0))
    assert mux.take(stream, 0.0)[0] == [ERROR]
    assert mux.open_count == 0
