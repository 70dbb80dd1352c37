"""How full a client's queues are, what they do at their bounds, and when the broker is told."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline.core import queues as queues_module
from trunkline.core import schedule as schedule_module
from trunkline.core.confirmations import Confirmations
from trunkline.core.effects import Count
from trunkline.core.intake import MAX_WAITING_CHUNKS
from trunkline.core.mux import Mux
from trunkline_protocol import frames, limits

from tests.unit.client.a_mux import a_mux, come_up, give, opened, running, ticked
from tests.unit.client.a_stream import ROUTE, SERVER, a_request, lane, sent, texts


def figures(mux: Mux) -> dict[str, tuple[int, int, int]]:
    return {name: (depth, high, bound) for name, depth, high, bound in mux.queues()}


def restated(said: list[Any]) -> list[frames.Restate]:
    return [frame for frame in said if isinstance(frame, frames.Restate)]


def test_an_idle_client_has_every_queue_with_its_bound() -> None:
    assert figures(a_mux()) == {
        "calls": (0, 0, 4096),
        "unsent calls": (0, 0, 4096),
        "unsent bytes": (0, 0, queues_module.MAX_UNSENT_BYTES),
        "chunks": (0, 0, MAX_WAITING_CHUNKS),
        "questions": (0, 0, 256),
        "confirmations": (0, 0, 4096),
    }


def test_calls_wait_while_no_broker_answers() -> None:
    """Until one does, or they are cancelled; the marks stay."""
    mux = a_mux(up=False)
    one, two = opened(mux), opened(mux)
    assert figures(mux)["unsent calls"][:2] == (2, 2)
    assert figures(mux)["unsent bytes"][:2] == (8, 8)
    mux.cancel(two, 0.0)
    assert figures(mux)["unsent calls"][:2] == (1, 2)
    come_up(mux)
    assert one.was_sent
    assert figures(mux)["unsent calls"][:2] == (0, 2)
    assert figures(mux)["unsent bytes"][:2] == (0, 8)
    assert figures(mux)["calls"][:2] == (1, 2)


def test_what_waits_for_a_broker_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that is too much is refused, and only while none answers."""
    monkeypatch.setattr(queues_module, "MAX_UNSENT_BYTES", 7)
    mux = a_mux(up=False)
    assert not opened(mux).is_over
    late = opened(mux)
    (chunk,) = mux.take(late, 0.0)[0]
    assert chunk.reason.failure.code == "OVERLOADED"  # type: ignore[union-attr]
    assert "4 bytes wait for a broker" in chunk.reason.failure.message  # type: ignore[union-attr]
    come_up(mux)
    assert not any(opened(mux).is_over for _ in range(3))


def test_chunks_that_nobody_reads() -> None:
    """The fullest stream counts; the mark outlives the stream, and the attempt."""
    mux = a_mux()
    one, two = running(mux), running(mux, a_request("policy"))
    give(mux, one, 0, 3)
    give(mux, two, 0, 2)
    assert figures(mux)["chunks"][:2] == (3, 3)
    mux.take(one, 0.0)
    assert figures(mux)["chunks"][:2] == (2, 3)
    give(mux, two, 2, 3)
    retry = frames.Retry(two.call, 1, "r1", ROUTE, "normal", "k", 1, 50.0, SERVER.to_dict(), 2)
    mux.on_control(retry, 0.0)
    assert figures(mux)["chunks"][:2] == (0, 5)
    mux.on_rejected("VERSION", "no")
    assert figures(mux)["chunks"][:2] == (0, 5)
    assert figures(mux)["calls"][:2] == (0, 2)


def test_a_worker_that_ignores_credit_meets_the_bound() -> None:
    """What is beyond it is not kept."""
    mux = a_mux()
    stream = running(mux)
    step = limits.MAX_LANE_CHUNKS
    for first in range(0, MAX_WAITING_CHUNKS, step):
        mux.on_lane(lane(first, texts(first, step), stream.stream_key), 0.0)
    assert figures(mux)["chunks"][:2] == (MAX_WAITING_CHUNKS, MAX_WAITING_CHUNKS)
    give(mux, stream, MAX_WAITING_CHUNKS, 1)
    assert stream.is_over
    assert figures(mux)["chunks"][1] == MAX_WAITING_CHUNKS


def test_questions_and_confirmations() -> None:
    mux = a_mux()
    mux.ask("models", "", b"", 5.0, 0.0)
    assert figures(mux)["questions"] == (1, 1, 256)
    waiting = Confirmations()
    ref = frames.CallRef(running(mux).call, 0)
    waiting.add((ref, ref), 0.0)
    assert waiting.flush(0.0, can_send=False) == ()
    assert waiting.statistics()[1:3] == (2, 2)
    (done,) = sent(waiting.flush(0.0, can_send=True))
    assert done.calls == (ref, ref)
    assert waiting.statistics()[1:3] == (0, 2)
    waiting.add((ref,) * (limits.MAX_LIST_ENTRIES + 1), 1.0)
    assert waiting.due_s == 1.0
    waiting.flush(1.0, can_send=False)
    assert waiting.statistics()[1:] == (4096, 4096, 4096)


def test_the_broker_is_told_along_with_what_is_said_anyway() -> None:
    """In the first frame of a RESTATE, at most once a second."""
    mux = a_mux()
    stream = running(mux)
    give(mux, stream, 0, 3, 0.1)
    (first,) = restated(ticked(mux, 1.6))
    assert first.queues is not None
    assert first.queues["chunks"] == [3, 3, MAX_WAITING_CHUNKS]
    assert set(first.queues) == set(figures(mux))
    mux.on_disconnected(1.7)
    (again,) = restated(sent(come_up(mux, 2, 1.7)))
    assert again.queues is None
    mux.on_disconnected(9.0)
    (later,) = restated(sent(come_up(mux, 3, 9.0)))
    assert later.queues is not None


def test_old_deadlines_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short calls leave theirs behind: they are thrown out before they are many."""
    monkeypatch.setattr(schedule_module, "_SLACK", 8)
    mux = a_mux()
    stays = running(mux)
    for _ in range(100):
        mux.cancel(running(mux), 0.0)
        for call in [call for call in mux._calls if call != stays.call]:
            assert mux.on_control(frames.Lost(call, 0), 0.0) in ([], ())
        assert len(mux._schedule) <= 2 * (len(mux._calls) + 1) + 8
    assert mux.next_deadline_s() < 10.0
    assert Count("lane_gaps") not in give(mux, stays, 0, 1)
