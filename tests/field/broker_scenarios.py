"""Scenarios of field cases that are about a provider, staged through broker and worker process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import trunkline
from trunkline_protocol.chunks import Finish

from tests.field.scenarios import CLOSE_LIMIT_S, SHORT, comes_true, problems
from tests.field.ways import BrokerWay
from tests.support.calls import a_request, text_event
from tests.support.raw_http import Answer


async def cancelled_in_every_window(way: BrokerWay) -> list[str]:
    """T04: a client cancels before the head and mid-stream; the provider sees it at once."""
    never = asyncio.Event()
    before_head = await _cancel_when_sent(way, Answer(gate=never), 0)
    midway = await _cancel_when_sent(way, Answer(SHORT[:1], end="open"), 1)
    way.server.serve(Answer(SHORT))
    after = await way.runtime.generate(a_request(provider=way.free_route))
    return problems(
        (
            (before_head, "connection open after a cancel before the first byte"),
            (midway, "connection open after a cancel mid-stream"),
            (after.text == "Hi", f"the next call gave {after.text!r}, {after.failure}"),
        )
    )


async def _cancel_when_sent(way: BrokerWay, answer: Answer, texts: int) -> bool:
    """Cancel a call after some texts; tell whether its connection closed in time."""
    number = len(way.server.exchanges)
    way.server.serve(answer)
    stream = way.runtime.stream(a_request(provider=way.free_route))
    reading = asyncio.ensure_future(_read(stream, texts))
    exchange = await way.server.exchange(number)
    if texts:
        await reading
    stream.cancel()
    closed = await comes_true(exchange.closed.is_set)
    await stream.aclose()
    await asyncio.wait({reading}, timeout=CLOSE_LIMIT_S)
    return closed and reading.done()


async def _read(stream: trunkline.Stream, texts: int) -> None:
    """Read until some texts have come, or to the end."""
    async for chunk in stream:
        if isinstance(chunk, trunkline.TextDelta):
            texts -= 1
            if texts == 0:
                return


async def cancelled_stream_stops_provider(way: BrokerWay) -> list[str]:
    """T23: the provider stops sending when the client cancels."""
    slow = Answer([text_event("tok")] * 6000, interval_s=0.01)
    closed = await _cancel_when_sent(way, slow, 5)
    sent = way.server.exchanges[-1].sent
    return problems(
        ((closed, "the connection stayed open"), (sent < 200, f"{sent} chunks were produced"))
    )


async def nothing_is_told_twice(way: BrokerWay) -> list[str]:
    """T21: after the first text there is no retry; before it one is not noticed."""
    request = a_request(provider=way.free_route)
    three = Answer([text_event(text) for text in ("a", "b", "c")], end="reset")
    first = way.server.serve(three)
    stream = way.runtime.stream(request, recovery="policy")
    text, failure = await _text_of(stream)
    kept = [getattr(block, "text", "") for block in stream.interrupted_blocks()]
    late_requests = len(way.server.exchanges) - first
    first = way.server.serve(Answer(end="reset"), Answer(SHORT))
    early_text, early_failure = await _text_of(way.runtime.stream(request, recovery="policy"))
    early_requests = len(way.server.exchanges) - first
    way.server.serve(Answer(end="reset"), Answer(SHORT))
    _, single = await _text_of(way.runtime.stream(request))
    return problems(
        (
            (text == "abc", f"the application saw {text!r}"),
            (failure == "TRANSPORT", f"it ended with {failure}"),
            (kept == ["abc"], f"{kept} is kept of the answer"),
            (late_requests == 1, f"{late_requests} requests after a text"),
            (
                (early_text, early_failure) == ("Hi", None),
                f"retried: {early_text!r}, {early_failure}",
            ),
            (early_requests == 2, f"{early_requests} requests before a text"),
            (single == "TRANSPORT", f"without recovery: {single}"),
        )
    )


async def _text_of(stream: trunkline.Stream) -> tuple[str, str | None]:
    """Read a stream; return its text and the code of its failure."""
    async with stream:
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, trunkline.TextDelta))
    failure = chunks[-1].reason.failure if isinstance(chunks[-1], Finish) else None
    return text, None if failure is None else failure.code


BROKER_SCENARIOS: Final[dict[str, Callable[[BrokerWay], Awaitable[list[str]]]]] = {
    "T04": cancelled_in_every_window,
    "T21": nothing_is_told_twice,
    "T23": cancelled_stream_stops_provider,
}
