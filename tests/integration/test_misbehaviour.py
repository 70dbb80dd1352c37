"""Each way in which adapter code may misbehave, at each hook: a failure of that one call alone.

One real worker process goes through all ways at one hook, while a good stream runs beside them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trunkline_protocol.codec import pack_body
from trunkline_protocol.frames import Bye, Committed, Heartbeat, Query, Registrations, Reply, Start
from trunkline_protocol.ids import QueryId
from trunkline_workers.core.link import EXIT_CONFIG

from tests.integration.test_host import Worker, a_worker
from tests.support.fake_broker import Received, a_start, credit_for
from tests.support.misbehaviour import DONE, GOOD, RAISED, RETURNED, WAYS
from tests.support.timing import SLOW

pytestmark = pytest.mark.integration

PLUGIN = "tests.support.misbehaviour:setup"
STREAM_HOOKS = ("call", "first", "later", "item", "items", "closing", "resolve")
REGISTRY_HOOKS = (
    "info", "policy", "routes", "route", "adapter", "replace", "namespace", "entries", "settings",
)  # fmt: skip
WITHIN_S = 1.0 * SLOW
_numbers: Iterator[int] = itertools.count(1)


class Table:
    """One worker, its good stream, and what each cell came to."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.good: Start | None = None
        self.before = 0

    async def begin_good(self) -> None:
        """Start the stream that must go on."""
        self.good = a_start(provider=GOOD, model=f"{GOOD}:")
        await self.worker.broker.send(self.good)

    def good_stream(self) -> Received:
        assert self.good is not None
        return self.worker.stream(self.good)

    async def check_alive(self, cell: str) -> None:
        """The worker lives, and the good stream has more than before."""
        child, broker = self.worker.child, self.worker.broker
        assert child.poll() is None, f"{cell}: the worker died: {self.worker.output}"
        stream = self.good_stream()
        if "cancels-all" in cell:  # that is every stream of this adapter: each says so
            while stream.finish is None:
                await broker.lane_frame()
            failure = stream.finish.reason.failure
            assert failure is not None
            assert "cancelled" in failure.message
            await self.begin_good()
            stream = self.good_stream()
        seen = len(stream.chunks)
        while len(stream.chunks) <= seen:
            assert stream.finish is None, f"{cell}: the good stream ended: {stream.finish}"
            await broker.lane_frame()
        assert self.good is not None
        await broker.send(credit_for(self.good, stream))

    async def stream(self, hook: str, way: str) -> str:
        """Run one bad stream; return the code of its failure."""
        start = a_start(provider=GOOD, model=f"{hook}:{way}")
        await self.worker.broker.send(start)
        stream = await self.worker.broker.whole_stream(start)
        assert stream.finish is not None
        failure = stream.finish.reason.failure
        if failure is None:
            return ""
        assert failure.message.strip(), f"{hook}:{way} says nothing"
        assert len(failure.message) <= 4096
        return failure.code

    async def ask(self, op: str, provider: str, argument: Any = None) -> dict[str, Any]:
        """Ask one question, committing what the worker registers meanwhile."""
        broker = self.worker.broker
        body = b"" if argument is None else pack_body(argument)
        number = QueryId(next(_numbers).to_bytes(16, "big"))
        await broker.send(Query(number, op, provider, body=body))
        while True:
            frame = await broker.receive_any((Reply, Registrations))
            if isinstance(frame, Registrations):
                await broker.send(Committed(frame.request))
            elif frame.query == number:
                return dict(frame.failure or {})

    async def discover(self, draft: str) -> dict[str, Any]:
        """Ask for discovery with a draft that names what is to happen."""
        request = {"baseURL": draft, "apiKey": "k-secret-1234567890"}
        return await self.ask("discoverModels", "", {"settingsNs": "bad", "request": request})


async def in_time(cell: str, make: Any) -> Any:
    """Return what a cell comes to; one that is slow is tried again: the machine may be busy."""
    took: list[float] = []
    for _ in range(3):
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(20 * SLOW):
                result = await make()
        except TimeoutError as exc:
            raise AssertionError(f"{cell} does not end") from exc
        took.append(time.monotonic() - began_s)
        if took[-1] <= WITHIN_S:
            return result
    raise AssertionError(f"{cell} took {took} s")


@pytest.mark.parametrize("hook", STREAM_HOOKS)
async def test_a_stream_ends_in_its_own_failure(hook: str) -> None:
    async with a_worker(adapter=PLUGIN) as worker:
        table = Table(worker)
        await table.begin_good()
        for way in WAYS:
            cell = f"{hook}:{way}"
            code = await in_time(cell, lambda way=way: table.stream(hook, way))
            # A stream that has its finish before it is closed keeps it; so does an odd kind.
            is_finished = hook == "closing"
            assert bool(code) != is_finished, f"{cell}: {code!r}"
            await table.check_alive(cell)
        await the_end(table)


@pytest.mark.parametrize("op", ["listModels", "resolveModelInfo", "prepareCall", "discoverModels"])
async def test_a_question_is_answered_with_a_failure(op: str) -> None:
    async with a_worker(adapter=PLUGIN) as worker:
        table = Table(worker)
        await table.begin_good()
        for way in WAYS:
            cell = f"{op}:{way}"

            async def ask(way: str = way) -> dict[str, Any]:
                if op == "listModels":
                    return await table.ask(op, way)
                if op == "discoverModels":
                    return await table.discover(f"discover:{way}")
                return await table.ask(op, GOOD, {"provider": GOOD, "model": f"resolve:{way}"})

            failure = await in_time(cell, ask)
            if op == "discoverModels" and way in {"text", "cycle"}:
                continue  # lists whose entries have no name: no models
            assert failure, cell
            assert failure["message"].strip(), f"{cell}: {failure}"
            await table.check_alive(cell)
        await the_end(table)


@pytest.mark.parametrize("hook", REGISTRY_HOOKS)
async def test_a_bad_registration_is_an_error_and_later_ones_work(hook: str) -> None:
    async with a_worker(adapter=PLUGIN) as worker:
        table = Table(worker)
        await table.begin_good()
        for way in WAYS:
            cell = f"{hook}:{way}"
            failure = await in_time(cell, lambda way=way: table.discover(f"{hook}:{way}"))
            # Who cancels its own task may do so behind its change, which goes on to its end.
            if "cancel" not in way:
                assert bool(failure) != ((hook, way) in LEGAL), f"{cell}: {failure}"
            assert await table.discover("last:") == {}, f"{cell}: later changes hang"
            await table.check_alive(cell)
        await the_end(table)


LEGAL = {
    ("policy", "none"),  # the defaults
    ("namespace", "text"),
}


async def the_end(table: Table) -> None:
    """The worker answers, leaves when it is told to, and reported itself all the while."""
    worker = table.worker
    assert (await table.ask("listModels", GOOD)) == {}
    assert (await worker.broker.receive(Heartbeat)) is not None
    await worker.broker.send(Bye())
    assert await worker.exited() == 0, worker.output


# --- start and end ---------------------------------------------------------------------------

START_WAYS = (
    "exit0", "interrupt", "generator-exit", "own", "no-text", "exiting-text", "cancelled",
    "cancels-itself", "cancels-all", "number", "recursion",
)  # fmt: skip


@pytest.mark.parametrize("way", START_WAYS)
async def test_a_plugin_that_cannot_start_says_why_at_once(way: str) -> None:
    options = {"hook": "setup", "way": way}
    async with a_worker(greet=False, adapter=PLUGIN, options=options) as worker:
        greeting = asyncio.ensure_future(worker.broker.greet())
        try:
            assert await worker.exited() == EXIT_CONFIG, worker.output
        finally:
            greeting.cancel()
        assert "[trunkline] the adapter cannot open: " in worker.output


def test_every_way_has_a_name_of_its_own() -> None:
    assert len(set(WAYS)) == len(RAISED) + len(DONE) + len(RETURNED) >= 40


LIMITED = """
import asyncio
from trunkline_protocol.chunks import BlockStart, Finish, FinishReason, TextDelta
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter


class Limited(ScriptedAdapter):
    async def stream(self, options):
        yield BlockStart(0, "text")
        try:
            async with asyncio.timeout(0.2):
                while True:
                    yield TextDelta(0, "a")
        except TimeoutError:
            if options.model == "goes-on":
                yield [TextDelta(0, "b"), Finish(FinishReason("stop"))]
            raise
"""


@pytest.mark.parametrize(("model", "failure"), [("raises", "TimeoutError"), ("goes-on", "")])
async def test_a_time_limit_around_a_whole_response_works_while_its_reader_is_slow(
    tmp_path: Path, model: str, failure: str
) -> None:
    """The limit fires while the puller waits for credit; the adapter gets it, and the call ends."""
    file = tmp_path / "limited.py"
    file.write_text(LIMITED)
    async with a_worker(adapter=f"{file}:Limited") as worker:
        broker = worker.broker
        start = await worker.start(model=model, window_chunks=4)
        stream = worker.stream(start)
        while len(stream.chunks) < 4:
            await broker.lane_frame()
        for _ in range(2):  # the limit passes meanwhile
            await broker.receive(Heartbeat)
        await broker.send(credit_for(start, stream))
        whole = await broker.whole_stream(start)
        assert whole.finish is not None
        told = whole.finish.reason.failure
        assert (told.message if told is not None else "").endswith(failure)
        assert (told is None) == (failure == "")
        assert worker.child.poll() is None
