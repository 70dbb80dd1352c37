"""The chat-completions adapter against real local servers, on both transports."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from trunkline_protocol.attribution import user_agent
from trunkline_protocol.chunks import Finish, TextDelta
from trunkline_protocol.failure import LlmError
from trunkline_protocol.models import LlmModelDiscoveryRequest
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.chat_completions.adapter import ChatCompletionsAdapter

from tests.field.scenarios import (
    abandoned_streams,
    bugs_have_the_right_name,
    cancelled_in_every_window,
    cancelled_stream_stops_provider,
    cancelled_twice,
    many_short_streams,
    proxy_of_the_environment,
    read,
)
from tests.support.calls import DONE_EVENT, a_request, fast_options, text_event, until
from tests.support.raw_http import Answer, RawServer

pytestmark = pytest.mark.integration

SHORT = (text_event("Hel"), text_event("lo"), text_event("", "stop"), DONE_EVENT)
transports = pytest.mark.parametrize("transport", ["aiohttp", "httpx"])


@asynccontextmanager
async def adapter(
    server: RawServer | str, environ: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[ChatCompletionsAdapter]:
    url = server if isinstance(server, str) else server.url
    made = ChatCompletionsAdapter.create(
        AdapterContext(name="test", options=fast_options(url, **options), environ=environ or {})
    )
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))


@transports
async def test_a_stream_is_read_and_its_connection_reused(transport: str) -> None:
    """Chunks arrive, every request carries attribution and identity, one connection serves all."""
    async with RawServer(Answer(SHORT)) as server, adapter(server, transport=transport) as made:
        for _ in range(3):
            chunks, failure = await read(made)
            assert failure is None
            assert text_of(chunks) == "Hello"
            await until(lambda: made.connections_in_use == 0)
        assert server.connections == 1
        for exchange in server.exchanges:
            assert exchange.headers["user-agent"] == user_agent()
            assert exchange.headers["accept-encoding"] == "identity"
            assert exchange.path == "/v1/chat/completions"
            assert json.loads(exchange.body)["stream"] is True


@transports
async def test_attribution_wins_over_configured_headers(transport: str) -> None:
    """A configured header can't hide who calls; others are sent."""
    headers = {"User-Agent": "curl", "x-team": "blue"}
    async with (
        RawServer(Answer(SHORT)) as server,
        adapter(server, transport=transport, headers=headers) as made,
    ):
        await read(made)
        sent = server.exchanges[0].headers
        assert (sent["user-agent"], sent["x-team"]) == (user_agent(), "blue")


@transports
async def test_a_list_comes_per_read_as_it_arrives(transport: str) -> None:
    """A chunk is delivered before the next one is sent."""
    gate = asyncio.Event()
    async with (
        RawServer(Answer(SHORT, gate=gate, gate_after=1)) as server,
        adapter(server, transport=transport) as made,
    ):
        lists = made.stream(a_request())
        assert text_of(await anext(lists)) == "Hel"
        gate.set()
        rest = [chunk async for some in lists for chunk in some]
        assert isinstance(rest[-1], Finish)


@transports
@pytest.mark.parametrize("held", ["before the head", "mid-stream"])
async def test_a_cancel_closes_the_connection_in_time(transport: str, held: str) -> None:
    """The server sees the end within the limit, and the slot is free."""
    gate = asyncio.Event()
    answer = Answer(gate=gate) if held == "before the head" else Answer(SHORT[:1], end="open")
    async with RawServer(answer) as server, adapter(server, transport=transport) as made:
        task = asyncio.ensure_future(read(made))
        exchange = await server.exchange(0)
        if held == "mid-stream":
            await until(lambda: exchange.sent > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(exchange.closed.wait(), 1.0)
        assert made.connections_in_use == 0


@transports
async def test_a_cancel_during_connect_leaves_nothing(transport: str) -> None:
    """A call that is cancelled while it connects gives its slot back."""
    async with (
        RawServer(Answer(SHORT)) as server,
        adapter(server, transport=transport, maxConnections=1) as made,
    ):
        for turns in range(12):
            task = asyncio.ensure_future(read(made))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            task.cancel()
            await asyncio.wait({task})
        chunks, failure = await read(made)
        assert (text_of(chunks), failure) == ("Hello", None)


@transports
@pytest.mark.parametrize(
    ("limit", "answer"),
    [
        ("first-byte", Answer(gate=asyncio.Event())),
        ("first-byte", Answer(end="open")),
        ("idle", Answer(SHORT[:1], end="open")),
        ("progress", Answer([b": keep-alive\n\n"] * 100, interval_s=0.02)),
        ("total", Answer([text_event("x")] * 100, interval_s=0.02)),
    ],
)
async def test_limits_by_name(transport: str, limit: str, answer: Answer) -> None:
    """Each limit ends the call with TIMEOUT and its name, and closes the connection."""
    option = {
        "first-byte": "firstByteTimeoutMs",
        "idle": "streamIdleTimeoutMs",
        "progress": "progressTimeoutMs",
        "total": "totalTimeoutMs",
    }[limit]
    async with (
        RawServer(answer) as server,
        adapter(server, transport=transport, **{option: 200}) as made,
    ):
        _, failure = await read(made)
        assert failure is not None
        assert failure.code == "TIMEOUT"
        assert f"{limit} limit of 0.2 s" in failure.message
        await asyncio.wait_for(server.exchanges[0].closed.wait(), 1.0)
        assert made.connections_in_use == 0


@transports
async def test_the_connect_limit(transport: str) -> None:
    """A server that does not accept ends the call with the name of the limit."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)  # and nobody accepts: when its queue is full, a connect just waits
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with adapter(url, transport=transport, connectTimeoutMs=200) as made:
            _, failure = await read(made)
            assert failure is not None
            assert failure.code == "TIMEOUT"
            assert "connect limit of 0.2 s" in failure.message
            assert made.connections_in_use == 0


async def test_connections_can_be_used_once() -> None:
    """Without keep-alive every call has its own, and says so."""
    async with RawServer(Answer(SHORT)) as server, adapter(server, keepAlive=False) as made:
        for _ in range(2):
            _, failure = await read(made)
            assert failure is None
        assert server.connections == 2
        assert server.exchanges[0].headers["connection"] == "close"


async def test_the_pool_limit_is_local() -> None:
    """Waiting too long for a connection of this worker is not the provider's timeout."""
    async with (
        RawServer(Answer(SHORT[:1], end="open")) as server,
        adapter(server, maxConnections=1, poolTimeoutMs=50) as made,
    ):
        held = made.stream(a_request())
        await anext(held)
        _, failure = await read(made)
        assert failure is not None
        assert (failure.code, "pool limit" in failure.message) == ("TRANSPORT", True)
        await held.aclose()


@transports
async def test_a_reader_that_pauses_never_times_out(transport: str) -> None:
    """Only waiting for the provider counts."""
    async with (
        RawServer(Answer(SHORT)) as server,
        adapter(server, transport=transport, streamIdleTimeoutMs=100) as made,
    ):
        lists = made.stream(a_request())
        chunks = await anext(lists)
        await asyncio.sleep(0.3)
        chunks += [chunk async for some in lists for chunk in some]
        assert text_of(chunks) == "Hello"


async def test_a_cancel_wins_over_a_limit_that_passes_with_it() -> None:
    """A caller's abort stays an abort."""
    async with (
        RawServer(Answer(SHORT[:1], end="open")) as server,
        adapter(server, streamIdleTimeoutMs=50) as made,
    ):
        task = asyncio.ensure_future(read(made))
        await server.exchange(0)
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, task.cancel)
        await asyncio.wait({task})
        assert task.cancelled() or task.result()[1].code == "TIMEOUT"  # type: ignore[union-attr]


@transports
@pytest.mark.parametrize(
    ("end", "chunked", "code"),
    [
        ("clean", True, "STREAM_CLOSED"),
        ("clean", False, "STREAM_CLOSED"),
        ("reset", True, "TRANSPORT"),
    ],
)
async def test_a_cut_answer_is_a_failure(
    transport: str, end: Any, chunked: bool, code: str
) -> None:
    """Without a finish reason no end is a good one; what came is delivered."""
    answer = Answer(SHORT[:1], end=end, chunked=chunked)
    async with RawServer(answer) as server, adapter(server, transport=transport) as made:
        chunks, failure = await read(made)
        assert failure is not None
        assert (text_of(chunks), failure.code) == ("Hel", code)


@transports
@pytest.mark.parametrize("end", ["clean", "open", "reset"])
async def test_an_answer_with_a_finish_reason_is_whole(transport: str, end: Any) -> None:
    """`[DONE]` is not needed, whatever becomes of the connection."""
    async with (
        RawServer(Answer(SHORT[:3], end=end)) as server,
        adapter(server, transport=transport) as made,
    ):
        chunks, failure = await read(made)
        assert (text_of(chunks), failure) == ("Hello", None)


@transports
async def test_done_ends_a_stream_whose_connection_stays_open(transport: str) -> None:
    """Nobody waits for the end of the body; such a connection is not used again."""
    async with (
        RawServer(Answer(SHORT, end="open")) as server,
        adapter(server, transport=transport) as made,
    ):
        for _ in range(2):
            loop = asyncio.get_running_loop()
            start = loop.time()
            _, failure = await read(made)
            assert failure is None
            assert loop.time() - start < 0.25
            await asyncio.wait_for(server.exchanges[-1].closed.wait(), 1.0)
        assert server.connections == 2


@transports
async def test_a_compressed_stream_is_read(transport: str) -> None:
    """It was not asked for, and comes all the same; a broken one is malformed."""
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    packed = gzip.compress(b"".join(SHORT))
    answers = (Answer([packed], headers=headers), Answer([b"no gzip"], headers=headers))
    unknown = Answer([b"x"], headers={**headers, "content-encoding": "br"})
    async with (
        RawServer(*answers, unknown) as server,
        adapter(server, transport=transport) as made,
    ):
        chunks, failure = await read(made)
        assert (text_of(chunks), failure) == ("Hello", None)
        for _ in range(2):
            _, failure = await read(made)
            assert failure is not None
            assert failure.code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize(
    ("body", "content_type", "said"),
    [
        (b"<html><h1>Bad gateway</h1></html>", "text/html", "a web page"),
        (b"upstream connect error", "text/plain", "upstream connect error"),
        (b'{"a":1}\n{"b":2}\n', "application/x-ndjson", "JSON"),
        (b'{"object":"list"}', "application/json", "no completion"),
    ],
)
async def test_a_200_that_is_no_stream_is_malformed(
    body: bytes, content_type: str, said: str
) -> None:
    """Never an empty success."""
    answer = Answer([body], headers={"content-type": content_type})
    async with RawServer(answer) as server, adapter(server) as made:
        _, failure = await read(made)
    assert failure is not None
    assert failure.code == "MALFORMED_RESPONSE"
    assert said in failure.message


async def test_a_mislabelled_stream_is_a_stream() -> None:
    """The body decides, not its label; leading blank lines and a byte order mark are skipped."""
    writes = (b"\n", b"\n\xef\xbb", *SHORT)
    answers = [Answer(SHORT, headers={"content-type": "application/json"})]
    answers.append(Answer((b"\xef\xbb\xbf" + SHORT[0], *SHORT[1:])))
    answers.append(Answer((b"\n", b"\r\n", *SHORT), headers={}))
    del writes
    async with RawServer(*answers) as server, adapter(server) as made:
        for _ in answers:
            chunks, failure = await read(made)
            assert (text_of(chunks), failure) == ("Hello", None)


async def test_http_failures_keep_their_facts() -> None:
    """Status, delay, request id and code survive; the key does not."""
    key = "qk-verysecret-123456789"
    body = json.dumps({"error": {"message": f"slow down {key[:12]}", "type": "rate_limit"}})
    headers = {"retry-after": "2", "x-request-id": "req-1", "content-type": "application/json"}
    answer = Answer([body.encode()], status=429, headers=headers)
    async with (
        RawServer(answer) as server,
        adapter(server, {"KEY": key}, apiKeyEnv="KEY") as made,
    ):
        _, failure = await read(made)
        assert failure is not None
        assert (failure.code, failure.status) == ("RATE_LIMIT", 429)
        assert (failure.provider_retry_after_ms, failure.request_id) == (2000, "req-1")
        assert failure.message == "slow down [redacted]"
        assert server.exchanges[0].headers["authorization"] == f"Bearer {key}"


async def test_no_exception_in_the_chain_holds_the_key() -> None:
    """The error that leaves the adapter has no cause or context that quotes the provider."""
    key = "qk-verysecret-123456789"
    answer = Answer([key.encode()], status=401)
    async with RawServer(answer) as server, adapter(server, {"KEY": key}, apiKeyEnv="KEY") as made:
        with pytest.raises(LlmError) as caught:
            await anext(made.stream(a_request()))
    assert caught.value.code == "AUTH"
    exc: BaseException | None = caught.value
    while exc is not None:
        assert key[:6] not in repr(exc)
        exc = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)


async def test_a_body_that_breaks_never_hides_the_status() -> None:
    """An error response that is cut still has its code."""
    answer = Answer([b'{"error":'], status=503, end="reset")
    async with RawServer(answer) as server, adapter(server) as made:
        _, failure = await read(made)
    assert failure is not None
    assert (failure.code, failure.status) == ("SERVER", 503)


async def test_a_rotated_key_is_used_by_the_next_call(tmp_path: Path) -> None:
    """No restart is needed."""
    path = tmp_path / "key"
    async with RawServer(Answer(SHORT)) as server:
        async with adapter(server, apiKeyFile=str(path), apiKeyHeader="api-key") as made:
            for key in ("first", "second"):
                path.write_text(key)
                await read(made)
        assert [e.headers["api-key"] for e in server.exchanges] == ["first", "second"]


async def test_a_missing_key_makes_no_request() -> None:
    """The rule is applied before any I/O."""
    async with RawServer(Answer(SHORT)) as server:
        async with adapter(server, profile="deepseek") as made:
            _, failure = await read(made)
        assert failure is not None
        assert failure.code == "MISSING_CREDENTIAL"
        assert not server.exchanges


async def test_nobody_listens() -> None:
    """A refused connection is TRANSPORT, on both transports, and tells no URL."""
    async with RawServer(Answer()) as server:
        url = server.url
    for transport in ("aiohttp", "httpx"):
        async with adapter(url, transport=transport) as made:
            _, failure = await read(made)
        assert failure is not None
        assert failure.code == "TRANSPORT"


@transports
async def test_a_server_that_closes_without_an_answer_is_a_transport_failure(
    transport: str,
) -> None:
    """A disconnect before the head is no timeout."""

    def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, adapter(url, transport=transport) as made:
        _, failure = await read(made)
    assert failure is not None
    assert failure.code == "TRANSPORT"


@transports
async def test_a_reply_that_is_no_http_is_a_transport_failure(transport: str) -> None:
    """Garbage on the socket never raises anything else."""

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, adapter(url, transport=transport) as made:
        _, failure = await read(made)
    assert failure is not None
    assert failure.code == "TRANSPORT"


async def test_models_are_listed_by_the_provider() -> None:
    """The provider's list, each id once; a failure says why."""
    body = json.dumps({"data": [{"id": "a", "name": "A"}, {"id": "b"}, {"id": "a"}, {}, 3]})
    answers = (Answer([body.encode()]), Answer([b"x"], status=401), Answer([b"x"]))
    async with RawServer(*answers) as server, adapter(server) as made:
        models = await made.list_models("r")
        assert [(m.provider, m.id, m.name) for m in models] == [("r", "a", "A"), ("r", "b", "b")]
        for code in ("AUTH", "MALFORMED_RESPONSE"):
            with pytest.raises(LlmError) as caught:
                await made.list_models("r")
            assert caught.value.code == code
        assert server.exchanges[0].path == "/v1/models"


async def test_an_endpoint_of_a_draft_is_asked_with_its_own_credential() -> None:
    """And never with the worker's; a key that the endpoint echoes is not shown."""
    listing = b'{"data": [{"id": "a", "name": "A"}, {"id": "b"}, {"id": "a"}, {"name": "c"}]}'
    refusal = b'{"error": {"message": "bad key draft-secret-key"}}'
    answers = (Answer([listing]), Answer([refusal], status=401))
    async with RawServer(*answers) as server, adapter(server) as made:
        draft = {"baseURL": f"{server.url}/v1/", "apiKey": "draft-secret-key"}
        found = await made.discover_models(LlmModelDiscoveryRequest.from_dict(draft))
        assert [model.to_dict() for model in found] == [{"id": "a", "name": "A"}, {"id": "b"}]
        (exchange,) = server.exchanges
        assert exchange.headers["authorization"] == "Bearer draft-secret-key"
        assert exchange.path == "/v1/models"
        with pytest.raises(LlmError) as seen:
            await made.discover_models(LlmModelDiscoveryRequest.from_dict(draft))
        assert seen.value.code == "AUTH"
        assert "draft-secret-key" not in str(seen.value)
        for wrong, code in (
            ({"baseURL": "file:///etc/passwd"}, "INVALID_DISCOVERY"),
            ({"provider": "nobody"}, "INVALID_DISCOVERY"),
            ({"baseURL": server.url, "api": "gopher"}, "UNSUPPORTED"),
            ({"baseURL": server.url, "apiKey": "two words"}, "INVALID_CREDENTIAL"),
        ):
            with pytest.raises(LlmError) as seen:
                await made.discover_models(LlmModelDiscoveryRequest.from_dict(wrong))
            assert seen.value.code == code
        assert len(server.exchanges) == 2


async def test_a_known_route_is_answered_without_network() -> None:
    """From the configuration, even if the draft names an endpoint."""
    models = [{"id": "big", "contextWindow": 100, "maxTokens": 7}]
    async with RawServer() as server, adapter(server, models=models) as made:
        route = made.default_providers()[0]
        draft = LlmModelDiscoveryRequest(provider=route, base_url=server.url)
        (model,) = await made.discover_models(draft)
        assert (model.id, model.context_window, model.max_tokens) == ("big", 100, 7)
        assert server.exchanges == []


async def test_models_are_resolved_from_the_configuration() -> None:
    """Window, limit and efforts come from options and profile; any id is accepted."""
    options = {
        "profile": "deepseek",
        "models": [{"id": "big", "contextWindow": 100, "maxTokens": 7}],
        "contextWindow": 50,
        "reasoningEffort": "high",
    }
    async with adapter("http://127.0.0.1:9", **options) as made:
        big, other = await made.resolve_model("r", "big"), await made.resolve_model("r", "other")
    assert big.context is not None
    assert other.context is not None
    assert (big.context.context_window, big.default_max_tokens) == (100, 7)
    assert (other.context.context_window, other.default_max_tokens) == (50, None)
    assert big.reasoning is not None
    assert [effort.id for effort in big.reasoning.efforts] == ["off", "low", "high", "max"]
    assert big.reasoning.default_effort == "high"


@pytest.mark.parametrize(
    "stage",
    [
        cancelled_in_every_window,
        abandoned_streams,
        cancelled_twice,
        cancelled_stream_stops_provider,
        bugs_have_the_right_name,
        many_short_streams,
        proxy_of_the_environment,
    ],
)
async def test_scenarios(stage: Any) -> None:
    """The scenarios of field cases hold."""
    assert await stage() == []
