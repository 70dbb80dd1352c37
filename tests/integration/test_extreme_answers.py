"""Extreme values in everything that a provider answers: headers, counts, reasons, errors.

A real worker with `chat_completions` calls a provider that writes raw bytes. Each call must end,
with a failure in its form if it fails; the worker and the broker live, and every document can be
read afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest
import trunkline
from trunkline_protocol.printable import CODE_FORM, is_name

from tests.support.broker import SCRIPTED, running_broker
from tests.support.extremes import HUGE_TEXT, NUMBERS, TEXTS, nested, paths, put
from tests.support.timing import SLOW
from tests.support.watched_broker import MEASURED, Watch

pytestmark = pytest.mark.integration
ROUTES: Final = 200  # a pause closes a route, so each answer that may ask for one has its own
AT_ONCE: Final = 16
CALL_S: Final = 30.0
EVENT: Final[dict[str, Any]] = {
    "id": "x", "model": "m", "created": 1,
    "choices": [{"index": 0, "delta": {"content": "hi", "role": "assistant"},
                 "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11,
              "prompt_tokens_details": {"cached_tokens": 1},
              "completion_tokens_details": {"reasoning_tokens": 1}},
}  # fmt: skip
TOOL_EVENT: Final[dict[str, Any]] = {
    "id": "x",
    "choices": [{"index": 0, "finish_reason": "tool_calls", "delta": {"tool_calls": [
        {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}}],
}  # fmt: skip
ERROR: Final[dict[str, Any]] = {
    "error": {"message": "no", "code": "c", "type": "t", "status": "S", "param": None,
              "metadata": {"raw": "r"}, "details": [{"retryDelay": "5s"}]},
}  # fmt: skip
WAITS: Final = (
    "retry-after", "retry-after-ms", "date", "x-ratelimit-reset", "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-tokens-reset",
)  # fmt: skip
HEADERS: Final = (
    "x-request-id", "content-type", "content-length", "content-encoding", "keep-alive",
    "connection", "server", "x-ratelimit-limit-requests", "set-cookie",
)  # fmt: skip
HEADER_VALUES: Final = (
    b"", b"-1", b"0", b"nan", b"inf", b"1e308", b"9" * 300, b"9223372036854775808",
    b"10000000000000000000", b"31536000", b"\x1b[2J", b"\xff\xfe\xed\xa0\x80", b"a\x00b",
    b"x" * 6000, b"Fri, 31 Dec 9999 23:59:59 GMT", b"9999-12-31T23:59:59Z", "\u202eé".encode(),
)  # fmt: skip
VALUES: Final[tuple[Any, ...]] = (
    *NUMBERS, 2**70, -(2**70), *TEXTS, None, True, [], {}, [[]], {"a": {}}, [0] * 500, nested(30),
    nested(400),
)  # fmt: skip


class Given(NamedTuple):
    """One answer of the provider.

    Attributes:
        where: what is extreme in it.
        answer: every byte of it.
    """

    where: str
    answer: bytes


def answer(status: int, body: bytes, kind: bytes = b"", **headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 %d X" % status, b"connection: close"]
    if kind:
        lines.append(b"content-type: " + kind)
    lines += [name.replace("_", "-").encode() + b": " + value for name, value in headers.items()]
    return b"\r\n".join((*lines, b"", body))


def stream_of(*events: Any) -> bytes:
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return answer(200, body + b"data: [DONE]\n\n", b"text/event-stream")


def wishes() -> Iterator[Given]:
    """Yield refusals of too many requests whose wait is extreme."""
    body = json.dumps(ERROR).encode()
    for name in WAITS:
        for value in HEADER_VALUES:
            more = {"retry_after": b"Fri, 31 Dec 9999 23:59:59 GMT"} if name == "date" else {}
            more |= {"x_ratelimit_remaining_tokens": b"0"} if "reset" in name else {}
            made = answer(429, body, b"application/json", **more, **{name: value})
            yield Given(f"429 {name}: {value!r:.60}", made)


def events() -> Iterator[Given]:
    """Yield streams in which one value is extreme, and errors of every kind."""
    for name, tree in (("event", EVENT), ("tools", TOOL_EVENT), ("error in a stream", ERROR)):
        for path in paths(tree):
            for value in VALUES:
                where = f"{name} {'.'.join(map(str, path))} = {value!r:.60}"
                yield Given(where, stream_of(put(tree, path, value)))
    for path in paths(ERROR):
        for value in VALUES:
            where = f"error {'.'.join(map(str, path))} = {value!r:.60}"
            yield Given(where, answer(400, json.dumps(put(ERROR, path, value)).encode()))
    for name in HEADERS:
        for value in HEADER_VALUES:
            body = b"data: " + json.dumps(EVENT).encode() + b"\n\n"
            yield Given(f"200 {name}: {value!r:.60}", answer(200, body, **{name: value}))
            yield Given(f"403 {name}: {value!r:.60}", answer(403, b"{}", **{name: value}))
    huge = put(EVENT, ("choices", 0, "delta", "content"), HUGE_TEXT)
    yield Given("a text of 10 MB", stream_of(huge))
    yield Given("an error of 10 MB", answer(500, HUGE_TEXT.encode()))


class Provider:
    """Writes the answer whose number is the model of the request."""

    def __init__(self, given: list[Given]) -> None:
        self._given = given
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            number = int(json.loads(await reader.readexactly(size))["model"])
            writer.write(self._given[number].answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the worker has had enough of an answer that is wrong
        finally:
            writer.close()


@pytest.fixture(scope="module")
def given() -> list[Given]:
    """Every wish and a part of the rest; `EXTREMES=all` takes 2,400 answers and a minute."""
    step = 1 if os.environ.get("EXTREMES") == "all" else 7
    return [*wishes(), *list(events())[::step]]


async def finish_of(llm: trunkline.LlmRuntime, number: int, route: str) -> trunkline.Finish:
    """Return how a call has ended."""
    async with (
        asyncio.timeout(CALL_S * SLOW),
        llm.stream(provider=route, model=str(number), messages="x") as stream,
    ):
        chunks = [chunk async for chunk in stream]
    assert isinstance(chunks[-1], trunkline.Finish)
    return chunks[-1]


def check(where: str, finish: trunkline.Finish) -> None:
    """Make sure that a failure has its form."""
    failure = finish.reason.failure
    if failure is None:
        return
    assert CODE_FORM.fullmatch(failure.code), f"{where}: {failure}"
    assert failure.code != "INVARIANT", f"{where}: {failure}"
    assert len(failure.message) <= 4096, f"{where}: {failure}"
    assert failure.request_id is None or is_name(failure.request_id), f"{where}: {failure}"
    assert (failure.provider_retry_after_ms or 0) <= 3_600_000, f"{where}: {failure}"


async def test_every_answer_ends_its_call_and_nothing_else(given: list[Given]) -> None:
    routes = [f"p{at}" for at in range(ROUTES)]
    async with Provider(given) as url:
        pool = (
            f'[worker.chat]\nadapter = "chat_completions"\nproviders = {json.dumps(routes)}\n'
            f'env = ["CHAT_KEY"]\noptions = {{ baseUrl = "{url}", apiKeyEnv = "CHAT_KEY" }}\n'
        )
        with running_broker(MEASURED + SCRIPTED + pool, {"CHAT_KEY": "canary-key-1"}) as broker:
            await asyncio.to_thread(broker.until_ready, "scripted")
            before = await asyncio.to_thread(broker.until_ready, "chat")
            watch = await asyncio.to_thread(Watch, broker)
            free = iter(range(len(given)))
            wish_count = len(list(wishes()))

            async def ask(llm: trunkline.LlmRuntime) -> None:
                for number in free:
                    is_wish = number < wish_count
                    route = routes[number] if is_wish else routes[wish_count + number % 16]
                    check(given[number].where, await finish_of(llm, number, route))
                    if is_wish or number % 200 == 0:
                        await asyncio.to_thread(watch.lives)

            async with trunkline.connect(broker.endpoint, name="extreme") as llm:
                await asyncio.gather(*(ask(llm) for _ in range(AT_ONCE)))
            await asyncio.to_thread(watch.look, "all answers")
            after = await asyncio.to_thread(broker.until_ready, "chat")
            assert pids(after) == pids(before)
            await asyncio.to_thread(watch.close)


def pids(status: Any) -> list[Any]:
    return [slot["pid"] for pool in status["pools"] for slot in pool["slots"]]
