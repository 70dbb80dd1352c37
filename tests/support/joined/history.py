"""Histories of the joined cores: what clients do and what breaks, from a seed; and the judgement.

Applications act on what they read: one that has read 440 to 620 chunks opens 15 short calls beside
a long one, so that windows fall and rise. Readers pause. Detachable calls change hands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from trunkline.core.mux import Mux
from trunkline_protocol.failure import Code
from trunkline_workers.core.calls import WorkerCalls

from tests.support.joined.client import ClientShell, Reader
from tests.support.joined.worker import Play
from tests.support.joined.world import Lose, World, lose_nothing

FAULTS_FOR_S = 5.0
# Past the last fault a call may wait for 8 s between repeats, and a tail for 30 s.
END_S = 300.0
RETENTION_S = 150.0
FAULTS = (
    *("client control", "client lane", "worker control", "worker lane"),
    *("broker", "client dies", "client lane", "client control"),
)


@dataclass
class Outcome:
    """What came of a history."""

    problems: list[str]
    calls: int
    attached: int
    chunks: int


class History:
    """Plays one seed.

    Args:
        seed: of everything.
        calls_type: see `World`.
        mux_type: see `World`.
        lose: see `World`.
        has_faults: whether links break and processes die; a third of the seeds are calm anyway.
    """

    def __init__(
        self,
        seed: int,
        calls_type: type[WorkerCalls] = WorkerCalls,
        mux_type: type[Mux] = Mux,
        lose: Lose = lose_nothing,
        *,
        has_faults: bool = True,
    ) -> None:
        self.rng = Random(~seed)  # noqa: S311  reproducible, not secret
        delay_s = self.rng.choice((0.0002, 0.001, 0.01))
        self.world = World(seed, delay_s, calls_type, mux_type, lose)
        self.clock = self.world.clock
        self.has_faults = has_faults and self.rng.random() < 0.67
        self.owners: list[Reader] = []  # of detachable calls
        self.was_killed: set[ClientShell] = set()

    def play(self) -> Outcome:
        """Play to the end and judge."""
        world, rng = self.world, self.rng
        clients = [world.a_client() for _ in range(rng.randint(1, 3))]
        self.clock.after(0.5 + rng.random(), partial(self._long_beside_short, clients[0]))
        for client in clients:
            for _ in range(rng.randint(0, 2)):
                self.clock.after(0.5 + rng.random(), self._an_agent(client))
        if self.has_faults:
            for _ in range(rng.randint(1, 6)):
                self.clock.after(0.6 + rng.random() * FAULTS_FOR_S, self._a_fault)
        for _ in range(rng.choice((2, 8, 16))):
            self.clock.after(0.8 + rng.random() * FAULTS_FOR_S, self._hand_over)
        until_s = self.clock.now_s + 1 + FAULTS_FOR_S
        self.clock.run(until_s)
        self.clock.run(until_s + END_S, self._is_quiet)
        problems = [*world.problems, *self._unfinished()]
        if not problems:
            self.clock.run(self.clock.now_s + RETENTION_S)
            problems = [*world.problems, *self._judged(), *self._left_over()]
        readers = [reader for client in world.clients for reader in client.every_reader]
        return Outcome(
            problems,
            len(readers),
            sum(reader.is_attached for reader in readers),
            sum(reader.count for reader in readers),
        )

    # --- what applications do ------------------------------------------------------------------

    def _an_agent(self, client: ClientShell) -> Callable[[], None]:
        kinds = (self._long_beside_short, self._some_calls, self._some_calls, self._swarm)
        kind = self.rng.choice(kinds)
        return lambda: kind(client) if client.is_alive else None

    def _long_beside_short(self, client: ClientShell) -> None:
        """A long call whose reader pauses and opens many short ones, more than once."""
        rng = self.rng
        if not client.is_alive:
            return
        reader = client.open("wide", Play(rng.randint(1200, 3000), rng.choice((16, 32, 200)), 0.0))
        reader.pauses[rng.randint(1, 430)] = 0.25  # until the worker has used up the window
        for _ in range(rng.randint(1, 3)):
            # Credit for half a window goes out behind chunk 512: the windows fall beside it.
            at = rng.choice((rng.randint(440, 620), rng.randint(513, 540)))
            reader.after[at] = lambda: self._shorts(client, 15)
            reader.pauses[rng.randint(400, 1100)] = rng.choice((0.02, 0.25))

    def _shorts(self, client: ClientShell, count: int) -> None:
        for _ in range(count):
            late_s = self.rng.choice((0.0, 0.0, 0.0, self.rng.random() * 0.02))
            self.clock.after(late_s, lambda: self._a_short(client))

    def _a_short(self, client: ClientShell) -> None:
        if client.is_alive:
            play = Play(self.rng.randint(0, 40), self.rng.choice((1, 8)), 0.0005)
            self._maybe_cancelled(client.open(self.rng.choice(("wide", "wide", "tight")), play))

    def _some_calls(self, client: ClientShell) -> None:
        """Calls of every kind, one after the other."""
        rng = self.rng
        for _ in range(rng.randint(1, 6)):
            self.clock.after(rng.random() * 3, lambda: self._a_call(client))

    def _a_call(self, client: ClientShell) -> None:
        if not client.is_alive:
            return
        rng = self.rng
        is_detachable = rng.random() < 0.5
        failures = rng.choice((0, 0, 0, 1, 2))
        play = Play(
            rng.choice((0, 3, 50, 800)),
            rng.choice((1, 8)),
            rng.choice((0.0, 0.002, 0.02)),
            failures,
        )
        reader = client.open(
            rng.choice(("wide", "tight")),
            play,
            detachable=is_detachable,
            recovery="policy" if failures else "none",
        )
        reader.pace_s = rng.choice((0.0, 0.0, 0.005))
        reader.pauses[rng.randint(1, 50)] = rng.choice((0.0, 0.3, 3.0))
        if is_detachable:
            self.owners.append(reader)
        else:
            self._maybe_cancelled(reader)

    def _swarm(self, client: ClientShell) -> None:
        self._shorts(client, self.rng.randint(5, 40))

    def _maybe_cancelled(self, reader: Reader) -> None:
        if self.rng.random() < 0.15:
            late_s = self.rng.random() * 0.1
            self.clock.after(late_s, lambda: reader.shell.cancel(reader))

    def _hand_over(self) -> None:
        """Another client takes over a detachable call, or the same one, if it does not hold it."""
        rng, world = self.rng, self.world
        known = [one for one in self.owners if one.stream.served_by is not None]
        living = [client for client in world.clients if client.is_alive]
        if not known or not living:
            return
        owner, client = rng.choice(known), rng.choice(living)
        served = owner.stream.served_by
        if served is None or served.token is None:
            return
        request = owner.stream.request
        self.owners.append(
            client.attach(request.provider, owner.stream.call, served.token, owner.play)
        )

    # --- what breaks ---------------------------------------------------------------------------

    def _a_fault(self) -> None:
        rng, world = self.rng, self.world
        back_s = rng.choice((0.0, 0.02, 0.3, 1.2))
        client = rng.choice(world.clients)
        workers = [worker for worker in world.workers if worker.is_alive]
        match rng.choice(FAULTS):
            case "client control":
                world.cut_client(client, back_s)
            case "client lane":
                world.cut_lane(client, back_s)
            case "worker control" if workers:
                world.cut_worker(rng.choice(workers), back_s)
            case "worker lane" if workers:
                world.cut_lane(rng.choice(workers), back_s)
            case "broker":
                world.kill_broker(back_s)
            case "client dies" if len(world.clients) > 1 and rng.random() < 0.5:
                self.was_killed.add(client)
                world.kill_client(client)
            case _:
                pass

    # --- judging -------------------------------------------------------------------------------

    def _readers(self) -> list[Reader]:
        clients = [client for client in self.world.clients if client.is_alive]
        return [reader for client in clients for reader in client.every_reader]

    def _is_quiet(self) -> bool:
        return all(reader.is_done for reader in self._readers())

    def _unfinished(self) -> list[str]:
        return [
            f"a reader waits for ever: {_told(reader)}"
            for reader in self._readers()
            if not reader.is_done
        ]

    def _judged(self) -> list[str]:
        problems: list[str] = []
        handed = {reader.stream.call for reader in self._readers() if reader.is_attached}
        handed |= {reader.stream.call for reader in self.owners}
        for reader in self._readers():
            whole = reader.play.text()
            if len(reader.finishes) != 1:
                problems.append(f"{len(reader.finishes)} finishes")
                continue
            reason = reader.finishes[0].reason
            if not whole.startswith(reader.text):
                problems.append(f"wrong text: {reader.text[:80]}")
            if reason.kind == "stop" and reader.text != whole:
                problems.append(f"{len(reader.text)} of {len(whole)} characters")
            if reason.kind != "stop" and not self._may_end(reader, handed):
                problems.append(f"ended {reason} after {reader.count} chunks of {reader.play}")
        return problems

    def _may_end(self, reader: Reader, handed: set[bytes]) -> bool:
        """Return whether a stream may end other than by its own stop."""
        if reader.is_cancelled or reader.stream.call in handed:
            return True
        failure = reader.finishes[0].reason.failure
        return reader.play.failures > 0 and failure is not None and failure.code == Code.SERVER

    def _left_over(self) -> list[str]:
        world = self.world
        problems: list[str] = []
        calls = list(world.hub.calls)
        if calls:
            told = [(call.id.hex()[:8], call.state, call.client, call.worker) for call in calls]
            problems.append(f"the broker keeps {told}")
        problems += [
            f"route {route} counts {gate.running}, {len(gate.queue)} wait"
            for route, gate in world.hub.gates
            if gate.running or len(gate.queue)
        ]
        for client in world.clients:
            if client.is_alive and client.mux.open_count:
                problems.append(f"a client keeps {client.mux.open_count} calls")
        for worker in world.workers:
            if worker.is_alive and worker.core.calls.queues()["callsCount"]:
                problems.append(f"a worker keeps {worker.core.calls.held()}")
            if worker.is_alive and worker.pullers:
                problems.append(f"a worker pulls {len(worker.pullers)} streams")
        return problems


def _told(reader: Reader) -> str:
    stream = reader.stream
    return (
        f"{stream.phase}, call {stream.call.hex()[:8]}, attempt {stream.attempt}, chunk"
        f" {reader.count} of {reader.play}, attached {reader.is_attached}, cancelled"
        f" {reader.is_cancelled}"
    )


def played(
    seed: int,
    calls_type: type[WorkerCalls] = WorkerCalls,
    mux_type: type[Mux] = Mux,
    *,
    has_faults: bool = True,
) -> Outcome:
    """Play one seed."""
    return History(seed, calls_type, mux_type, has_faults=has_faults).play()
