"""The shell of a client process around the real core; its readers come some turns late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trunkline.core.effects import Answered, Effects, OpenLane, Send, Wake
from trunkline.core.mux import Mux
from trunkline.core.requests import CallRequest
from trunkline.core.stream_state import StreamState
from trunkline_protocol.chunks import BlockEnd, Finish, TextDelta
from trunkline_protocol.codec import encode
from trunkline_protocol.frames import ClientFrame, ToClientFrame
from trunkline_protocol.ids import CallId, ClientId, QueryId, RouteName

from tests.support.joined.worker import TURN_S, Play

if TYPE_CHECKING:
    from tests.support.joined.world import World


@dataclass
class Reader:
    """One task of an application that reads one stream.

    Attributes:
        after: what the application does when it has read so many chunks.
        pause: reading stops for so many seconds behind so many chunks.
    """

    shell: ClientShell
    stream: StreamState
    play: Play
    pace_s: float = 0.0
    pauses: dict[int, float] = field(default_factory=dict[int, float])
    after: dict[int, Callable[[], None]] = field(default_factory=dict[int, Callable[[], None]])
    is_attached: bool = False
    is_cancelled: bool = False
    is_asleep: bool = False
    is_done: bool = False
    count: int = 0
    text: str = ""
    finishes: list[Finish] = field(default_factory=list[Finish])
    moved_s: float = 0.0

    def go_on(self) -> None:
        """Take the next frame, then come back for more; sleep if there is none."""
        if self.is_done or not self.shell.is_alive:
            return
        chunks = self.shell.take(self.stream)
        if not chunks:
            self.is_done = self.stream.is_over
            self.is_asleep = not self.is_done
            if self.is_asleep:
                self.shell.waiters[self.stream.call] = self
            return
        wait_s = self.pace_s
        for chunk in chunks:
            self.count += 1
            wait_s += self.pauses.pop(self.count, 0.0)
            if isinstance(chunk, TextDelta):
                self.text += chunk.text
            elif isinstance(chunk, Finish):
                self.finishes.append(chunk)
            elif isinstance(chunk, BlockEnd) and chunk.block.get("text") != self.text:
                self.shell.world.problem("a block is not what its deltas say")
            act = self.after.pop(self.count, None)
            if act is not None:
                act()
        self.moved_s = self.shell.world.clock.now_s
        self.shell.world.clock.after(wait_s + TURN_S, self.go_on)

    def wake(self) -> None:
        """Take what is there, some turns later."""
        if self.is_asleep:
            self.is_asleep = False
            world = self.shell.world
            late_s = world.rng.choice((0, 1, 2)) * world.late_turns * TURN_S
            world.clock.after(late_s, self.go_on)


class ClientShell:
    """One client process."""

    def __init__(self, world: World, mux_type: type[Mux] = Mux) -> None:
        self.world = world
        self.pid = world.number()
        self.id = ClientId(self.pid.to_bytes(16, "big"))
        # The default name and patience; the seed makes every run of a history the same.
        self.mux = mux_type(self.id, self.pid, "joined", world.rng.randbytes(32), 1000.0)
        self.peer = b""
        self.is_alive = True
        self.to_broker, self.from_broker, self.lane = world.pipe(), world.pipe(), world.pipe()
        self.waiters: dict[CallId, Reader] = {}  # the reader that sleeps, by call
        self.every_reader: list[Reader] = []
        self.asked: list[QueryId] = []
        self.answers: dict[QueryId, Answered] = {}
        self._held_back: list[ClientFrame] = []
        self._timer_s = float("inf")

    # --- the links -----------------------------------------------------------------------------

    def connect(self) -> None:
        """Make the control connection, if a broker is there; what waited for it goes first."""
        if not (self.is_alive and self.world.is_up) or self.to_broker.is_up:
            return
        self.peer = b"client-%d" % self.world.number()
        self.to_broker.open()
        self.from_broker.open()
        waiting, self._held_back = self._held_back, []
        for frame in waiting:
            self.world.on_client_says(self, frame)
        self.perform(self.mux.on_connected(self.world.clock.now_s))

    def connect_lane(self) -> None:
        """Make the lane connection, if a broker is there."""
        if self.is_alive and self.world.is_up and self.mux.lane:
            self.lane.open()

    def disconnect(self) -> None:
        """Learn that the control connection is gone."""
        self.to_broker.close()
        self.from_broker.close()
        if self.is_alive:
            self.perform(self.mux.on_disconnected(self.world.clock.now_s))

    def get(self, frame: ToClientFrame) -> None:
        """Take a control frame."""
        if self.is_alive:
            self.perform(self.mux.on_control(frame, self.world.clock.now_s))

    def get_lane(self, frame: bytes) -> None:
        """Take a lane frame."""
        if self.is_alive:
            self.perform(self.mux.on_lane(frame, self.world.clock.now_s))

    # --- the application -----------------------------------------------------------------------

    def open(
        self, route: str, play: Play, *, detachable: bool = False, recovery: str = "none"
    ) -> Reader:
        """Begin a call and a task that reads it."""
        request = CallRequest(
            RouteName(route), "m", play.body(), recovery=recovery, is_detachable=detachable
        )
        call = self.mux.new_call_id()
        stream, effects = self.mux.open(call, request, self.world.clock.now_s)
        return self._read(stream, play, effects)

    def attach(self, route: str, call: CallId, token: bytes, play: Play) -> Reader:
        """Take over a call."""
        request = CallRequest(RouteName(route), "m", b"", is_detachable=True)
        stream, effects = self.mux.attach(call, request, token, self.world.clock.now_s)
        reader = self._read(stream, play, effects)
        reader.is_attached = True
        return reader

    def _read(self, stream: StreamState, play: Play, effects: Effects) -> Reader:
        now_s = self.world.clock.now_s
        reader = Reader(self, stream, play, moved_s=now_s)
        self.every_reader.append(reader)
        self.perform(effects)
        self.world.clock.after(TURN_S, reader.go_on)
        return reader

    def ask(self, op: str, route: str = "") -> None:
        """Put a query; what comes of it is in `answers`."""
        query, effects = self.mux.ask(op, route, b"", 20.0, self.world.clock.now_s)
        self.asked.append(query)
        self.perform(effects)

    def cancel(self, reader: Reader) -> None:
        """Cancel a call; its task still reads to the end."""
        if not reader.is_done and not reader.finishes and self.is_alive:
            reader.is_cancelled = True
            self.perform(self.mux.cancel(reader.stream, self.world.clock.now_s))

    def take(self, stream: StreamState) -> list[object]:
        """Return the chunks of the next frame."""
        chunks, effects = self.mux.take(stream, self.world.clock.now_s)
        self.perform(effects)
        return list(chunks)

    # --- effects -------------------------------------------------------------------------------

    def perform(self, effects: Effects) -> None:
        """Do what the core wants."""
        for effect in effects:
            match effect:
                case Wake():
                    reader = self.waiters.pop(effect.call, None)
                    if reader is not None:
                        reader.wake()
                case Send():
                    encode(effect.frame)
                    if self.to_broker.is_up:
                        self.world.on_client_says(self, effect.frame)
                    else:
                        self._held_back.append(effect.frame)
                case OpenLane():
                    self.lane.close()
                    late_s = self.world.rng.random() * 0.01
                    self.world.clock.after(late_s, self.connect_lane)
                case Answered():
                    self.answers[effect.query] = effect
                case _:
                    pass
        self._arm()

    def _arm(self) -> None:
        due_s = self.mux.next_deadline_s()
        if due_s < self._timer_s:
            self._timer_s = due_s
            self.world.clock.at(due_s, lambda: self._tick(due_s))

    def _tick(self, due_s: float) -> None:
        if due_s != self._timer_s or not self.is_alive:
            return
        self._timer_s = float("inf")
        self.perform(self.mux.on_tick(self.world.clock.now_s))
        self._arm()
