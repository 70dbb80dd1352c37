"""Scenarios of field cases that belong to an adapter; each returns what went wrong, in words."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from trunkline_protocol.chunks import Finish, StreamChunk
from trunkline_protocol.failure import LlmError, LlmFailure
from trunkline_protocol.options import GenerateOptions, ToolSchema
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.chat_completions.adapter import ChatCompletionsAdapter
from trunkline_workers.adapters.chat_completions.translate import Translator

from tests.support.calls import DONE_EVENT, a_request, fast_options, text_event, until
from tests.support.raw_http import Answer, RawServer

CLOSE_LIMIT_S = 1.0
SHORT = (text_event("Hi"), text_event("", "stop"), DONE_EVENT)


@asynccontextmanager
async def adapter_for(server: RawServer, **changes: Any):
    """Return an open adapter for a server."""
    adapter = ChatCompletionsAdapter.create(
        AdapterContext(name="field", options=fast_options(server.url, **changes))
    )
    await adapter.open()
    try:
        yield adapter
    finally:
        await adapter.close()


async def read(
    adapter: ChatCompletionsAdapter, request: GenerateOptions | None = None
) -> tuple[list[StreamChunk], LlmFailure | None]:
    """Read one call to its end."""
    chunks: list[StreamChunk] = []
    try:
        async for some in adapter.stream(request or a_request()):
            chunks += some
    except LlmError as exc:
        return chunks, exc.failure
    return chunks, chunks[-1].reason.failure if isinstance(chunks[-1], Finish) else None


async def comes_true(fact: Callable[[], bool]) -> bool:
    """Tell whether a fact holds within the limit for closing."""
    try:
        await until(fact, CLOSE_LIMIT_S)
    except TimeoutError:
        return False
    return True


async def _until_idle(adapter: ChatCompletionsAdapter) -> bool:
    """Wait until no call holds a connection."""
    return await comes_true(lambda: adapter.connections_in_use == 0)


def problems(checks: Iterable[tuple[bool, str]]) -> list[str]:
    return [text for is_good, text in checks if not is_good]


async def cancelled_in_every_window() -> list[str]:
    """T04: before the head, mid-stream, and while waiting for a connection."""
    never = asyncio.Event()
    answers = (Answer(gate=never), Answer(SHORT[:1], end="open"), Answer(SHORT))
    async with RawServer(*answers) as server, adapter_for(server, maxConnections=1) as adapter:
        first = asyncio.ensure_future(read(adapter))
        held = await server.exchange(0)
        queued = asyncio.ensure_future(read(adapter))
        await asyncio.sleep(0)
        queued.cancel()
        await asyncio.wait({queued})
        was_queued = len(server.exchanges) == 1
        first.cancel()
        closed_before_head = await comes_true(held.closed.is_set)
        lists = adapter.stream(a_request())
        await anext(lists)
        middle = server.exchanges[1]
        await lists.aclose()
        closed_midway = await comes_true(middle.closed.is_set)
        _, failure = await read(adapter)
        return problems(
            (
                (was_queued, "a cancelled call that waited for a connection made a request"),
                (closed_before_head, "connection open after a cancel before the first byte"),
                (closed_midway, "connection open after a cancel mid-stream"),
                (failure is None, f"the next call failed: {failure}"),
                (await _until_idle(adapter), "a connection is still held"),
            )
        )


async def abandoned_streams() -> list[str]:
    """T05: readers that stop reading and then cancel, far more of them than connections."""
    piece = text_event("x" * 4096)
    flood = Answer([piece] * 2560, end="open")
    async with RawServer(flood) as server, adapter_for(server, maxConnections=20) as adapter:
        for _ in range(10):
            streams = [adapter.stream(a_request()) for _ in range(20)]
            await asyncio.gather(*(anext(stream) for stream in streams))
            await asyncio.gather(*(stream.aclose() for stream in streams))
        idle = await _until_idle(adapter)
        server.answers = [Answer(SHORT)]
        _, failure = await read(adapter)
        unread = min(exchange.sent for exchange in server.exchanges[:-1])
        return problems(
            (
                (idle, f"{adapter.connections_in_use} connections still held"),
                (failure is None, f"call 201 failed: {failure}"),
                (unread < len(flood.writes), "the provider was read on without a reader"),
            )
        )


async def cancelled_twice() -> list[str]:
    """T06: two cancellations in quick succession leave no connection behind."""
    answers = [Answer(SHORT[:1], end="open")]
    async with RawServer(*answers) as server, adapter_for(server, maxConnections=5) as adapter:
        for _ in range(12):
            task = asyncio.ensure_future(read(adapter))
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
        server.answers = [Answer(SHORT)]
        _, failure = await read(adapter)
        return problems(
            (
                (failure is None, f"request 13 failed: {failure}"),
                (await _until_idle(adapter), "a connection is still held"),
            )
        )


async def cancelled_stream_stops_provider() -> list[str]:
    """T23: the provider sees the end of the connection and stops sending."""
    slow = Answer([text_event("tok")] * 6000, interval_s=0.01)
    async with RawServer(slow) as server, adapter_for(server) as adapter:
        lists = adapter.stream(a_request())
        for _ in range(5):
            await anext(lists)
        await lists.aclose()
        exchange = server.exchanges[0]
        closed = await comes_true(exchange.closed.is_set)
        return problems(
            (
                (closed, "the connection stayed open"),
                (exchange.sent < 200, f"{exchange.sent} chunks were produced"),
            )
        )


class _Broken(Translator):
    """A translator with a bug."""

    def feed(self, payloads: Iterable[bytes]) -> list[StreamChunk]:
        raise KeyError("bug")


class _BrokenAdapter(ChatCompletionsAdapter):
    is_broken = True

    def new_translator(self, options: GenerateOptions, response_id: str | None) -> Translator:
        good = super().new_translator(options, response_id)
        if self.is_broken:
            good.__class__ = _Broken
        return good


async def bugs_have_the_right_name() -> list[str]:
    """E19: a bug while building is INVALID_REQUEST, while reading MALFORMED_RESPONSE."""
    async with RawServer(Answer(SHORT)) as server:
        adapter = _BrokenAdapter.create(
            AdapterContext(name="field", options=fast_options(server.url))
        )
        await adapter.open()
        schema = ToolSchema(name="f", description="", parameters={"x": object()})
        _, built = await read(adapter, a_request(tools=(schema,)))
        _, parsed = await read(adapter)
        adapter.is_broken = False
        _, after = await read(adapter)
        await adapter.close()
    return problems(
        (
            (built is not None and built.code == "INVALID_REQUEST", f"building: {built}"),
            (parsed is not None and parsed.code == "MALFORMED_RESPONSE", f"reading: {parsed}"),
            (after is None, f"afterwards: {after}"),
        )
    )


async def many_short_streams() -> list[str]:
    """O06: nothing is left of many calls, a third cancelled, a third failed."""
    answers = [Answer(SHORT), Answer(SHORT[:1], end="open"), Answer([b"no"], status=500)]
    async with RawServer(*answers * 100) as server, adapter_for(server) as adapter:
        before = len(asyncio.all_tasks())
        for number in range(300):
            if number % 3 == 1:
                lists = adapter.stream(a_request())
                await anext(lists)
                await lists.aclose()
            else:
                await read(adapter)
        idle = await _until_idle(adapter)
        closed = await comes_true(lambda: len(server.open_connections) <= 2)
        left = len(asyncio.all_tasks()) - before
        return problems(
            (
                (idle, "a connection is still held"),
                (left <= 0, f"{left} tasks are left"),
                (closed, f"{len(server.open_connections)} connections are open"),
            )
        )


async def proxy_of_the_environment() -> list[str]:
    """O08: a proxy of the environment is used only where the configuration says so."""
    async with RawServer(Answer(SHORT)) as proxy, RawServer(Answer(SHORT)) as server:
        os.environ["HTTP_PROXY"] = proxy.url
        try:
            async with adapter_for(server, trustEnv=True) as adapter:
                _, through = await read(adapter)
            async with adapter_for(server, trustEnv=False) as adapter:
                _, direct = await read(adapter)
        finally:
            del os.environ["HTTP_PROXY"]
        seen = [exchange.path for exchange in proxy.exchanges]
        return problems(
            (
                (through is None and direct is None, f"failed: {through}, {direct}"),
                (seen == [f"{server.url}/v1/chat/completions"], f"the proxy saw {seen}"),
                (len(server.exchanges) == 1, "the direct call did not arrive"),
            )
        )


SCENARIOS: dict[str, Callable[[], Awaitable[list[str]]]] = {
    "T04": cancelled_in_every_window,
    "T05": abandoned_streams,
    "T06": cancelled_twice,
    "T23": cancelled_stream_stops_provider,
    "E19": bugs_have_the_right_name,
    "O06": many_short_streams,
    "O08": proxy_of_the_environment,
}
