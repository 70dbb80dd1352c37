"""Detachable attempts: going on without a client, and being taken over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from trunkline_protocol.codec import unpack_body
from trunkline_protocol.frames import Attach, Ended, Snapshot, Window
from trunkline_protocol.ids import CallId, ClientId, StreamKey
from trunkline_workers.core import attempt as attempts
from trunkline_workers.core.attempt import Attempt
from trunkline_workers.core.calls import WorkerCalls
from trunkline_workers.core.effects import Begin, Count, Pull, SendLane, Stop

from tests.unit.workers.a_worker import (
    CALL,
    ME,
    STOP,
    a_credit,
    a_done,
    a_resume,
    a_start,
    control,
    kinds,
    lane,
    texts,
)

TOKEN = b"t" * 16
OTHER = ClientId(b"o" * 16)
NEW_KEY = StreamKey(b"n" * 8)
ATTACH = Attach(CALL, TOKEN, NEW_KEY, OTHER, 2, 1024 * 1024)


def a_table(**fields: Any) -> WorkerCalls:
    """Return a worker that runs one detachable attempt with a window of 4."""
    calls = WorkerCalls()
    start = replace(a_start(), detachable=True, token=TOKEN, **fields)
    assert calls.on_start(start, 0.0) == [Begin(start)]
    return calls


def snapshot(effects: list[Any]) -> tuple[int, list[Any]]:
    (frame,) = [one for one in control(effects) if isinstance(one, Snapshot)]
    return frame.next, unpack_body(frame.body)


def test_a_new_broker_is_told_the_token_and_whether_anybody_is_attached() -> None:
    """Of a call that is not detachable it is told neither."""
    calls = a_table()
    (held,) = calls.held()
    assert (held.token, held.is_detached) == (TOKEN, False)
    calls.on_window(Window(*ME, 0, 0), 0.0)
    (held,) = calls.held()
    assert (held.token, held.is_detached) == (TOKEN, True)
    calls.on_attach(ATTACH, 0.0)
    (held,) = calls.held()
    assert (held.client, held.is_detached) == (OTHER, False)
    plain = WorkerCalls()
    plain.on_start(replace(a_start(), token=TOKEN), 0.0)
    (held,) = plain.held()
    assert (held.token, held.is_detached) == (b"", False)
    assert TOKEN.decode() not in repr(held)


def test_without_a_client_it_needs_no_credit_and_sends_nothing() -> None:
    """Beyond any window; the report of its end comes as ever."""
    calls = a_table()
    calls.on_chunks(*ME, texts("a", "b", "c", "d", "e"), 0.0)
    assert calls.ask_room(*ME) == 0
    assert kinds(calls.on_window(Window(*ME, 0, 0), 0.0)) == ["Pull"]
    assert calls.room(*ME) > 0
    assert calls.on_chunks(*ME, texts("f", "g"), 0.0) == []
    assert calls.progress() == ()
    effects = calls.on_finish(*ME, STOP, None, 0.0)
    assert kinds(effects) == ["SendControl"]
    assert control(effects)[0].last == 8


def test_a_snapshot_holds_what_was_said_and_the_rest_follows_under_the_new_key() -> None:
    """Positions go on, totals in bytes begin anew."""
    calls = a_table()
    calls.on_chunks(*ME, texts("a", "b"), 0.0)
    calls.on_window(Window(*ME, 0, 0), 0.0)
    calls.on_chunks(*ME, texts("c"), 0.0)
    effects = calls.on_attach(ATTACH, 0.0)
    assert snapshot(effects) == (3, [[1, 0, "abc"]])
    effects = calls.on_chunks(*ME, texts("d", "e", "f"), 0.0)
    assert [first for first, _ in lane(effects)] == [3]
    (sent,) = [one for one in effects if isinstance(one, SendLane)]
    assert (sent.client, sent.frame[1:9]) == (OTHER, NEW_KEY)
    assert calls.ask_room(*ME) == 0
    assert kinds(calls.on_credit(a_credit(5, 5, 512), 0.0)) == ["SendLane", "Pull"]
    assert calls.on_credit(a_credit(6, 6, 5000), 0.0) == [Count("bad_credit")]


def test_the_same_attach_again_brings_the_same_snapshot() -> None:
    """With what was sent since, until the client has told a position."""
    calls = a_table()
    calls.on_chunks(*ME, texts("a"), 0.0)
    first = calls.on_attach(ATTACH, 0.0)
    calls.on_chunks(*ME, texts("b"), 0.0)
    again = calls.on_attach(ATTACH, 0.0)
    assert snapshot(again) == snapshot(first) == (1, [[1, 0, "a"]])
    assert [first for first, _ in lane(again)] == [1]
    calls.on_credit(a_credit(2, 1, 0), 0.0)
    assert calls.on_attach(ATTACH, 0.0) == [Count("attached_already")]
    assert calls.on_resume(a_resume(2), 0.0) == []


def test_an_ended_attempt_is_attached_to_as_well() -> None:
    """Snapshot with the finish, and the report of the end; then it is forgotten by `DONE`."""
    calls = a_table()
    calls.on_window(Window(*ME, 0, 0), 0.0)
    calls.on_finish(*ME, STOP, None, 0.0, texts("a"))
    effects = calls.on_attach(ATTACH, 0.0)
    assert snapshot(effects)[0] == 2
    assert isinstance(control(effects)[-1], Ended)
    calls.on_done(a_done(), 0.0)
    assert calls.on_attach(ATTACH, 0.0) == [Count("frames_of_unknown_calls")]


@pytest.mark.parametrize(
    ("frame", "counted"),
    [
        (replace(ATTACH, token=b"wrong"), "attach_refused"),
        (replace(ATTACH, call=CallId(b"?" * 16)), "frames_of_unknown_calls"),
        (replace(ATTACH, client=None), "frames_of_unknown_calls"),
    ],
)
def test_what_is_refused(frame: Attach, counted: str) -> None:
    assert a_table().on_attach(frame, 0.0) == [Count(counted)]


def test_a_call_that_is_not_detachable() -> None:
    """It has no record: no attach, no window of 0."""
    calls = WorkerCalls()
    calls.on_start(a_start(), 0.0)
    assert calls.on_attach(ATTACH, 0.0) == [Count("attach_refused")]
    assert calls.on_window(Window(*ME, 0, 0), 0.0) == [Count("bad_window")]
    with pytest.raises(AssertionError):
        Attempt(a_start(), 0.0).attach(ATTACH, OTHER)


def test_a_late_window_of_the_client_that_left() -> None:
    """It changes nothing: nobody is there."""
    calls = a_table()
    calls.on_window(Window(*ME, 0, 0), 0.0)
    assert calls.on_window(Window(*ME, 9, 9), 0.0) == [Count("late_windows")]
    assert calls.room(*ME) > 9


@pytest.mark.parametrize("is_attached", [True, False])
def test_more_than_may_be_kept_ends_the_attempt(
    monkeypatch: pytest.MonkeyPatch, is_attached: bool
) -> None:
    """In `OVERLOADED`, whether somebody reads or not; the adapter is stopped."""
    monkeypatch.setattr(attempts, "RECORD_LIMIT_BYTES", 1000)
    calls = a_table()
    if not is_attached:
        calls.on_window(Window(*ME, 0, 0), 0.0)
    effects = calls.on_chunks(*ME, texts("x" * 2000), 0.0)
    assert Stop(*ME) in effects
    (end,) = [one for one in control(effects) if isinstance(one, Ended)]
    assert (end.last, end.finish["failure"]["code"]) == (2, "OVERLOADED")
    assert calls.on_chunks(*ME, texts("y"), 0.0) == [Count("late_chunks", 1)]
    assert snapshot(calls.on_attach(ATTACH, 0.0))[1][-1][0] == 6
    assert Pull(*ME) not in effects
