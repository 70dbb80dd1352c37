"""Scenarios of field cases that are about a provider, staged through broker and worker process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trunkline
from trunkline_protocol.chunks import Finish
from trunkline_workers.core.load import BUCKETS_MS

from tests.field.scenarios import CLOSE_LIMIT_S, SHORT, comes_true, problems
from tests.field.ways import BrokerWay
from tests.support.calls import a_request, text_event, until
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


async def buffering_is_seen(way: BrokerWay) -> list[str]:
    """O08: an answer that was stored on its way shows in the worker's figures."""
    texts = [text_event("x")] * 8
    flowing = await _figures_of(way, Answer([*texts, *SHORT[1:]], interval_s=0.06))
    gate = asyncio.Event()
    asyncio.get_running_loop().call_later(0.06 * len(texts), gate.set)
    stored = await _figures_of(way, Answer([b"".join((*texts, *SHORT[1:]))], gate=gate))
    slow = next(at for at, bound_ms in enumerate(BUCKETS_MS) if bound_ms >= 50)
    return problems(
        (
            (sum(flowing["gaps"][slow:]) >= 6, f"gaps of a paced answer: {flowing['gaps']}"),
            (sum(flowing["ttft"][: slow + 2]) == 1, f"its first chunk: {flowing['ttft']}"),
            (sum(stored["gaps"][slow:]) == 0, f"gaps of a stored answer: {stored['gaps']}"),
            (sum(stored["ttft"][slow + 2 :]) == 1, f"its first chunk: {stored['ttft']}"),
        )
    )


async def _figures_of(way: BrokerWay, answer: Answer) -> dict[str, list[int]]:
    """Make a call; return what it added to the histograms of its route."""
    before = _load(way)
    way.server.serve(answer)
    await way.runtime.generate(a_request(provider=way.still_route), recovery="none")
    # All of it is in one of the next heartbeats: start, texts, end and finish.
    await until(lambda: _load(way)["chunks"] >= before["chunks"] + 11)
    after = _load(way)
    return {
        name: [new - old for new, old in zip(after[name], before[name], strict=True)]
        for name in ("ttft", "gaps")
    }


def _load(way: BrokerWay) -> dict[str, Any]:
    """Return the totals of the still route, as the status document has them."""
    blank = [0] * (len(BUCKETS_MS) + 1)
    nothing: dict[str, Any] = {"chunks": 0, "ttft": blank, "gaps": blank}
    for pool in way.broker.status()["pools"]:
        for slot in pool["slots"]:
            found = (slot["load"].get("routes") or {}).get(way.still_route)
            if found is not None:
                return found
    return nothing


BROKER_SCENARIOS: Final[dict[str, Callable[[BrokerWay], Awaitable[list[str]]]]] = {
    "O08": buffering_is_seen,
    "T04": cancelled_in_every_window,
    "T21": nothing_is_told_twice,
    "T23": cancelled_stream_stops_provider,
}
