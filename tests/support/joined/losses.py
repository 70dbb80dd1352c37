"""One fixed scenario in which every state occurs, played with frames of one kind lost.

A frame that is lost once takes its connection with it, as on a socket. One kind that is lost for
ever stands for whatever keeps it from arriving: a bug at the other end, or a version without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

from trunkline_protocol import frames
from trunkline_protocol.codec import PROBED, Direction, decode_lane_header

from tests.support.joined.client import ClientShell, Reader
from tests.support.joined.worker import Play
from tests.support.joined.world import CLIENT_LANE, WORKER_LANE, Party, World

Kind = tuple[str, str]
"""The way of a frame, and its kind."""

_UNIONS = (
    (Direction.CLIENT_TO_BROKER, frames.ClientFrame),
    (Direction.BROKER_TO_CLIENT, frames.ToClientFrame),
    (Direction.WORKER_TO_BROKER, frames.WorkerFrame),
    (Direction.BROKER_TO_WORKER, frames.ToWorkerFrame),
)
KINDS: tuple[Kind, ...] = (
    *((way.value, frame.__name__) for way, union in _UNIONS for frame in get_args(union)),
    *((way, kind) for way in (CLIENT_LANE, WORKER_LANE) for kind in ("chunks", "echo")),
)


def kind_of(frame: object) -> str:
    """Return the kind of a control or lane frame."""
    if isinstance(frame, bytes):
        return "echo" if decode_lane_header(frame).kind == PROBED else "chunks"
    return type(frame).__name__


@dataclass
class Loss:
    """Loses frames of one kind.

    Attributes:
        kind: which; `None`: none.
        at: the number of the one that is lost, from 0; `None`: all.
        from_s: seconds since the start of the scenario; nothing is lost before.
        seen: frames of each kind that were sent, lost or not.
    """

    kind: Kind | None = None
    at: int | None = None
    from_s: float = 0.0
    seen: dict[Kind, int] = field(default_factory=dict[Kind, int])
    world: World | None = None

    def __call__(self, way: str, frame: object, party: Party) -> bool:
        """Return whether this frame is lost; one that is lost alone breaks its connection."""
        kind = (way, kind_of(frame))
        count = self.seen.get(kind, 0)
        self.seen[kind] = count + 1
        world = self.world
        if kind != self.kind or world is None or world.clock.now_s - 1000 < self.from_s:
            return False
        if self.at is None:
            return True
        if count == self.at:
            world.clock.after(0.0, lambda: self._cut(world, way, party))
        return count == self.at

    def _cut(self, world: World, way: str, party: Party) -> None:
        if way in {CLIENT_LANE, WORKER_LANE}:
            world.cut_lane(party, 0.02)
        elif isinstance(party, ClientShell):
            world.cut_client(party, 0.02)
        else:
            world.cut_worker(party, 0.02)


class Scenario:
    """Calls in every state: queued, running, paused, in backoff, cancelled, detached, taken over.

    Args:
        loss: what is lost.
        broker_dies_s: when the broker is killed; `None`: never.
    """

    def __init__(self, loss: Loss, broker_dies_s: float | None = None) -> None:
        self.loss = loss
        is_strict = loss.at is not None or loss.kind is None
        self.world = loss.world = World(7, lose=loss, is_strict=is_strict, queue_timeout_s=30.0)
        self.readers: dict[str, Reader] = {}
        self.first, self.second, self.mortal = (self.world.a_client() for _ in range(3))
        self._at(0.5, self._open)
        self._at(0.7, lambda: self.first.cancel(self.readers["cancelled"]))
        self._at(0.9, lambda: self.first.cancel(self.readers["cancelled in the queue"]))
        self._at(1.0, lambda: self.world.kill_client(self.mortal))
        self._at(1.1, lambda: self._take_over("shared", "taken over"))
        self._at(1.3, lambda: self._take_over("orphan", "adopted"))
        for at_s in (0.6, 1.6):
            self._at(at_s, self._ask)
        if broker_dies_s is not None:
            self._at(broker_dies_s, lambda: self.world.kill_broker(0.3))

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        self.world.clock.at(1000 + at_s, action)

    def _open(self) -> None:
        first = self.first
        opened = {
            "plain": first.open("wide", Play(100, 4, 0.02)),
            "short": first.open("wide", Play(0)),
            "slow reader": first.open("wide", Play(1500, 64, 0.0)),
            "retried": first.open("wide", Play(20, 4, 0.01, failures=1), recovery="policy"),
            "cancelled": first.open("wide", Play(500, 4, 0.02)),
            "shared": first.open("wide", Play(150, 4, 0.03), detachable=True),
            "orphan": self.mortal.open("wide", Play(150, 4, 0.03), detachable=True),
        }
        opened["slow reader"].pauses = {1: 1.5}
        for number in range(5):
            opened[f"tight {number}"] = first.open("tight", Play(40, 4, 0.04))
        opened["cancelled in the queue"] = first.open("tight", Play(40, 4, 0.04))
        self.readers.update(opened)

    def _take_over(self, owner: str, name: str) -> None:
        reader = self.readers[owner]
        served = reader.stream.served_by
        if served is not None and served.token is not None:
            request = reader.stream.request
            self.readers[name] = self.second.attach(
                request.provider, reader.stream.call, served.token, reader.play
            )

    def _ask(self) -> None:
        self.first.ask("listModels", "wide")
        self.second.ask("models")

    def play(self, end_s: float) -> list[str]:
        """Play until all has ended and nothing is held; return what is not so at the end."""
        clock = self.world.clock
        clock.run(1000 + 5)
        while (left := self._unended()) and clock.now_s < 1000 + end_s:
            clock.run(clock.now_s + 5)
        return [*self.world.problems, *left]

    def _unended(self) -> list[str]:
        problems: list[str] = []
        for name, reader in self.readers.items():
            if reader.shell.is_alive and (not reader.is_done or len(reader.finishes) != 1):
                problems.append(
                    f"{name}: {reader.stream.phase}, chunk {reader.count},"
                    f" {len(reader.finishes)} finishes"
                )
            if not reader.play.text().startswith(reader.text):
                problems.append(f"{name}: wrong text")
        for client in (self.first, self.second):
            unanswered = len([query for query in client.asked if query not in client.answers])
            if unanswered or client.mux.open_count or client.mux.question_count:
                problems.append(f"{unanswered} queries wait, {client.mux.open_count} calls kept")
        return [*problems, *self._held()]

    def _held(self) -> list[str]:
        world = self.world
        calls = [(call.id.hex()[:8], call.state, call.client) for call in world.hub.calls]
        problems = [f"the broker keeps {calls}"] if calls else []
        for worker in world.workers:
            held = worker.core.calls.held()
            if worker.is_alive and (held or worker.pullers):
                problems.append(f"a worker keeps {held}, pulls {len(worker.pullers)}")
        return problems

    def outcome(self) -> dict[str, str]:
        """Return how each stream ended that its reader kept to the end, and how much it brought.

        A stream that was handed over ends for its first reader as soon as that one hears of it.
        """
        return {
            name: f"{reader.finishes[0].reason.kind} {_share(name, reader)}"
            for name, reader in self.readers.items()
            if reader.shell.is_alive and reader.finishes and name != "shared"
        }


def _share(name: str, reader: Reader) -> str:
    if name.startswith("cancelled"):
        return ""
    return "whole" if reader.text == reader.play.text() else f"{len(reader.text)} characters"
