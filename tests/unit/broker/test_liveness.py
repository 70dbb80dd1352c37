"""Leases of workers, and what the kernel says of a silent one."""

from __future__ import annotations

import pytest
from trunkline_broker.core.cpu import CpuLook, ThreadLook, waited_s
from trunkline_broker.core.effects import Log, LookAtWorker
from trunkline_broker.core.events import WorkerLooked
from trunkline_broker.core.liveness import CATCH_UP_S, extend, is_late, lease_ends_s
from trunkline_broker.core.workers import Worker
from trunkline_protocol.ids import Epoch, Generation

from tests.support.broker_rig import Rig, RigWorker, a_pool


def test_a_lease_ends_after_the_last_frame_and_is_extended_by_lateness() -> None:
    """Time in which nothing could be heard does not count."""
    worker = Worker(Generation(Epoch(1), 1), a_pool(), 0, b"", 0.0)
    worker.heard_s = 5.0
    assert lease_ends_s(worker, 3.0) == 8.0
    extend(worker, 10.0)
    assert lease_ends_s(worker, 3.0) == 18.0 + CATCH_UP_S


def test_half_a_second_is_late() -> None:
    """ARCHITECTURE 5."""
    assert not is_late(0.5)
    assert is_late(0.51)


MAIN = 7


def a_look(at_s: float, ran_s: float, queued_s: float, slept: int, *, runs: bool) -> CpuLook:
    """Return a look at a process with one thread."""
    return CpuLook(at_s, {MAIN: ThreadLook(ran_s, queued_s, slept, runs)})


@pytest.mark.parametrize(
    ("before", "after", "expected_s"),
    [
        # It waited all the time and still does: the kernel has counted nothing yet.
        ((0.0, 1.0, 1.0, 5, True), (1.0, 1.0, 1.0, 5, True), 1.0),
        # It woke in between and has not run since.
        ((0.0, 1.0, 1.0, 5, False), (1.0, 1.0, 1.0, 5, True), 1.0),
        # It ran for a fifth of the time and never slept.
        ((0.0, 1.0, 1.0, 5, True), (1.0, 1.2, 1.1, 5, True), 0.8),
        # It spun.
        ((0.0, 1.0, 1.0, 5, True), (1.0, 2.0, 1.0, 5, True), 0.0),
        # It sleeps, and waited a little before.
        ((0.0, 1.0, 1.0, 5, True), (1.0, 1.1, 1.3, 6, False), 0.3),
        # It sleeps, or is stopped.
        ((0.0, 1.0, 1.0, 5, False), (1.0, 1.0, 1.0, 5, False), 0.0),
        # Counters never make more of a time than it is long, nor less than nothing.
        ((0.0, 1.0, 1.0, 5, False), (1.0, 1.0, 9.0, 5, False), 1.0),
        ((1.0, 1.0, 1.0, 5, True), (0.5, 1.0, 1.0, 5, True), 0.0),
    ],
)
def test_time_without_cpu_is_what_it_wanted_to_run_and_did_not(
    before: tuple[float, float, float, int, bool],
    after: tuple[float, float, float, int, bool],
    expected_s: float,
) -> None:
    """From the counters and the states at the two looks."""
    looks = [a_look(*row[:4], runs=row[4]) for row in (before, after)]
    assert waited_s(*looks) == pytest.approx(expected_s)


def test_the_thread_that_waited_most_counts() -> None:
    """A main thread that sleeps well does not help if the thread that sends gets no CPU."""
    idle = ThreadLook(1.0, 1.0, 1, is_runnable=False)
    waits = ThreadLook(1.0, 1.0, 1, is_runnable=True)
    before, after = CpuLook(0.0, {7: idle, 8: idle}), CpuLook(1.0, {7: idle, 8: waits, 9: waits})
    assert waited_s(before, after) == 1.0
    assert waited_s(before, CpuLook(1.0, {})) == 0.0


class Kernel:
    """What the kernel tells of a thread that gets a share of the CPU it wants."""

    def __init__(self, rig: Rig, share: float, *, sleeps: bool = False) -> None:
        self._rig = rig
        self._share = share
        self._sleeps = sleeps
        self._since_s = rig.now_s
        rig.look = self.look

    def look(self, _: Generation) -> CpuLook:
        lasted_s = self._rig.now_s - self._since_s
        ran_s = 0.0 if self._sleeps else lasted_s * self._share
        return a_look(self._rig.now_s, ran_s, 0.0, 1, runs=not self._sleeps)


def a_silent_worker(**spec: float) -> tuple[Rig, RigWorker]:
    """Return a broker and a worker of this host that sends nothing from now on."""
    rig = Rig(**spec)
    worker = rig.a_worker()
    return rig, worker


@pytest.mark.parametrize("lease_s", [3.0, 10.0])
def test_a_worker_that_gets_no_cpu_is_never_killed(lease_s: float) -> None:
    """Each lease is extended by what the kernel proves; the log says so once per lease."""
    rig, worker = a_silent_worker(lease_s=lease_s)
    Kernel(rig, 0.0)
    seen = rig.wait(10 * lease_s)
    assert rig.signals() == []
    assert rig.hub.workers.get(worker.generation) is not None
    lines = [e for e in seen if isinstance(e, Log) and e.event == "worker_starved"]
    assert 5 <= len(lines) <= 11
    assert rig.count("leases_extended_for_cpu") >= len(lines)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 1.0])
def test_a_worker_that_spins_is_killed_once_it_had_a_lease_of_cpu(share: float) -> None:
    """The rest of the CPU may be others': what it ran counts, however long that takes."""
    rig, worker = a_silent_worker()
    Kernel(rig, share)
    began_s = rig.now_s
    until_s = began_s + 100
    while not rig.signals() and rig.now_s < until_s:
        rig.wait(0.25)
    assert rig.signals() == [(worker.generation, "KILL")]
    # The first two seconds of a silence are not looked at.
    assert 3.0 <= rig.now_s - began_s <= 3.5 + 1.0 / share


@pytest.mark.parametrize("answer", ["sleeps", "nothing", "no answer"])
def test_a_worker_that_does_not_wait_for_cpu_is_killed_in_time(answer: str) -> None:
    """Asleep, stopped, out of the kernel's sight, or a shell that never answers."""
    rig, worker = a_silent_worker()
    if answer == "sleeps":
        Kernel(rig, 0.0, sleeps=True)
    elif answer == "no answer":
        rig.answers_looks = False
    rig.wait(2.9)
    assert rig.signals() == []
    rig.wait(0.2 if answer != "no answer" else 0.7)
    assert rig.signals() == [(worker.generation, "KILL")]


def test_a_frame_ends_the_doubt() -> None:
    """What was measured before a frame does not count for the silence behind it."""
    rig, worker = a_silent_worker()
    Kernel(rig, 0.0)
    rig.wait(5.0)
    worker.beat()
    Kernel(rig, 0.0, sleeps=True)
    rig.wait(2.9)
    assert rig.signals() == []
    rig.wait(0.2)
    assert rig.signals() == [(worker.generation, "KILL")]


def test_a_late_answer_changes_nothing() -> None:
    """Of a worker that is unknown, was not looked at, or has sent a frame meanwhile."""
    rig, worker = a_silent_worker()
    look = a_look(rig.now_s, 0.0, 0.0, 1, runs=True)
    for generation in (worker.generation, Generation(Epoch(1), 99)):
        assert rig.tell(WorkerLooked(generation, look)) == []


def test_a_worker_on_another_host_is_not_looked_at() -> None:
    """Its lease is longer, and its process is nobody's here."""
    rig, worker = a_silent_worker()
    found = rig.hub.workers.get(worker.generation)
    assert found is not None
    found.is_remote = True
    seen = rig.wait(15.0)
    assert not [effect for effect in seen if isinstance(effect, LookAtWorker)]
    assert rig.hub.workers.get(worker.generation) is None or rig.signals()
