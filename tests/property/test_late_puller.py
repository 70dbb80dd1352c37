"""The real puller against the worker's calls: room that nobody uses is impossible.

`Pull` reaches the puller some turns of the loop late, once or twice, while frames go on arriving.
The adapter is always ready, so room that is left after some turns means a puller that sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from trunkline_protocol.chunks import Finish, FinishReason, StreamChunk, TextDelta, TokenUsage
from trunkline_protocol.frames import Attach, CallRef, Cancel, Credit, Done, Resume, Window
from trunkline_protocol.ids import CallId, ClientId, StreamKey
from trunkline_workers.boundary import StreamGuard
from trunkline_workers.core.attempt import AttemptState
from trunkline_workers.core.calls import WorkerCalls
from trunkline_workers.core.effects import Begin, CallEffect, Pull, Stop
from trunkline_workers.pull import Puller

from tests.chaos.breaks import ForgetfulCalls
from tests.unit.workers.a_worker import CALL, CLIENT, ME, a_start

TOKEN = b"t" * 16
WINDOWS = (1, 2, 7, 64, 204, 1024)
LATEST_TURNS = 4
# A window of 1,024 chunks is used up in 4 turns of 256; a wake-up is up to 4 turns late.
SETTLED_TURNS = 12


class Rig:
    """One attempt, its puller, and a client that is only frames."""

    def __init__(self, rng: Random, calls_type: type[WorkerCalls]) -> None:
        self.rng = rng
        self.calls = calls_type()
        self.loop = asyncio.get_running_loop()
        self.puller: Puller | None = None
        self.task: asyncio.Task[None] | None = None
        self.finishes = 0
        self.serial = 0
        self.chunk_count = rng.choice([0, 30, 3000, 20_000, 20_000, 20_000])
        self.kinds = ("start", "window", "window", "swing", "credit", "credit", "resume")
        if rng.random() < 0.4:
            self.kinds += ("leave",)

    def perform(self, effects: Sequence[CallEffect]) -> None:
        for effect in effects:
            match effect:
                case Begin():
                    self.puller = Puller(self, effect.start, StreamGuard(str))
                    self.task = self.loop.create_task(self.puller.run(self._open))
                case Pull():
                    for _ in range(self.rng.choice([1, 1, 2])):
                        self._wake_in(self.rng.randint(0, LATEST_TURNS))
                case Stop():
                    assert self.task is not None
                    self.task.cancel()
                case _:
                    pass

    def _wake_in(self, turns: int) -> None:
        assert self.puller is not None
        if turns:
            self.loop.call_soon(self._wake_in, turns - 1)
        else:
            self.puller.on_credit()

    async def _open(self) -> AsyncIterator[StreamChunk]:
        return self._stream()

    async def _stream(self) -> AsyncIterator[StreamChunk]:
        for _ in range(self.chunk_count):
            yield TextDelta(0, "a")
        yield Finish(FinishReason("stop"))

    # --- the sink of the puller ----------------------------------------------------------------

    def ask_room(self, call: CallId, attempt: int) -> int:
        return self.calls.ask_room(call, attempt)

    def push(self, call: CallId, attempt: int, arrays: Sequence[Sequence[Any]]) -> int:
        self.perform(self.calls.on_chunks(call, attempt, arrays, 0.0))
        return self.calls.room(call, attempt)

    def finish(
        self,
        call: CallId,
        attempt: int,
        finish: Finish,
        usage: TokenUsage | None,
        arrays: Sequence[Sequence[Any]],
    ) -> None:
        del usage
        self.finishes += 1
        self.perform(self.calls.on_finish(call, attempt, finish, None, 0.0, arrays))

    def report(self, diagnostic: str) -> None:
        raise AssertionError(diagnostic)

    # --- frames --------------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        return next((one.next for one in self.calls.held()), -1)

    def start(self) -> None:
        window = self.rng.choice(WINDOWS)
        start = replace(a_start(window_chunks=window), detachable=True, token=TOKEN)
        self.perform(self.calls.on_start(start, 0.0))

    def one_frame(self) -> None:
        rng, calls = self.rng, self.calls
        match rng.choice(self.kinds):
            case "start":
                self.start()
            case "window":
                chunks = rng.choice(WINDOWS)
                self.perform(calls.on_window(Window(*ME, chunks, chunks * 512), 0.0))
            case "swing":  # a call of the same client ends, and the next one is opened
                self.perform(calls.on_window(Window(*ME, 1024, 1 << 20), 0.0))
                self.perform(calls.on_window(Window(*ME, 2, 1024), 0.0))
            case "credit":
                self.credit(rng.choice([0.0, 0.5, 1.0]))
            case "resume":
                self.perform(calls.on_resume(Resume(*ME, max(0, self.sent)), 0.0))
            case _:
                self.leave_or_come()

    def credit(self, share: float) -> None:
        held = calls_attempt(self.calls)
        if held is not None:
            received = int(held.sent * share)
            cost = int(held.sent_bytes * share)
            self.perform(self.calls.on_credit(Credit(*ME, received, received, cost), 0.0))

    def leave_or_come(self) -> None:
        if self.rng.random() < 0.5:
            self.perform(self.calls.on_window(Window(*ME, 0, 0), 0.0))
            return
        self.attach()

    def attach(self) -> None:
        self.serial += 1
        key, client = StreamKey(self.serial.to_bytes(8, "big")), ClientId(b"o" * 16)
        window = self.rng.choice(WINDOWS)
        whose = self.rng.choice([client, CLIENT])
        attach = Attach(CALL, TOKEN, key, whose, window, window * 512)
        self.perform(self.calls.on_attach(attach, 0.0))

    # --- judging -------------------------------------------------------------------------------

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let the puller catch up, then see that it does not sleep on room."""
        await self.turns(SETTLED_TURNS)
        before = self.sent
        if self.calls.room(*ME) == 0:
            return
        await self.turns(SETTLED_TURNS)
        held = calls_attempt(self.calls)
        assert held is None or held.sent > before or held.room == 0 or held.ending, (
            f"room {held.room} behind chunk {held.sent}, and nobody pulls"
        )


def calls_attempt(calls: WorkerCalls) -> Any:
    return calls._held.get(ME)


async def played(seed: int, calls_type: type[WorkerCalls] = WorkerCalls) -> None:
    """Send frames of a seed with some turns between them, then read to the end."""
    rng = Random(seed)  # noqa: S311  reproducible, not secret
    rig = Rig(rng, calls_type)
    rig.start()
    for number in range(rng.randint(1, 40)):
        rig.one_frame()
        await rig.turns(rng.choice([0, 0, 0, 1, 2, 5]))
        if number % 5 == 4:
            await rig.settle()
    if rng.random() < 0.2:
        rig.perform(rig.calls.on_cancel(Cancel(*ME), 0.0))
    await _read_to_the_end(rig)
    rig.perform(rig.calls.on_done(Done((CallRef(*ME),)), 0.0))
    assert rig.calls.running_count == rig.calls.tail_count == 0
    assert rig.task is not None
    await asyncio.wait([rig.task], timeout=10)
    assert rig.task.done()
    assert rig.finishes == (0 if rig.task.cancelled() else 1)


async def _read_to_the_end(rig: Rig) -> None:
    if "leave" in rig.kinds:
        rig.attach()  # nobody may be there
    for _ in range(3000):
        found = calls_attempt(rig.calls)
        if found is None or found.state is AttemptState.TAIL:
            return
        rig.perform(rig.calls.on_window(Window(*ME, 1024, 1 << 20), 0.0))
        rig.credit(1.0)
        before = found.sent
        await rig.turns(SETTLED_TURNS)
        assert found.sent > before or found.state is AttemptState.TAIL, (
            f"all is read, and nothing follows chunk {found.sent} ({found.state})"
        )
    raise AssertionError(f"no end after chunk {rig.sent}")


@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_a_puller_that_comes_late_never_sleeps_on_room(seed: int) -> None:
    """Whatever the frames do to the window meanwhile, and however late the wake-up is."""
    asyncio.run(played(seed))


def test_a_second_truth_about_pausing_is_noticed() -> None:
    """A worker that remembers `PAUSED` beside the credit loses wake-ups in some seeds."""
    stopped = sum(_is_stopped(seed) for seed in range(60))
    assert stopped >= 10


def _is_stopped(seed: int) -> bool:
    try:
        asyncio.run(played(seed, ForgetfulCalls))
    except AssertionError as exc:
        return "nobody pulls" in str(exc) or "nothing follows" in str(exc)
    return False
