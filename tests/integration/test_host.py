"""A real worker process against the broker's side played by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from trunkline_protocol.chunks import TextDelta
from trunkline_protocol.codec import pack_body, unpack_body
from trunkline_protocol.failure import Code
from trunkline_protocol.frames import (
    Bye,
    CallRef,
    Cancel,
    Committed,
    Done,
    Ended,
    Heartbeat,
    Query,
    QueryCancel,
    Refused,
    Register,
    Registered,
    Registrations,
    Reply,
    Resume,
    Role,
    Start,
    Who,
)
from trunkline_protocol.ids import CallId, Epoch, Generation, LeaseId, PoolName, QueryId
from trunkline_workers.adapters.scripted.script import script_from_map
from trunkline_workers.boot import Boot
from trunkline_workers.core.effects import Effect, Pull, Stalled, Stop
from trunkline_workers.core.link import EXIT_CONFIG, EXIT_ORPHANED, EXIT_REFUSED
from trunkline_workers.host import Host
from trunkline_workers.loader import load_entry

from tests.support.broker import run_directory
from tests.support.fake_broker import FakeBroker, Received, a_start, credit_for, spawn_worker
from tests.support.timing import until_async

pytestmark = pytest.mark.integration

PLUGIN = """
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter
from trunkline_protocol.models import LlmConfigurableProvider, LlmDiscoveredModel

async def discover(request):
    return [LlmDiscoveredModel(id="found")]

async def setup(runtime, context):
    one = ScriptedAdapter()
    handle = await runtime.register_adapter(["a", "b"], one)
    await runtime.register_adapter(["c"], ScriptedAdapter())
    await handle.replace(["b"])
    await runtime.register_configurable_providers(
        [LlmConfigurableProvider(provider="x", display_name="X", settings_ns="ns",
                                 settings_path=())]
    )
    await runtime.register_model_discovery("ns", discover)

    async def close():
        context.report("closed")
    return close
"""


class Worker:
    """One worker process with its broker's side."""

    def __init__(self, root: Path, **document: Any) -> None:
        self.log = root / "log"
        self.journal = root / "journal"
        self.broker = FakeBroker(root)
        options = {"journal": str(self.journal), **document.pop("options", {})}
        self.child = spawn_worker(self.broker, self.log, options=options, **document)

    @property
    def output(self) -> str:
        return self.log.read_text()

    def events(self) -> list[str]:
        if not self.journal.is_file():
            return []
        return [json.loads(line)["event"] for line in self.journal.read_text().splitlines()]

    async def exited(self) -> int:
        await until_async(lambda: self.child.poll() is not None, 30.0, "the worker does not end")
        return self.child.returncode

    async def start(self, script: dict[str, Any] | None = None, **fields: Any) -> Start:
        start = a_start(script, **fields)
        await self.broker.send(start)
        return start

    def stream(self, start: Start) -> Received:
        return self.broker.streams.setdefault(start.stream_key, Received())


@contextlib.asynccontextmanager
async def a_worker(*, greet: bool = True, **document: Any) -> AsyncIterator[Worker]:
    with run_directory() as root:
        worker = Worker(root, **document)
        try:
            if greet:
                await worker.broker.greet()
            yield worker
        finally:
            worker.child.kill()
            worker.child.wait()
            worker.broker.close()


def code_of(stream: Received) -> str:
    assert stream.finish is not None
    failure = stream.finish.reason.failure
    return "" if failure is None else failure.code


# --- streams ---------------------------------------------------------------------------------


async def test_streams_of_every_kind_through_one_worker() -> None:
    """What adapters do, good or bad, ends in exactly one finish, and the worker lives."""
    async with a_worker() as worker:
        broker = worker.broker
        script: dict[str, Any] = {"chunks": 3000, "batch": 7}
        start = await worker.start(script)
        stream = await broker.whole_stream(start)
        text = "".join(c.text for c in stream.chunks if isinstance(c, TextDelta))
        assert text == script_from_map(script).whole_text
        ended = await broker.receive(Ended)
        assert (ended.last, ended.finish) == (len(stream.chunks), {"kind": "stop"})
        assert ended.usage == {"inputTokens": 1, "outputTokens": 3000}
        assert ended.figures is not None
        assert ended.figures["chunks"] == ended.last

        for steps, code in (
            ([{"raise": {"code": "RATE_LIMIT"}}], Code.RATE_LIMIT),
            ([{"raise": {"exception": "SystemExit"}}], Code.UNKNOWN),
            ([{"raise": {"exception": "KeyboardInterrupt"}}], Code.UNKNOWN),
            ([{"raise": {"exception": "StopAsyncIteration"}}], Code.UNKNOWN),
            ([{"garbage": [1, 2]}], Code.INVARIANT),
            ([{"garbage": None}], Code.INVARIANT),
            ([{"end": True}], Code.STREAM_CLOSED),
            ([], Code.STREAM_CLOSED),
        ):
            start = await worker.start({"steps": steps})
            assert code_of(await broker.whole_stream(start)) == code
        start = await worker.start({"chunks": 0})
        assert code_of(await broker.whole_stream(start)) == Code.EMPTY_RESPONSE
        start = await worker.start({"chunks": 1, "after": [{"raise": {"code": "SERVER"}}]})
        assert code_of(await broker.whole_stream(start)) == ""
        start = await worker.start({"steps": [{"huge_block": 3_000_000}]})
        stream = await broker.whole_stream(start)
        assert (stream.frames, code_of(stream)) == (4, Code.STREAM_CLOSED)
        start = await worker.start(provider="nobody")
        assert code_of(await broker.whole_stream(start)) == Code.NO_ADAPTER
        start = await worker.start(body=pack_body({"provider": "scripted"}))
        assert code_of(await broker.whole_stream(start)) == Code.INVALID_REQUEST
        start = await worker.start(model="another", body=a_start().body)
        assert code_of(await broker.whole_stream(start)) == Code.INVALID_REQUEST
        assert "Traceback" not in worker.output


async def test_chunks_that_are_ready_together_share_a_frame_and_paced_ones_do_not_wait() -> None:
    async with a_worker() as worker:
        stream = await worker.broker.whole_stream(await worker.start({"chunks": 200}))
        assert stream.frames == 1
        start = await worker.start({"chunks": 20, "pace_ms": 3})
        stream = await worker.broker.whole_stream(start)
        assert stream.frames >= 20


async def test_a_worker_without_credit_stops_pulling_and_reports_how_far_it_is() -> None:
    async with a_worker() as worker:
        broker = worker.broker
        start = await worker.start({"chunks": 100_000}, window_chunks=64)
        stream = worker.stream(start)
        while len(stream.chunks) < 64:
            await broker.lane_frame()
        beats = [await broker.receive(Heartbeat) for _ in range(2)]
        assert [[progress.next for progress in beat.sent] for beat in beats] == [[64], [64]]
        load = beats[-1].load
        assert load is not None
        assert load["queues"]["waitingChunks"] == 0
        assert load["routes"]["scripted"]["chunks"] == 64
        await broker.send(credit_for(start, stream))
        while len(stream.chunks) < 128:
            await broker.lane_frame()
        # Lost on the way to the client: the same frames again, before anything new.
        del stream.chunks[70:]
        await broker.send(Resume(start.call, 0, 70))
        while len(stream.chunks) < 128:
            await broker.lane_frame()
        await broker.send(Done((CallRef(start.call, 0),)))
        await broker.send(Cancel(start.call, 0))
        assert (await broker.receive(Ended)).finish["kind"] == "aborted"
        await until_async(lambda: worker.events() == ["start", "closed"], 1.0)


async def test_cancel_reaches_the_provider_within_a_second_also_before_the_first_chunk() -> None:
    async with a_worker() as worker:
        broker = worker.broker
        start = await worker.start({"steps": [{"stall": True}]})
        await until_async(lambda: worker.events() == ["start"])
        await broker.send(Cancel(start.call, 0))
        await broker.send(Cancel(start.call, 0))
        for _ in range(2):
            assert (await broker.receive(Ended)).finish["kind"] == "aborted"
        await until_async(lambda: worker.events() == ["start", "cancelled"], 1.0)
        await broker.send(start)
        assert (await broker.receive(Ended)).finish["kind"] == "aborted"
        deaf = await worker.start({"steps": [{"deaf_ms": 1500}]})
        await until_async(lambda: worker.events()[2:] == ["start"])
        await broker.send(Cancel(deaf.call, 0))
        assert (await broker.receive(Ended)).finish["kind"] == "aborted"
        await until_async(lambda: "did not honour cancel" in worker.output)


async def test_bytes_that_are_no_frames_are_counted_and_harm_nothing() -> None:
    async with a_worker() as worker:
        broker = worker.broker
        for parts in ((b"",), (b"START", b"\xc1"), (b"HELLO", b"\x80"), (b"a",) * 9, (b"x" * 99,)):
            await broker.send_parts(*parts)
        await worker.broker.whole_stream(await worker.start({"chunks": 1}))
        while (load := (await broker.receive(Heartbeat)).load) is None:
            pass  # one that only tells of positions
        counters = load["counters"]
        assert counters["bad_control_UNKNOWN_KIND"] == 1
        assert counters["bad_control_BAD_FRAME"] == 4


# --- queries and prepared calls --------------------------------------------------------------


async def ask(worker: Worker, op: str, argument: Any = None, number: int = 1) -> Any:
    body = b"" if argument is None else pack_body(argument)
    await worker.broker.send(Query(QueryId(bytes([number]) * 16), op, "scripted", body=body))
    reply = await worker.broker.receive(Reply)
    return reply.failure["code"] if reply.failure is not None else unpack_body(reply.body)


async def test_queries_and_a_prepared_call() -> None:
    async with a_worker() as worker:
        broker = worker.broker
        assert [model["id"] for model in await ask(worker, "listModels")] == ["scripted"]
        config = {"provider": "scripted", "model": "scripted"}
        lease = LeaseId((await ask(worker, "prepareCall", config))["lease"])
        await broker.send(Who(Epoch(2)))
        assert (await broker.receive(Register)).leases == (lease,)
        await broker.send(Registered(Epoch(2), broker.lane_endpoint, Generation(Epoch(1), 1)))
        start = await worker.start({"chunks": 1}, lease=lease)
        assert code_of(await broker.whole_stream(start)) == ""
        start = await worker.start({"chunks": 1}, lease=lease)
        assert code_of(await broker.whole_stream(start)) == Code.INVALID_PREPARED_CALL
        assert await ask(worker, "dance") == Code.UNSUPPORTED
        await broker.send(QueryCancel(QueryId(b"?" * 16)))
        assert await ask(worker, "listModels", number=2)


_SLOW_TO_END = """
import asyncio
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter

class SlowToEnd(ScriptedAdapter):
    asked = 0

    async def list_models(self, provider):
        self.asked += 1
        if self.asked > 1:
            return await super().list_models(provider)
        try:
            print("asked", flush=True)
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()
"""


async def test_a_query_asked_again_while_its_cancelled_answer_ends_is_answered(
    tmp_path: Path,
) -> None:
    """The adapter holds up the end of the cancelled answer for ever; the new one need not wait."""
    code = tmp_path / "slow.py"
    code.write_text(_SLOW_TO_END)
    async with a_worker(adapter=f"{code}:SlowToEnd") as worker:
        query = Query(QueryId(b"q" * 16), "listModels", "scripted")
        await worker.broker.send(query)
        await until_async(lambda: "asked" in worker.output)
        await worker.broker.send(QueryCancel(query.query))
        await worker.broker.send(query)
        reply = await worker.broker.receive(Reply)
        assert [model["id"] for model in unpack_body(reply.body)] == ["scripted"]
        await worker.broker.send(Bye())
        assert await worker.exited() == 0


async def test_a_plugin_registers_several_adapters_directory_and_discovery() -> None:
    with run_directory() as place:
        file = place / "plugin.py"
        file.write_text(PLUGIN)
        async with a_worker(greet=False, adapter=f"{file}:setup") as worker:
            _, registrations = await worker.broker.greet()
            routes = [
                (item["adapter"], [route["info"]["id"] for route in item["routes"]])
                for item in registrations.adapters
            ]
            assert routes == [(0, ["c"]), (1, ["b"])]
            assert registrations.directory[0]["entries"][0]["provider"] == "x"
            assert registrations.discovery == ("ns",)
            found = await ask(
                worker, "discoverModels", {"settingsNs": "ns", "request": {"baseURL": "http://x"}}
            )
            assert found == [{"id": "found"}]
            await worker.broker.send(Bye())
            assert await worker.exited() == 0
            assert "closed" in worker.output


# --- a broker that goes and comes ------------------------------------------------------------


async def test_a_stream_survives_the_death_of_its_broker() -> None:
    """A new broker hears of everything held, and a resumed stream loses nothing."""
    async with a_worker() as worker:
        broker = worker.broker
        script: dict[str, Any] = {"chunks": 300, "pace_ms": 2}
        start = await worker.start(script)
        done = await worker.start({"chunks": 1})
        await broker.whole_stream(done)
        stream = worker.stream(start)
        while len(stream.chunks) < 20:
            await broker.lane_frame()
        broker.unbind()
        broker.epoch = Epoch(2)
        broker.frames.clear()
        broker.bind()
        register = await broker.receive(Register)
        assert register.role == "serving"
        held = {call.call: call for call in register.calls}
        assert held[start.call].next >= 20
        assert (held[start.call].is_ended, held[done.call].is_ended) == (False, True)
        generation = register.generation
        await broker.send(Registered(broker.epoch, broker.lane_endpoint, generation))
        assert (await broker.receive(Registrations)).request == 1
        assert (await broker.receive(Ended)).call == done.call
        await broker.send(Committed(1))
        await broker.send(Role("serving"))
        await broker.send(start)
        await broker.send(Resume(start.call, 0, len(stream.chunks)))
        while stream.finish is None:
            with contextlib.suppress(AssertionError):  # ahead of what was resumed
                await broker.lane_frame()
        text = "".join(c.text for c in stream.chunks if isinstance(c, TextDelta))
        assert text == script_from_map(script).whole_text
        assert worker.events().count("start") == 2


async def test_a_worker_that_hears_no_broker_leaves_and_closes_its_provider() -> None:
    async with a_worker(orphanTimeoutMs=1200) as worker:
        await worker.start({"steps": [{"stall": True}]})
        await until_async(lambda: worker.events() == ["start"])
        worker.broker.unbind()
        assert await worker.exited() == EXIT_ORPHANED
        assert worker.events() == ["start", "cancelled"]
        assert "no broker for" in worker.output
        worker.broker.bind()


# --- the end ---------------------------------------------------------------------------------


async def test_bye_ends_a_worker_and_a_signal_says_bye_first() -> None:
    async with a_worker() as worker:
        await worker.broker.send(Bye("swapped"))
        assert await worker.exited() == 0
        assert worker.output == ""
    async with a_worker() as worker:
        await worker.start({"steps": [{"stall": True}]})
        await until_async(lambda: worker.events() == ["start"])
        worker.child.send_signal(signal.SIGTERM)
        await worker.broker.receive(Bye)
        assert await worker.exited() == 0
        assert worker.events() == ["start", "cancelled"]


async def test_a_refused_worker_says_why() -> None:
    async with a_worker(greet=False) as worker:
        await worker.broker.receive(Register)
        await worker.broker.send(Refused("BAD_TOKEN", "this token was used"))
        assert await worker.exited() == EXIT_REFUSED
        assert "BAD_TOKEN: this token was used" in worker.output
    async with a_worker(greet=False) as worker:
        register = await worker.broker.receive(Register)
        lane = worker.broker.lane_endpoint
        await worker.broker.send(Registered(Epoch(1), lane, register.generation))
        request = (await worker.broker.receive(Registrations)).request
        await worker.broker.send(Refused("DUPLICATE_ADAPTER", "taken", request=request))
        assert await worker.exited() == EXIT_REFUSED
        assert "DUPLICATE_ADAPTER: taken" in worker.output


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"adapter": "nothing"}, "no adapter 'nothing'"),
        ({"options": {"odd": 1}}, "unknown option 'odd'"),
        ({"generation": 5}, "boot document"),
    ],
)
async def test_a_worker_that_can_not_start_says_why(document: dict[str, Any], text: str) -> None:
    async with a_worker(greet=False, **document) as worker:
        assert await worker.exited() == EXIT_CONFIG
        assert text in worker.output
        assert "Traceback" not in worker.output


async def test_an_adapter_that_can_not_open_says_why() -> None:
    async with a_worker(greet=False, options={"open_error": "model file is broken"}) as worker:
        register = await worker.broker.receive(Register)
        lane = worker.broker.lane_endpoint
        await worker.broker.send(Registered(Epoch(1), lane, register.generation))
        assert await worker.exited() == EXIT_CONFIG
        assert "model file is broken" in worker.output


async def test_the_token_is_in_no_argument_and_no_environment_and_the_descriptor_is_closed() -> (
    None
):
    token = "5ec2e7" * 5
    async with a_worker(token=token) as worker:
        process = Path(f"/proc/{worker.child.pid}")
        for name in ("cmdline", "environ"):
            assert token.encode() not in (process / name).read_bytes()
        targets = [os.readlink(link) for link in (process / "fd").iterdir()]
        pipes = [target for target in targets if target.startswith("pipe:")]
        assert all(pipes.count(pipe) == 2 for pipe in pipes)  # both ends: the loop's own


def test_help_needs_no_broker() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trunkline_workers", "--help"],
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert b"--connect" in done.stdout
    assert b"--boot-fd" not in done.stdout


async def test_an_adapter_that_ignores_cancel_holds_the_end_up_for_a_second_only() -> None:
    async with a_worker() as worker:
        await worker.start({"steps": [{"deaf_ms": 60_000}]})
        await until_async(lambda: worker.events() == ["start"])
        worker.child.send_signal(signal.SIGTERM)
        assert await worker.exited() == 0
        assert "ignore that they were cancelled" in worker.output


async def test_a_broken_invariant_of_our_own_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> list[Effect]:
        raise AssertionError("ours")

    with run_directory() as root:
        broker = FakeBroker(root)
        boot = Boot(broker.control_endpoint, PoolName("p"), "scripted")
        host = Host(boot, load_entry("scripted"), {})
        monkeypatch.setattr(host._core, "on_frame", broken)
        running = asyncio.ensure_future(host.run())
        await broker.receive(Register)
        await broker.send(Who(Epoch(1)))
        with pytest.raises(AssertionError, match="ours"):
            await running
        broker.close()


async def test_a_stalled_attempt_is_reported_and_ends_the_worker_of_a_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outside of tests it is only reported and counted."""
    stalled = Stalled(CallId(b"s" * 16), 0, "its puller sleeps")
    boot = Boot("ipc:///nowhere", PoolName("p"), "scripted")
    host = Host(boot, load_entry("scripted"), {})
    host._perform([stalled])
    assert host._counters["stalled_attempts"] == 1
    with run_directory() as root:
        broker = FakeBroker(root)
        boot = Boot(broker.control_endpoint, PoolName("p"), "scripted")
        host = Host(boot, load_entry("scripted"), {"TRUNKLINE_STRICT_LIVENESS": "1"})
        monkeypatch.setattr(host._core, "on_look", lambda *_: [stalled])
        with pytest.raises(AssertionError, match="stood still although nothing holds it up"):
            await asyncio.wait_for(host.run(), 30)
        broker.close()


def test_an_effect_for_a_puller_that_is_gone_is_counted() -> None:
    host = Host(Boot("ipc:///nowhere", PoolName("p"), "scripted"), load_entry("scripted"), {})
    host._perform([Pull(CallId(b"g" * 16), 0), Stop(CallId(b"g" * 16), 0)])
    assert host._counters["effects_without_puller"] == 2


async def test_what_an_adapter_prints_is_in_the_log_without_the_key(tmp_path: Path) -> None:
    """Prints and tracebacks alike; the key is in the options."""
    code = tmp_path / "talker.py"
    code.write_text(
        "import sys\n"
        "from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter\n"
        "class Talker(ScriptedAdapter):\n"
        "    @classmethod\n"
        "    def create(cls, context):\n"
        "        print('using', context.options['apiKey'])\n"
        "        sys.stderr.write('half of ' + context.options['apiKey'][:20] + '\\n')\n"
        "        raise RuntimeError('bad key ' + context.options['apiKey'])\n"
    )
    key = "abcd-wholly-secret-key-0123456789"
    async with a_worker(greet=False, adapter=f"{code}:Talker", options={"apiKey": key}) as worker:
        assert await worker.exited() != 0
        assert "using [redacted]" in worker.output
        assert "half of [redacted]" in worker.output
        assert "RuntimeError: bad key [redacted]" in worker.output
        assert "secret-key" not in worker.output
