"""The shell of a worker process around the real core; its pullers come some turns late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from trunkline_broker.core.effects import Spawn
from trunkline_protocol.chunks import BlockEnd, BlockStart, Finish, FinishReason, TextDelta
from trunkline_protocol.codec import pack_body
from trunkline_protocol.elision import BlockElider
from trunkline_protocol.failure import Code, LlmFailure
from trunkline_protocol.frames import Reply, Start, ToWorkerFrame
from trunkline_protocol.ids import CallId
from trunkline_workers.core.calls import WorkerCalls
from trunkline_workers.core.effects import (
    Answer,
    Begin,
    ConnectLane,
    Effect,
    Exit,
    OpenAdapter,
    Pull,
    SendControl,
    SendLane,
    Stalled,
    Stop,
)
from trunkline_workers.core.link import RegistrationSet, WorkerIdentity
from trunkline_workers.core.worker import WorkerCore

from tests.support.broker_rig import NORMAL, adapters
from tests.support.joined.net import Pipe

if TYPE_CHECKING:
    from tests.support.joined.world import World

Key = tuple[CallId, int]
TURN_S = 0.0002
_BROKEN = FinishReason("error", LlmFailure("try again", Code.SERVER))


@dataclass(frozen=True)
class Play:
    """What an adapter does for a call; travels as the body of its `OPEN`."""

    chunks: int
    batch: int = 8
    pace_s: float = 0.001
    failures: int = 0  # attempts that fail before their first chunk

    def body(self) -> bytes:
        """Return it as the body."""
        return f"{self.chunks};{self.batch};{self.pace_s};{self.failures}".encode()

    @staticmethod
    def of(body: bytes) -> Play:
        """Read it back."""
        chunks, batch, pace_s, failures = body.decode().split(";")
        return Play(int(chunks), int(batch), float(pace_s), int(failures))

    def text(self) -> str:
        """Return the whole text."""
        return "".join(f"<{at}>" for at in range(self.chunks))


class WorkerShell:
    """One worker process."""

    def __init__(self, world: World, order: Spawn, calls_type: type[WorkerCalls]) -> None:
        self.world = world
        self.order = order
        self.pid = world.number()
        identity = WorkerIdentity(order.pool, order.slot, order.generation, self.pid, order.token)
        self.core = WorkerCore(identity, world.clock.now_s, 60.0)
        self.core.calls = calls_type()
        self.peer = b""
        self.is_alive = True
        self.to_broker, self.from_broker = world.pipe(), world.pipe()
        self.lane = world.pipe()
        self.pullers: dict[Key, PullerShell] = {}
        self.begun: list[Key] = []
        self._tick_every()

    # --- the links -----------------------------------------------------------------------------

    def connect(self) -> None:
        """Make the control connection, if a broker is there."""
        if not (self.is_alive and self.world.is_up) or self.to_broker.is_up:
            return
        self.peer = b"worker-%d" % self.world.number()
        self.to_broker.open()
        self.from_broker.open()
        self.perform(self.core.on_connected())

    def connect_lane(self) -> None:
        """Make the lane connection, if a broker is there."""
        if self.is_alive and self.world.is_up and not self.lane.is_up:
            self.lane.open()
            self.perform(self.core.on_lane_connected())

    def disconnect(self, pipes: Sequence[Pipe]) -> None:
        for pipe in pipes:
            pipe.close()

    def get(self, frame: ToWorkerFrame) -> None:
        """Take a control frame."""
        if self.is_alive:
            self.perform(self.core.on_frame(frame, self.world.clock.now_s))

    def _tick_every(self) -> None:
        if not self.is_alive:
            return
        now_s = self.world.clock.now_s
        self.perform(self.core.on_tick(now_s, 0.0, {}))
        waiting = {key: puller.is_asleep for key, puller in self.pullers.items()}
        self.perform(self.core.on_look(waiting, now_s))
        self.world.clock.after(1.0, self._tick_every)

    # --- effects -------------------------------------------------------------------------------

    def perform(self, effects: Sequence[Effect]) -> None:
        """Do what the core wants."""
        for effect in effects:
            match effect:
                case SendLane():
                    self.world.on_worker_lane(self, effect)
                case SendControl():
                    self.world.on_worker_says(self, effect.frame)
                case Pull():
                    puller = self.pullers.get((effect.call, effect.attempt))
                    if puller is not None:
                        puller.wake()
                case Begin():
                    self._begin(effect.start)
                case Stop():
                    self.pullers.pop((effect.call, effect.attempt), None)
                case _:
                    self._perform_rare(effect)

    def _perform_rare(self, effect: Effect) -> None:
        match effect:
            case OpenAdapter():
                policy = {**NORMAL, "initialDelayMs": 50}
                offer = RegistrationSet(adapters(self.order.pool, policy=policy))
                self.perform(self.core.ask(offer)[1])
            case ConnectLane():
                self.world.clock.after(TURN_S, self.connect_lane)
            case Answer():
                reply = Reply(effect.query.query, body=pack_body([]))
                self.world.clock.after(TURN_S, lambda: self.perform([SendControl(reply)]))
            case Stalled():
                self.world.problem(f"the net of the worker: {effect.state}")
            case Exit():
                self.world.kill(self, effect.reason)
            case _:
                pass

    def _begin(self, start: Start) -> None:
        key = (start.call, start.attempt)
        if key in self.begun:
            self.world.problem("an attempt was begun twice")
        self.begun.append(key)
        self.pullers[key] = PullerShell(self, key, Play.of(start.body), self.world.rng)


class PullerShell:
    """Pulls one attempt, as `pull.Puller` does: asks for room, and asks again when it is woken."""

    def __init__(self, shell: WorkerShell, key: Key, play: Play, rng: Random) -> None:
        self.shell = shell
        self.key = key
        self.is_asleep = False
        self._rng = rng
        self._play = play
        self._clock = shell.world.clock
        text = play.text()
        self._chunks = [
            BlockStart(0, "text"),
            *(TextDelta(0, f"<{at}>") for at in range(play.chunks)),
            BlockEnd(0, {"type": "text", "text": text}),
        ]
        self._at = 0
        self._elider = BlockElider()
        self._clock.after(self._late_s(), self._ask)

    def _late_s(self) -> float:
        return self._rng.choice((0, 1, 1, 3)) * self.shell.world.late_turns * TURN_S

    def wake(self) -> None:
        """Ask for room again, some turns later; nothing if it does not sleep."""
        if self.is_asleep:
            self.is_asleep = False
            self._clock.after(self._late_s(), self._ask)

    def _is_over(self) -> bool:
        return not self.shell.is_alive or self.shell.pullers.get(self.key) is not self

    def _ask(self) -> None:
        if self._is_over():
            return
        room = self.shell.core.ask_room(*self.key)
        if room == 0:
            self.is_asleep = True
        else:
            self._clock.after(self._play.pace_s, lambda: self._push(room))

    def _push(self, room: int) -> None:
        if self._is_over():
            return
        shell, now_s = self.shell, self._clock.now_s
        if self.key[1] < self._play.failures:
            del shell.pullers[self.key]
            shell.perform(shell.core.on_finish(*self.key, Finish(_BROKEN), None, now_s))
            return
        batch = self._chunks[self._at : self._at + min(room, self._play.batch)]
        if not batch:
            del shell.pullers[self.key]
            stop = Finish(FinishReason("stop"))
            shell.perform(shell.core.on_finish(*self.key, stop, None, now_s))
            return
        self._at += len(batch)
        arrays = [self._elider.elide(chunk).to_array() for chunk in batch]
        shell.perform(shell.core.on_chunks(*self.key, arrays, now_s))
        left = shell.core.room(*self.key)
        if left:
            self._clock.after(self._play.pace_s, lambda: self._push(left))
        else:
            self._clock.after(TURN_S, self._ask)
