"""The composed core of a worker: each frame reaches its machine, each tick reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from trunkline_protocol.chunks import TokenUsage
from trunkline_protocol.frames import (
    Attach,
    Bye,
    Committed,
    Heartbeat,
    HeldAttachment,
    Query,
    QueryCancel,
    Refused,
    Register,
    Registered,
    Registrations,
    Reply,
    Role,
    Who,
    Window,
)
from trunkline_protocol.ids import Epoch, Generation, LeaseId, PoolName, QueryId
from trunkline_workers.core.effects import (
    Answer,
    Begin,
    Count,
    DropAnswer,
    Exit,
    Pull,
    Resolve,
    SendControl,
    TakeReply,
)
from trunkline_workers.core.link import EXIT_OK, RegistrationSet, WorkerIdentity
from trunkline_workers.core.worker import WorkerCore

from tests.unit.workers.a_worker import (
    CALL,
    KEY,
    ME,
    STOP,
    a_cancel,
    a_credit,
    a_done,
    a_failure,
    a_resume,
    a_start,
    control,
    kinds,
    lane,
    texts,
)

BORN = Generation(Epoch(1), 1)
LEASE = LeaseId(b"l" * 16)
ASKED = QueryId(b"q" * 16)


def a_core(*, is_registered: bool = True) -> WorkerCore:
    identity = WorkerIdentity(PoolName("p"), 0, BORN, 1)
    core = WorkerCore(identity, 0.0, 30.0, lambda: (LEASE,))
    core.on_connected()
    if is_registered:
        core.on_frame(Registered(Epoch(1), "ipc://lane", BORN), 0.0)
    return core


def load_of(effects: list[Any]) -> dict[str, Any]:
    (beat,) = [frame for frame in control(effects) if isinstance(frame, Heartbeat)]
    assert beat.load is not None
    return dict(beat.load)


def test_call_frames_reach_the_calls() -> None:
    core = a_core()
    start = a_start(window_chunks=1)
    assert core.on_frame(start, 0.0) == [Begin(start)]
    core.on_chunks(*ME, texts("a"), 0.0)
    assert core.ask_room(*ME) == core.room(*ME) == 0
    assert core.on_frame(a_credit(1, 1, 512), 0.0) == [Pull(*ME)]
    assert core.ask_room(*ME) == 1
    assert core.on_frame(Window(CALL, 0, 5, 10_000), 0.0) == []
    assert core.room(*ME) == 5
    assert lane(core.on_frame(a_resume(0), 0.0)) == []
    core.on_finish(*ME, STOP, None, 0.0)
    assert core.on_frame(a_done(), 0.0) == []
    assert kinds(core.on_frame(a_cancel(), 0.0)) == ["SendControl"]


def test_queries_are_answered_or_dropped_by_the_shell() -> None:
    query = Query(ASKED, "listModels", "route")
    assert a_core().on_frame(query, 0.0) == [Answer(query)]
    assert a_core().on_frame(QueryCancel(ASKED), 0.0) == [DropAnswer(ASKED)]


def test_link_frames_reach_the_link() -> None:
    core = a_core()
    request, effects = core.ask(RegistrationSet(()))
    assert kinds(effects) == ["SendControl"]
    assert core.on_frame(Committed(request), 0.0) == [Resolve(request)]
    assert core.on_frame(Role("serving"), 0.0) == []
    assert core.link.role == "serving"
    assert core.on_frame(Refused("BAD_FRAME", ""), 0.0) == [Count("refused_BAD_FRAME")]
    assert core.on_frame(Heartbeat(), 0.0) == []
    assert core.on_frame(Bye(), 0.0) == [Exit(EXIT_OK, "the broker said BYE")]


def test_attach_reaches_the_calls() -> None:
    core = a_core()
    assert core.on_frame(Attach(CALL, b"t", KEY), 0.0) == [Count("frames_of_unknown_calls")]


def test_who_is_answered_with_everything_held() -> None:
    core = a_core()
    core.on_frame(a_start(), 0.0)
    (frame,) = control(core.on_frame(Who(Epoch(2)), 1.0))
    assert isinstance(frame, Register)
    assert [held.call for held in frame.calls] == [CALL]
    assert frame.leases == (LEASE,)
    assert core.on_frame(Who(Epoch(2)), 1.0) == []


def test_a_new_broker_hears_again_of_every_end() -> None:
    core = a_core()
    core.on_frame(a_start(), 0.0)
    core.on_finish(*ME, STOP, None, 0.0)
    core.on_connected()
    effects = core.on_frame(Registered(Epoch(2), "ipc://lane", BORN), 1.0)
    assert [frame.call for frame in control(effects)] == [CALL]


def test_a_lane_that_was_made_again_reports_at_once() -> None:
    core = a_core()
    assert core.on_lane_connected() == []
    core.on_frame(a_start(), 0.0)
    core.on_chunks(*ME, texts("a"), 0.0)
    (beat,) = control(core.on_lane_connected())
    assert [progress.next for progress in beat.sent] == [1]
    core.on_connected()
    assert core.on_lane_connected() == []


def test_a_tick_beats_with_load_and_progress() -> None:
    core = a_core()
    core.on_frame(a_start(), 0.0)
    core.on_chunks(*ME, texts("a"), 0.004)
    core.on_chunks(*ME, texts("b"), 0.010)
    core.on_finish(*ME, STOP, TokenUsage(1, 7), 0.5, texts("c"))
    load = load_of(core.on_tick(1.0, 0.0, {"rss": 5}))
    assert (load["rss"], load["running"], load["tails"], load["leases"]) == (5, 0, 1, 1)
    route = load["routes"]["route"]
    assert (route["calls"], route["failed"], route["chunks"], route["tokens"]) == (1, 0, 4, 7)
    assert sum(route["ttft"]) == 1
    assert sum(route["gaps"]) == 2


def test_a_tick_repeats_the_greeting_that_nobody_answered() -> None:
    (frame,) = control(a_core(is_registered=False).on_tick(1.0, 0.0, {}))
    assert isinstance(frame, Register)


def test_a_tick_forgets_and_leaves() -> None:
    core = a_core()
    core.on_frame(a_start(), 0.0)
    core.on_finish(*ME, STOP, None, 0.0)
    effects = core.on_tick(31.0, 0.0, {})
    assert [effect.name for effect in effects if isinstance(effect, Count)] == ["tails_expired"]
    assert any(isinstance(effect, Exit) for effect in effects)


def test_failed_and_stopped_attempts_are_measured_as_such() -> None:
    core = a_core()
    core.on_frame(a_start(), 0.0)
    core.on_finish(*ME, a_failure("SERVER"), None, 0.1)
    core.on_frame(a_start(attempt=1), 0.2)
    core.on_chunks(CALL, 1, [(1, 0, object())], 0.3)
    core.on_finish(CALL, 1, STOP, None, 0.4)
    route = load_of(core.on_tick(1.0, 0.0, {}))["routes"]["route"]
    assert (route["calls"], route["failed"]) == (2, 1)


def test_chunks_of_an_attempt_that_is_over_are_only_counted() -> None:
    assert a_core().on_chunks(*ME, texts("a"), 0.0) == [Count("late_chunks")]
    assert a_core().on_finish(*ME, STOP, None, 0.0) == [Count("late_chunks")]


def test_a_signal_says_bye_and_leaves() -> None:
    effects = a_core().on_stop(0.0, 0.0)
    assert kinds(effects) == ["SendControl", "Exit"]
    assert isinstance(effects[0], SendControl)
    assert isinstance(effects[0].frame, Bye)


def a_busy_core() -> tuple[WorkerCore, list[LeaseId]]:
    """Return a core that serves one call, and the prepared calls it holds."""
    leases: list[LeaseId] = []
    core = WorkerCore(WorkerIdentity(PoolName("p"), 0, BORN, 1), 0.0, 3000.0, lambda: tuple(leases))
    core.on_connected()
    core.on_frame(Registered(Epoch(1), "ipc://lane", BORN), 0.0)
    request, _ = core.ask(RegistrationSet(({"adapter": 0, "routes": []},)))
    core.on_frame(Committed(request), 0.0)
    core.on_frame(Role("serving"), 0.0)
    core.on_frame(a_start(), 0.0)
    return core, leases


def test_a_worker_that_drains_gives_its_routes_back_and_leaves_when_it_holds_nothing() -> None:
    """Neither a running call, nor its tail, nor a prepared call is left behind."""
    core, leases = a_busy_core()
    assert core.state() == "serving"
    (withdrawn,) = control(core.on_stop(1.0, 600.0))
    assert withdrawn == Registrations(2, ())
    assert core.state() == "draining"
    assert "Exit" not in kinds(core.on_tick(2.0, 0.0, {}))
    core.on_finish(*ME, STOP, None, 2.5)
    assert "Exit" not in kinds(core.on_tick(3.0, 0.0, {}))
    core.on_frame(a_done(), 3.5)
    leases.append(LEASE)
    assert "Exit" not in kinds(core.on_tick(4.0, 0.0, {}))
    leases.clear()
    effects = core.on_tick(5.0, 0.0, {})
    assert kinds(effects)[-2:] == ["SendControl", "Exit"]
    assert Bye("stopped by a signal") in control(effects)


def test_a_worker_that_drains_leaves_at_its_deadline_or_at_a_second_signal() -> None:
    late, _ = a_busy_core()
    late.on_stop(1.0, 10.0)
    assert "Exit" not in kinds(late.on_tick(10.9, 0.0, {}))
    assert kinds(late.on_tick(11.0, 0.0, {}))[-1] == "Exit"
    twice, _ = a_busy_core()
    twice.on_stop(1.0, 10.0)
    assert kinds(twice.on_stop(1.5, 10.0)) == ["SendControl", "Exit"]


def test_a_worker_without_work_or_time_leaves_at_once() -> None:
    idle, _ = a_busy_core()
    idle.on_frame(a_cancel(), 0.0)
    idle.on_frame(a_done(), 0.0)
    for core, drain_s in ((idle, 600.0), (a_busy_core()[0], 0.0)):
        assert kinds(core.on_stop(1.0, drain_s)) == ["SendControl", "Exit"]


def test_the_state_is_said_in_one_word() -> None:
    core, _ = a_busy_core()
    core.on_connected()
    assert core.state() == "waiting"
    core.on_frame(Registered(Epoch(1), "ipc://lane", BORN), 0.0)
    core.on_frame(Role("draining"), 0.0)
    assert core.state() == "draining"


def test_bye_tells_the_reason_of_the_broker() -> None:
    assert a_core().on_frame(Bye("swapped"), 0.0) == [Exit(EXIT_OK, "swapped")]


@pytest.mark.parametrize("count", [1, 300])
def test_routes_are_bounded(count: int) -> None:
    from trunkline_workers.core.load import MAX_ROUTES, LoadMeter

    load = LoadMeter()
    for number in range(count):
        load.open(f"r{number}", 0.0).on_chunks(1, 100.0)
    assert len(load.to_dict()) == min(count, MAX_ROUTES + 1)


def test_an_answer_of_the_broker_goes_to_whoever_asked() -> None:
    reply = Reply(QueryId(bytes(16)), body=b"x")
    assert a_core().on_frame(reply, 0.0) == [TakeReply(reply)]


def test_attachments_are_held_by_attempts_that_run() -> None:
    """An attempt whose finish was sent needs none any more."""
    core = a_core()
    core.on_frame(replace(a_start(), attachments=("sha256:a", "sha256:b")), 0.0)
    core.on_frame(a_start(attempt=1), 0.0)
    held = (HeldAttachment(CALL, "sha256:a"), HeldAttachment(CALL, "sha256:b"))
    (frame,) = control(core.on_connected())
    assert frame.attachments == held
    core.on_finish(*ME, STOP, None, 0.1)
    (frame,) = control(core.on_connected())
    assert frame.attachments == ()
