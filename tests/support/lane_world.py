"""The real client core and the real worker core, joined over a bad network in fake time.

A tiny broker in the middle forwards by (call, attempt) and answers what SPEC.md section 5 says;
it may die and come back. Every message passes the codec. Links lose, double and reorder.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from trunkline.core.effects import Effects, Send, Wake
from trunkline.core.mux import Mux
from trunkline.core.requests import CallRequest
from trunkline.core.stream_state import StreamState
from trunkline_protocol import codec, frames
from trunkline_protocol.chunks import BlockEnd, BlockStart, Finish, FinishReason, TextDelta
from trunkline_protocol.elision import BlockElider
from trunkline_protocol.ids import CallId, ClientId, Epoch, Generation, PoolName, RouteName
from trunkline_workers.core.calls import WorkerCalls
from trunkline_workers.core.effects import (
    Begin,
    CallEffect,
    Count,
    Pull,
    SendControl,
    SendLane,
    Stop,
)

CLIENT = ClientId(b"c" * 16)
LANE = "ipc:///fake/lane"


@dataclass
class Weather:
    """How bad the links are."""

    loss: float
    double: float
    max_delay_s: float
    broker_deaths: int


@dataclass
class Script:
    """What one call is to do."""

    chunk_count: int
    batch: int
    pace_s: float
    read_pace_s: float
    open_at_s: float
    cancel_at_s: float | None


@dataclass
class Reader:
    """One application task: what it has seen of its stream."""

    script: Script
    stream: StreamState
    texts: list[str] = field(default_factory=list[str])
    finishes: list[Finish] = field(default_factory=list[Finish])
    is_cancelled: bool = False
    is_busy: bool = False


class World:
    """One client, one broker, one worker, one seed."""

    def __init__(
        self,
        rng: Random,
        weather: Weather,
        window: tuple[int, int],
        mux_type: type[Mux] = Mux,
        calls_type: type[WorkerCalls] = WorkerCalls,
    ) -> None:
        self.rng = rng
        self.weather = weather
        self.window = window
        self.now_s = 1000.0
        # On links this bad even greeting a broker may take half a minute.
        self.mux = mux_type(CLIENT, 1, "world", rng.randbytes(32), self.now_s, 3600.0)
        self.worker = calls_type()
        self.readers: dict[CallId, Reader] = {}
        self.begun: list[tuple[CallId, int]] = []
        self.adapters: dict[tuple[CallId, int], _Adapter] = {}
        self.problems: list[str] = []
        self.epoch = 1
        self.is_alive = True
        self.owners: dict[CallId, frames.Start] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._tick_at_s = float("inf")

    # --- time ----------------------------------------------------------------------------------

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._serial, what))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._events)
            what()

    def _arm(self) -> None:
        deadline_s = self.mux.next_deadline_s()
        if deadline_s < self._tick_at_s:
            self._tick_at_s = deadline_s
            self.after(max(0.0, deadline_s - self.now_s), lambda: self._tick(deadline_s))

    def _tick(self, at_s: float) -> None:
        if at_s != self._tick_at_s:
            return
        self._tick_at_s = float("inf")
        self.client_does(self.mux.on_tick(self.now_s))

    def _link(self, what: Callable[[], None]) -> None:
        """Carry one message, or none, or two, after some delay; a dead broker carries nothing."""
        epoch = self.epoch

        def arrive() -> None:
            if self.is_alive and self.epoch == epoch:
                what()

        copies = 1 + (self.rng.random() < self.weather.double)
        for _ in range(copies):
            if self.rng.random() >= self.weather.loss:
                self.after(self.rng.uniform(0.0002, self.weather.max_delay_s), arrive)

    # --- client --------------------------------------------------------------------------------

    def client_does(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Send():
                    parts = codec.encode(effect.frame)
                    self._link(lambda parts=parts: self._broker_gets(parts))
                case Wake():
                    reader = self.readers.get(effect.call)
                    if reader is not None and not reader.is_busy:
                        reader.is_busy = True
                        self.after(0.0, lambda reader=reader: self._read(reader))
                case _:
                    pass  # this world has one lane, no queries and no counters
        self._arm()

    def connect(self) -> None:
        self.client_does(self.mux.on_connected(self.now_s))
        self.after(1.0, self._heartbeat)

    def open(self, script: Script) -> None:
        call = self.mux.new_call_id()
        request = CallRequest(RouteName("r"), "m", str(script.chunk_count).encode())
        stream, effects = self.mux.open(call, request, self.now_s)
        self.readers[call] = Reader(script, stream)
        self.client_does(effects)
        if script.cancel_at_s is not None:
            self.after(script.cancel_at_s, lambda: self._cancel(self.readers[call]))

    def _cancel(self, reader: Reader) -> None:
        if not reader.stream.is_over:
            reader.is_cancelled = True
        self.client_does(self.mux.cancel(reader.stream, self.now_s))
        if self.mux.cancel(reader.stream, self.now_s):
            self.problems.append("a second cancel did something")

    def _read(self, reader: Reader) -> None:
        """Take one frame's chunks, look at them for a while, come back."""
        chunks, effects = self.mux.take(reader.stream, self.now_s)
        for chunk in chunks:
            if isinstance(chunk, TextDelta):
                reader.texts.append(chunk.text)
            elif isinstance(chunk, Finish):
                reader.finishes.append(chunk)
        reader.is_busy = bool(chunks)
        if chunks:
            self.after(reader.script.read_pace_s, lambda: self._read(reader))
        waiting = reader.stream.intake.waiting_chunks
        if waiting > self.window[0]:
            self.problems.append(f"{waiting} chunks wait in the client")
        self.client_does(effects)

    # --- broker --------------------------------------------------------------------------------

    def _broker_gets(self, parts: list[bytes]) -> None:
        frame = codec.decode(parts, codec.Direction.CLIENT_TO_BROKER)
        match frame:
            case frames.Hello():
                self._to_client(frames.Welcome((1, 0), Epoch(self.epoch), LANE))
            case frames.Probe():
                self._lane(codec.encode_probed(frame.nonce))
            case frames.Open() if frame.seen:
                self._asked(frame)
            case frames.Open():
                start = frames.Start(
                    frame.call,
                    frame.attempt,
                    CLIENT,
                    frame.stream_key,
                    frame.provider,
                    frame.model,
                    *self.window,
                    body=frame.body,
                )
                self._bind(start)
            case frames.Restate():
                for entry in frame.calls:
                    self._restated(entry)
            case frames.Credit() | frames.Resume() | frames.Cancel():
                self._to_worker(frame)
            case frames.Done():
                self._to_worker(frame)
            case _:
                pass

    def _asked(self, frame: frames.Open) -> None:
        """Answer an `OPEN` that starts nothing."""
        start = self.owners.get(frame.call)
        if start is None or start.attempt != frame.attempt:
            self._to_client(frames.Lost(frame.call, frame.attempt))
        else:
            window = frames.Window(frame.call, frame.attempt, *self.window)
            self._to_client(window)

    def _bind(self, start: frames.Start) -> None:
        self.owners[start.call] = start
        accepted = frames.Accepted(
            start.call,
            start.attempt,
            PoolName("p"),
            0,
            Generation(Epoch(1), 1),
            *self.window,
            {"mode": "normal"},
        )
        self._to_client(accepted)
        self._to_worker(start)

    def _restated(self, entry: frames.Restated) -> None:
        """A held call is bound again and told the totals; one nobody holds is lost (rule 8)."""
        held = {(one.call, one.attempt): one for one in self.worker.held()}
        if (entry.call, entry.attempt) not in held:
            self._to_client(frames.Lost(entry.call, entry.attempt))
            return
        start = frames.Start(
            entry.call,
            entry.attempt,
            CLIENT,
            entry.stream_key,
            entry.provider,
            "m",
            *self.window,
        )
        self._bind(start)
        self._to_worker(
            frames.Credit(
                entry.call, entry.attempt, entry.received, entry.consumed, entry.consumed_bytes
            )
        )

    def _to_client(self, frame: frames.ToClientFrame) -> None:
        parts = codec.encode(frame)

        def arrive() -> None:
            told = codec.decode(parts, codec.Direction.BROKER_TO_CLIENT)
            self.client_does(self.mux.on_control(told, self.now_s))  # type: ignore[arg-type]

        self._link(arrive)

    def _lane(self, frame: bytes) -> None:
        self._link(lambda: self.client_does(self.mux.on_lane(frame, self.now_s)))

    def die(self, down_s: float) -> None:
        self.is_alive = False
        self.owners.clear()
        self.client_does(self.mux.on_disconnected(self.now_s))
        self.after(down_s, self._come_back)

    def _come_back(self) -> None:
        self.epoch += 1
        self.is_alive = True
        self.client_does(self.mux.on_connected(self.now_s))

    # --- worker --------------------------------------------------------------------------------

    def _to_worker(self, frame: frames.ToWorkerFrame) -> None:
        parts = codec.encode(frame)
        self._link(lambda: self._worker_gets(parts))

    def _worker_gets(self, parts: list[bytes]) -> None:
        frame = codec.decode(parts, codec.Direction.BROKER_TO_WORKER)
        worker, now_s = self.worker, self.now_s
        match frame:
            case frames.Start():
                self._worker_does(worker.on_start(frame, now_s))
            case frames.Credit():
                self._worker_does(worker.on_credit(frame, now_s))
            case frames.Resume():
                self._worker_does(worker.on_resume(frame, now_s))
            case frames.Cancel():
                self._worker_does(worker.on_cancel(frame, now_s))
            case frames.Done():
                self._worker_does(worker.on_done(frame, now_s))
            case _:
                raise AssertionError(f"the broker of this world sends no {frame}")

    def _worker_does(self, effects: Sequence[CallEffect]) -> None:
        for effect in effects:
            match effect:
                case SendLane():
                    self._lane(effect.frame)
                case SendControl():
                    self._worker_says(effect.frame)
                case Begin():
                    self._begin(effect.start)
                case Pull():
                    adapter = self.adapters.get((effect.call, effect.attempt))
                    if adapter is not None:
                        adapter.wake()
                case Stop():
                    self.adapters.pop((effect.call, effect.attempt), None)
                case Count():
                    if effect.name in {"bad_credit", "bad_resume"}:
                        self.problems.append(effect.name)

    def _worker_says(self, frame: frames.WorkerFrame) -> None:
        if isinstance(frame, frames.Ended):
            self._link(lambda: self._to_client(frame))

    def _begin(self, start: frames.Start) -> None:
        key = (start.call, start.attempt)
        self.begun.append(key)
        self.adapters[key] = _Adapter(self, *key, int(start.body or b"0"))
        self.after(0.001, self.adapters[key].pull)

    def _heartbeat(self) -> None:
        """Report how far every stream was sent, as each worker does every second."""
        self._worker_does(self.worker.on_tick(self.now_s))
        entries = self.worker.progress()
        if entries:
            self._link(lambda: self._to_client(frames.Sent(entries)))
        self.after(1.0, self._heartbeat)

    def adapter_emits(self, call: CallId, attempt: int, arrays: list[tuple[object, ...]]) -> None:
        self._worker_does(self.worker.on_chunks(call, attempt, arrays, self.now_s))

    def adapter_ends(self, call: CallId, attempt: int) -> None:
        finish = Finish(FinishReason("stop"))
        self._worker_does(self.worker.on_finish(call, attempt, finish, None, self.now_s))


class _Adapter:
    """Emits one text block of numbered pieces, as fast as its script and the credit allow."""

    def __init__(self, world: World, call: CallId, attempt: int, count: int) -> None:
        self.world = world
        self.call, self.attempt = call, attempt
        self.chunks = [
            BlockStart(0, "text"),
            *(TextDelta(0, f"<{at}>") for at in range(count)),
            BlockEnd(0, {"type": "text", "text": "".join(f"<{at}>" for at in range(count))}),
        ]
        self.at = 0
        self.is_asleep = False
        self.elider = BlockElider()

    def wake(self) -> None:
        if self.is_asleep:
            self.is_asleep = False
            self.pull()

    def pull(self) -> None:
        world = self.world
        if (self.call, self.attempt) not in world.worker.running():
            return
        if not world.worker.ask_room(self.call, self.attempt):
            self.is_asleep = True
            return
        reader = world.readers[self.call]
        batch = self.chunks[self.at : self.at + world.rng.randint(1, reader.script.batch)]
        self.at += len(batch)
        if batch:
            arrays = [self.elider.elide(chunk).to_array() for chunk in batch]
            world.adapter_emits(self.call, self.attempt, arrays)
            world.after(reader.script.pace_s, self.pull)
        else:
            world.adapter_ends(self.call, self.attempt)


def a_script(rng: Random) -> Script:
    return Script(
        chunk_count=rng.choice([0, 1, 3, 40, 300]),
        batch=rng.choice([1, 4, 32]),
        pace_s=rng.choice([0.0, 0.001, 0.02]),
        read_pace_s=rng.choice([0.0, 0.002, 0.05]),
        open_at_s=rng.uniform(0.0, 2.0),
        cancel_at_s=rng.uniform(0.0, 3.0) if rng.random() < 0.25 else None,
    )


def a_weather(rng: Random, deaths: int = 2) -> Weather:
    return Weather(
        loss=rng.choice([0.0, 0.02, 0.2]),
        double=rng.choice([0.0, 0.1, 0.3]),
        max_delay_s=rng.choice([0.001, 0.01, 0.08]),
        broker_deaths=rng.randint(0, deaths),
    )


def played(
    seed: int,
    mux_type: type[Mux] = Mux,
    calls_type: type[WorkerCalls] = WorkerCalls,
    deaths: int = 2,
) -> list[str]:
    """Play one seed to the end; return what went wrong."""
    rng = Random(seed)  # noqa: S311  reproducible, not secret
    window = (rng.choice([1, 2, 16, 64]), rng.choice([600, 4096, 65536]))
    world = World(rng, a_weather(rng, deaths), window, mux_type, calls_type)
    world.connect()
    for _ in range(rng.randint(1, 6)):
        script = a_script(rng)
        world.after(script.open_at_s, lambda script=script: world.open(script))
    for _ in range(world.weather.broker_deaths):
        world.after(rng.uniform(0.0, 4.0), lambda: world.die(rng.uniform(0.01, 2.0)))
    world.run(world.now_s + 5.0)
    # A lost credit of a window of one chunk costs a second, so bad weather may take long.
    while any(not reader.finishes for reader in world.readers.values()) and world.now_s < 20_000:
        world.run(world.now_s + 50.0)
    world.run(world.now_s + 200.0)
    return [*world.problems, *_judged(world)]


def _judged(world: World) -> list[str]:
    problems: list[str] = []
    for call, reader in world.readers.items():
        starts = [one for one in world.begun if one[0] == call]
        if len(starts) != len(set(starts)):
            problems.append("an attempt was started twice")
        whole = [f"<{at}>" for at in range(reader.script.chunk_count)]
        if reader.texts != whole[: len(reader.texts)]:
            problems.append(f"chunks lost, doubled or out of order: {reader.texts[:20]}")
        if len(reader.finishes) != 1:
            problems.append(f"{len(reader.finishes)} finishes ({reader.stream.phase})")
            continue
        kind = reader.finishes[0].reason.kind
        if kind != ("aborted" if reader.is_cancelled else "stop"):
            problems.append(f"ended {reader.finishes[0].reason}")
        if kind == "stop" and reader.texts != whole:
            problems.append(f"{len(reader.texts)} of {len(whole)} chunks seen")
    if world.mux.open_count or world.mux.next_deadline_s() != float("inf"):
        problems.append("the client keeps something")
    if world.worker.running_count or world.worker.tail_count:
        problems.append("the worker keeps something")
    return problems
