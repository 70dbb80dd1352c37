"""A request on which worker processes die ends after two of them; what ran beside it goes on."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from trunkline_broker.core.effects import Spawn
from trunkline_broker.core.specs import RestartSpec
from trunkline_protocol import frames
from trunkline_protocol.ids import CallId

from tests.support.broker_rig import NORMAL, Rig, RigClient, RigWorker, a_pool, only

QUICK = RestartSpec(initial_delay_s=0.1, max_delay_s=0.1, intensity=5)
POISON = b"poison"


class Bench:
    """A pool whose workers die of one request, and clients that retry as they are told.

    Attributes:
        deaths: of workers.
        finishes: how each call ended: "ok", or the code of its failure.
    """

    def __init__(self, replicas: int, seed: int, crash_s: float, runs_s: float) -> None:
        self.rig = Rig(a_pool(replicas=replicas, restart=QUICK))
        self.random = Random(seed)  # noqa: S311  no secret
        self.crash_s, self.runs_s = crash_s, runs_s
        self.workers: dict[bytes, RigWorker] = {}
        self.client = RigClient(self.rig, 900)
        self.deaths = 0
        self.finishes: dict[CallId, str] = {}
        self.opens: dict[CallId, frames.Open] = {}
        self.running: dict[CallId, tuple[bytes, frames.Start, float]] = {}
        self.due: list[tuple[float, Spawn]] = []
        self.bodies: dict[CallId, bytes] = {}
        self.take(self.rig.effects)
        self.step(0.5)
        self.take(self.client.hello())

    def take(self, effects: list[Any]) -> None:
        todo = list(effects)
        while todo:
            effect = todo.pop(0)
            if isinstance(effect, Spawn):
                self.due.append((self.rig.now_s + 0.2, effect))
                continue
            peer, frame = getattr(effect, "peer", b""), getattr(effect, "frame", None)
            if isinstance(frame, frames.Start) and peer in self.workers:
                self.running[frame.call] = (peer, frame, self.rig.now_s)
            elif isinstance(frame, frames.RetryStarted):
                opened = self.opens[frame.call]
                again = self.client.an_open(
                    call=frame.call, attempt=frame.attempt, recovery="policy", body=opened.body
                )
                todo += self.client.say(again)
            elif isinstance(frame, frames.Failed):
                self.finishes[frame.call] = frame.failure["code"]

    def open(self, body: bytes) -> frames.Open:
        opened = self.client.an_open(recovery="policy", body=body)
        self.opens[opened.call] = opened
        self.take(self.client.say(opened))
        return opened

    def step(self, seconds: float) -> None:
        """Move time by tenths of a second, with everything that is due."""
        for _ in range(round(seconds * 10)):
            self.take(self.rig.wait(0.1))
            for at_s, spawn in list(self.due):
                if at_s <= self.rig.now_s:
                    self.due.remove((at_s, spawn))
                    worker = self.rig.spawn(spawn)
                    self.workers[worker.peer] = worker
                    self.take(worker.register())
                    self.take(worker.ready("p", policy={**NORMAL, "maxRetries": 5}))
            for worker in list(self.workers.values()):
                self.take(worker.beat())
            for call, (peer, start, began_s) in list(self.running.items()):
                if call in self.running:
                    self._go_on(call, peer, start, began_s)
            self.rig.check()

    def _go_on(self, call: CallId, peer: bytes, start: frames.Start, began_s: float) -> None:
        ran_s = self.rig.now_s - began_s
        if bytes(start.body).startswith(POISON):
            if ran_s >= self.crash_s:
                self._crash(peer)
        elif ran_s >= self.runs_s:
            del self.running[call]
            ended = frames.Ended(call, start.attempt, 3, {"kind": "stop"})
            self.take(self.workers[peer].say(ended))
            self.finishes[call] = "ok"
            self.take(self.client.say(frames.Done((frames.CallRef(call, start.attempt),))))

    def _crash(self, peer: bytes) -> None:
        self.deaths += 1
        for call, (where, _, _) in list(self.running.items()):
            if where == peer:
                del self.running[call]
        self.take(self.workers.pop(peer).exit("signal 11"))


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("crash_s", [0.1, 0.6])
@pytest.mark.parametrize("runs_s", [2.0, 15.0])
@pytest.mark.parametrize("seed", range(3))
def test_twenty_innocents_beside_a_poison(
    replicas: int, crash_s: float, runs_s: float, seed: int
) -> None:
    """The poison ends after its second death; every other call ends well, within its time."""
    bench = Bench(replicas, seed, crash_s, runs_s)
    bodies = [b"innocent %d" % number for number in range(20)]
    bodies.insert(bench.random.randrange(21), POISON)
    calls = {}
    for body in bodies:
        calls[bench.open(body).call] = body
        bench.step(bench.random.choice((0.0, 0.1)))
    bench.step(60.0)
    ends = {body: bench.finishes.get(call) for call, body in calls.items()}
    assert ends.pop(POISON) == "CRASHES_WORKER"
    assert ends == dict.fromkeys(ends, "ok")
    assert bench.deaths == 2
    assert len(bench.rig.hub.calls) == 0
    assert not any(len(gate) for _, gate in bench.rig.hub.gates)


def test_a_poison_that_takes_its_time_ends_after_three_deaths() -> None:
    """Its turn is over when it crashes, so the second death names several."""
    bench = Bench(1, 1, crash_s=8.0, runs_s=30.0)
    calls = {bench.open(body).call: body for body in (b"one", POISON, b"two")}
    bench.step(200.0)
    ends = {body: bench.finishes.get(call) for call, body in calls.items()}
    assert ends == {b"one": "ok", POISON: "CRASHES_WORKER", b"two": "ok"}
    assert bench.deaths <= 3


def test_a_client_that_sends_the_same_request_again_kills_no_further_worker() -> None:
    """For a minute each time; other requests are served all the while."""
    bench = Bench(2, 2, crash_s=0.2, runs_s=0.5)
    bench.open(POISON)
    bench.step(10.0)
    assert bench.deaths == 2
    for _ in range(20):
        again, other = bench.open(POISON), bench.open(b"other")
        bench.step(1.0)
        assert bench.finishes[again.call] == "CRASHES_WORKER"
        assert bench.finishes[other.call] == "ok"
    assert bench.deaths == 2
    assert bench.rig.count("requests_barred") == 1
    bench.step(45.0)
    bench.open(POISON)
    bench.step(10.0)
    assert bench.deaths == 4
    assert bench.rig.hub.pools.get("p").down_reason() == ""  # type: ignore[arg-type,union-attr]


def test_calls_without_retries_are_counted_too() -> None:
    """The client's program repeats them with new ids: by their content they are one request."""
    rig = Rig(a_pool(replicas=2, restart=QUICK))
    workers = [rig.a_worker(spawn=spawn) for spawn in rig.spawned()]
    client = rig.a_client()
    first = client.open(body=POISON)
    dead = next(worker for worker in workers if worker.got(frames.Start))
    dead.exit("signal 11")
    assert client.failure()["code"] == "TRANSPORT"
    client.open(body=POISON)
    other = next(worker for worker in workers if worker is not dead)
    assert only(other.got(frames.Start)).body == POISON
    other.exit("signal 11")
    assert client.failure()["code"] == "CRASHES_WORKER"
    client.open(body=POISON)
    assert client.failure()["code"] == "CRASHES_WORKER"
    client.say(first)  # its own end was another one
    assert client.failure()["code"] == "TRANSPORT"
    rig.check()


@pytest.mark.parametrize("how", ["swap", "cancelled", "done", "tail"])
def test_what_did_not_run_when_a_worker_crashed_is_not_suspect(how: str) -> None:
    """Nor is anything in a worker that was asked to go."""
    rig = Rig(a_pool(restart=QUICK))
    worker = rig.a_worker()
    client = rig.a_client()
    opened = client.open()
    if how == "swap":
        client.query("drain", {"pool": "p"})
    elif how == "done":
        client.say(frames.Done((frames.CallRef(opened.call, 0),)))
    elif how == "tail":
        worker.end(opened)
    else:
        client.say(frames.Cancel(opened.call, 0))
    worker.exit("signal 11")
    assert len(rig.hub.suspicion) == (how == "cancelled")
    rig.check()


def test_a_call_that_becomes_suspect_while_it_waits_holds_nobody_up() -> None:
    """Its request ran elsewhere when a worker died; the calls behind it begin before it."""
    rig = Rig(a_pool(concurrency=1, restart=QUICK), a_pool("q", restart=QUICK))
    one, _ = (rig.a_worker(spawn=spawn) for spawn in rig.spawned())
    client, other = rig.a_client(), rig.a_client()
    client.open(body=POISON)
    same = client.open(body=POISON)
    behind = other.open(body=b"b")
    one.exit("signal 11")
    rig.wait(0.2)
    again = rig.spawn(only(rig.spawned()))
    again.register()
    again.ready("p")
    assert only(again.got(frames.Start)).call == behind.call
    again.end(behind)
    assert only(again.got(frames.Start)).call == same.call
    again.exit("signal 11")
    assert client.failure()["code"] == "CRASHES_WORKER"
    rig.check()


def test_a_prepared_call_waits_for_the_turn_of_a_suspect() -> None:
    """Only the worker that prepared it can run it."""
    rig = Rig(a_pool(restart=QUICK))
    worker = rig.a_worker()
    client = rig.a_client()
    client.open(body=POISON)
    worker.exit("signal 11")
    rig.wait(0.2)
    again = rig.spawn(only(rig.spawned()))
    again.register()
    again.ready("p")
    client.open(body=POISON)
    assert again.got(frames.Start)
    client.open(body=b"other")
    assert again.got(frames.Start) == []
    rig.live(2.0, again)
    assert only(again.got(frames.Start)).body == b"other"
    rig.check()
