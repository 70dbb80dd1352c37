"""The blocking facade: all of the runtime, from threads without a loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import trunkline
from trunkline import (
    Finish,
    ForkedClientError,
    GenerateOptions,
    GenerateResult,
    LocalProtocolError,
    StreamChunk,
    SyncNextResult,
    SyncNextStream,
    SyncRuntime,
    TextDelta,
)
from trunkline.attachments import Attachments
from trunkline.events import AdapterUpdates
from trunkline.prepared import PreparedLlmCall
from trunkline.stream import BlockStream, Stream
from trunkline.sync_stream import SyncAttachments

from tests.support.broker import BrokerProcess
from tests.support.control import Control, controlled_broker
from tests.support.images import a_png
from tests.support.timing import SLOW, until

pytestmark = pytest.mark.integration

ASK = {"provider": "a", "model": "m", "messages": "hello"}
HANGING = {"chunks": [{"type": "text-delta", "index": 0, "text": "one"}], "hangAt": "next"}


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[BrokerProcess, Control]]:
    """Yield one broker with one worker that obeys."""
    with controlled_broker(("one",)) as (broker, control):
        yield broker, control


@pytest.fixture
def control(world: tuple[BrokerProcess, Control]) -> Iterator[Control]:
    """Yield what commands the worker, with the route `a`."""
    control = world[1]
    control.ask("one", "register", handle="a", adapter="a", providers=["a"])
    yield control
    control.ask("one", "reset")


@pytest.fixture
def llm(world: tuple[BrokerProcess, Control], control: Control) -> Iterator[SyncRuntime]:
    """Yield a blocking client of that broker."""
    with trunkline.connect_sync(world[0].endpoint, name="blocking") as runtime:
        yield runtime


def was_cancelled(control: Control) -> bool:
    """Return whether the adapter's stream was cancelled."""
    notes: list[str] = control.ask("one", "seen", adapter="a")["notes"]
    return "next was cancelled" in notes


_RENAMED = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__",
            "__aiter__": "__iter__", "__anext__": "__next__"}  # fmt: skip


@pytest.mark.parametrize(
    ("asynchronous", "blocking"),
    [
        (trunkline.LlmRuntime, SyncRuntime),
        (Stream, trunkline.SyncStream),
        (BlockStream, trunkline.SyncBlockStream),
        (PreparedLlmCall, trunkline.SyncPreparedLlmCall),
        (AdapterUpdates, trunkline.SyncAdapterUpdates),
        (Attachments, SyncAttachments),
    ],
)
def test_everything_has_a_blocking_form(asynchronous: type, blocking: type) -> None:
    """Same names, same parameters with the same defaults, all documented."""
    internal = {"put"} if asynchronous is AdapterUpdates else set[str]()
    names = {name for name in dir(asynchronous) if not name.startswith("_")} - internal
    names |= {name for name in _RENAMED if name in dir(asynchronous)}
    for name in names:
        ours = getattr(asynchronous, name)
        theirs = getattr(blocking, _RENAMED.get(name, name))
        if name.startswith("__") or not inspect.isfunction(ours):
            continue
        assert inspect.getdoc(theirs), f"{blocking.__name__}.{name}"
        expected = list(inspect.signature(ours).parameters.values())
        got = list(inspect.signature(theirs).parameters.values())
        assert [(each.name, each.kind, each.default) for each in got] == [
            (each.name, each.kind, each.default) for each in expected
        ], name


def test_a_stream_is_an_iterator(llm: SyncRuntime, control: Control) -> None:
    """Chunks, batches, blocks; what is known of the call is known here."""
    stream = llm.stream(**ASK)
    chunks = list(stream)
    assert [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)] == ["hi"]
    assert isinstance(chunks[-1], Finish)
    assert stream.finish is not None
    assert stream.served_by is not None
    assert stream.retry_policy is not None
    assert (stream.attempts, stream.provider, stream.model) == (1, "a", "m")
    assert stream.message().to_dict()["content"] == [{"type": "text", "text": "hi"}]
    assert stream.interrupted_blocks() != []
    assert next(stream, None) is None
    with llm.stream(**ASK) as again:
        assert sum(len(batch) for batch in again.batches()) == 4
    with llm.stream_blocks(**ASK) as blocks:
        assert [block.type for block in blocks] == ["text"]
    assert blocks.finish is not None
    assert blocks.usage is None


def test_results_questions_and_prepared_calls(llm: SyncRuntime, control: Control) -> None:
    result = llm.generate(**ASK)
    assert (result.text, result.attempts) == ("hi", 1)
    assert llm.models() == ["a"]
    assert llm.list_providers()[0].id == "a"
    assert llm.resolve_model_info("a", "m").id == "m"
    assert llm.list_models("a") == []
    assert llm.status()["clients"] != []
    with pytest.raises(trunkline.LlmError, match="nobody"):
        llm.list_models("nobody")
    with llm.prepare_call({"provider": "a", "model": "m"}) as prepared:
        prepared.renew()
        assert prepared.expires_in_s > 50
        with prepared.stream(messages="hello") as stream:
            assert len(list(stream)) == 4
    assert llm.attachments.put(a_png(1, 1)).width == 1


def test_leaving_a_stream_cancels_it(llm: SyncRuntime, control: Control) -> None:
    """By the context, by dropping it, and by another thread."""
    control.ask("one", "plan", adapter="a", plan=HANGING)
    with llm.stream(**ASK) as stream:
        next(stream)
    until(lambda: was_cancelled(control))
    dropped = llm.stream(**ASK)
    next(dropped)
    del dropped
    until(lambda: control.ask("one", "seen", adapter="a")["notes"].count("next was cancelled") == 2)
    cancelled = llm.stream(**ASK)
    next(cancelled)
    threading.Timer(0.05, cancelled.cancel).start()
    (finish,) = list(cancelled)
    assert isinstance(finish, Finish)
    assert finish.reason.kind == "aborted"


def test_many_threads_share_one_runtime(llm: SyncRuntime) -> None:
    results: list[str] = []

    def work() -> None:
        results.extend(llm.generate(**ASK).text for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30 * SLOW)
    assert results == ["hi"] * 40


def test_blocking_listeners(llm: SyncRuntime, control: Control) -> None:
    """Generators around generators, each in a thread; they may use the runtime itself."""

    def shouting(options: GenerateOptions, next_: SyncNextStream) -> Iterator[StreamChunk]:
        assert llm.models() == ["a"]
        for chunk in next_({**options.to_dict(), "provider": "a"}):
            if isinstance(chunk, TextDelta):
                yield TextDelta(chunk.index, chunk.text.upper())
            else:
                yield chunk

    def twice(options: GenerateOptions, next_: SyncNextResult) -> GenerateResult:
        assert next_().text == "hi"
        return next_()

    dispose = llm.use("llm/generate", twice)
    assert llm.generate(**ASK).text == "hi"
    dispose()
    assert len(control.ask("one", "seen", adapter="a")["requests"]) == 2
    llm.use("llm/stream", shouting)
    texts = [chunk.text for chunk in llm.stream(**{**ASK, "provider": "elsewhere"})
             if isinstance(chunk, TextDelta)]  # fmt: skip
    assert texts == ["HI"]

    def raising(_: GenerateOptions, __: SyncNextStream) -> Iterator[StreamChunk]:
        raise ZeroDivisionError

    llm.use("llm/stream", raising)
    with pytest.raises(ZeroDivisionError):
        list(llm.stream(**ASK))


def test_cancelling_through_a_blocking_listener(llm: SyncRuntime, control: Control) -> None:
    """The listener's thread is let go."""
    control.ask("one", "plan", adapter="a", plan=HANGING)
    closed = threading.Event()

    def watching(_: GenerateOptions, next_: SyncNextStream) -> Iterator[StreamChunk]:
        try:
            yield from next_()
        finally:
            closed.set()

    llm.use("llm/stream", watching)
    with llm.stream(**ASK) as stream:
        next(stream)
    assert closed.wait(5 * SLOW)
    until(lambda: was_cancelled(control))


def test_events(llm: SyncRuntime, control: Control) -> None:
    calls: list[str] = []
    dispose = llm.on_adapters_updated(lambda: calls.append(threading.current_thread().name))
    with llm.adapters_updated() as updates:
        control.ask("one", "replace", handle="a", providers=["a", "b"])
        next(updates)
        assert calls == ["trunkline"]
        dispose()
        threading.Timer(0.05, updates.close).start()
        assert list(updates) == []


def test_an_observer_can_not_wait_for_itself(llm: SyncRuntime, control: Control) -> None:
    seen: list[BaseException] = []

    def observer() -> None:
        try:
            llm.models()
        except LocalProtocolError as exc:
            seen.append(exc)

    llm.on_adapters_updated(observer)
    control.ask("one", "replace", handle="a", providers=["a"])
    until(lambda: bool(seen))
    assert "own thread" in str(seen[0])


def test_closing_ends_what_waits(world: tuple[BrokerProcess, Control], control: Control) -> None:
    """And nothing works afterwards; no thread is left."""
    control.ask("one", "plan", adapter="a", plan=HANGING)
    llm = trunkline.connect_sync(world[0].endpoint)
    with pytest.raises(LocalProtocolError, match="not connected"):
        llm.models()
    with llm:
        stream = llm.stream(**ASK)
        next(stream)
        got: list[Any] = []
        reader = threading.Thread(target=lambda: got.extend(stream))
        reader.start()
        until(lambda: bool(control.ask("one", "seen", adapter="a")["notes"]))
    reader.join(5 * SLOW)
    assert not reader.is_alive()
    assert [type(chunk) for chunk in got] in ([Finish], [])
    llm.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        llm.models()
    with pytest.raises(LocalProtocolError, match="once"), llm:
        pass
    assert "trunkline" not in {thread.name for thread in threading.enumerate()}


def test_no_broker_is_told_and_leaves_no_thread() -> None:
    llm = trunkline.connect_sync("ipc:///tmp/tl-nobody-is-here", timeout_s=0.1)
    with pytest.raises(trunkline.BrokerUnreachableError), llm:
        pass
    assert "trunkline" not in {thread.name for thread in threading.enumerate()}


def test_a_forked_child_is_told(llm: SyncRuntime) -> None:
    """It neither hangs nor touches the parent's connection."""
    stream = llm.stream(**ASK)
    child = os.fork()
    if child == 0:  # only plain exits from here: this is a copy of the test process
        code = 1
        try:
            llm.models()
        except ForkedClientError:
            try:
                list(stream)
            except ForkedClientError:
                stream.close()
                llm.close()
                code = 0
        finally:
            os._exit(code)
    until(lambda: os.waitpid(child, os.WNOHANG)[0] == child)
    assert llm.models() == ["a"]
    assert len(list(stream)) == 4


def test_ctrl_c_cancels_what_it_interrupts(
    world: tuple[BrokerProcess, Control], control: Control
) -> None:
    """In a program of its own: the call is cancelled, KeyboardInterrupt raised, the end clean."""
    control.ask("one", "plan", adapter="a", plan=HANGING)
    program = """
import sys, trunkline
with trunkline.connect_sync(sys.argv[1]) as llm:
    stream = llm.stream(provider="a", model="m", messages="x")
    print(next(stream).text, flush=True)
    try:
        next(stream)
    except KeyboardInterrupt:
        print("interrupted", [type(chunk).__name__ for chunk in stream], llm.models(), flush=True)
    try:
        llm.generate(provider="a", model="m", messages="x")
    except KeyboardInterrupt:
        print("again", flush=True)
"""
    child = subprocess.Popen(  # noqa: S603  # our own program
        [sys.executable, "-c", program, world[0].endpoint], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "one\n"
    time.sleep(0.1)  # nothing tells that the program waits inside `next`
    begun_s = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline().startswith("interrupted")
    assert time.monotonic() - begun_s < 1.5 * SLOW
    until(lambda: was_cancelled(control))
    until(lambda: len(control.ask("one", "seen", adapter="a")["requests"]) == 2)
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "again\n"
    child.stdout.close()
    assert child.wait(10 * SLOW) == 0
    until(lambda: control.ask("one", "seen", adapter="a")["notes"].count("next was cancelled") == 2)


def test_blocking_listeners_that_are_wrong(llm: SyncRuntime) -> None:
    """A StopIteration once made the call wait for ever; nothing else is the end of a stream."""

    def stopping(_: GenerateOptions, __: Any) -> Any:
        raise StopIteration

    dispose = llm.use("llm/generate", stopping)
    with pytest.raises(RuntimeError, match="StopIteration"):
        llm.generate(**ASK)
    dispose()
    for listener, error in (
        (stopping, RuntimeError),
        (lambda _, __: None, LocalProtocolError),
        (lambda _, __: [None], LocalProtocolError),
        (lambda _, __: [5], LocalProtocolError),
    ):
        dispose = llm.use("llm/stream", listener)
        with pytest.raises(error):
            list(llm.stream(**ASK))
        dispose()
    for wrong in (None, 5):
        with pytest.raises(LocalProtocolError, match="listener"):
            llm.use("llm/stream", wrong)  # type: ignore[call-overload]
    assert llm.generate(**ASK).text == "hi"


def test_letting_go_is_harmless_behind_the_end(
    world: tuple[BrokerProcess, Control], control: Control
) -> None:
    """What was had of a runtime may be left after it, as in nested `with` statements."""
    with trunkline.connect_sync(world[0].endpoint) as llm:
        disposers = [llm.use("llm/stream", lambda _, next_: next_())]
        disposers.append(llm.on_adapters_updated(lambda: None))
        updates, stream = llm.adapters_updated(), llm.stream(**ASK)
        prepared = llm.prepare_call({"provider": "a", "model": "m"})
        with stream, updates, prepared:
            next(stream)
            llm.close()
    for dispose in disposers:
        dispose()
    stream.cancel()
    stream.close()
    updates.close()


def test_from_within_a_running_loop(world: tuple[BrokerProcess, Control], control: Control) -> None:
    async def inside() -> list[str]:
        with trunkline.connect_sync(world[0].endpoint) as llm:
            assert llm.generate(**ASK).text == "hi"
            return llm.models()

    assert asyncio.run(inside()) == ["a"]
