"""What a person who runs a broker measures with: read by a real Prometheus parser, received by a
collector, kept over a kill; and nothing of it holds a prompt, an answer or a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import resource
import socket
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trunkline
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as read_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as read_text
from trunkline_broker.cli.troubles import troubles
from trunkline_broker.measured.ledger import read_usage
from trunkline_workers.prompts import WARNING

from tests.support.broker import BrokerProcess, broker_process
from tests.support.timing import SLOW, until, until_async

pytestmark = pytest.mark.integration
PROMPT = "zebra-prompt-7731"
ANSWER = "zebra-answer-4410"
START_S = 60.0  # OpenTelemetry takes a while to load on a busy machine
USAGE = {"inputTokens": 11, "outputTokens": 7}
KEY = "sk-zebra-key-9017-abcdefgh"
CONFIG = """
[broker]
metrics = "127.0.0.1:0"
log_format = "json"
log_level = "debug"
log_calls = "all"
traces = "{traces}"

[worker.scripted]
adapter = "scripted"
providers = ["scripted", "flaky"]
env = ["ZEBRA_API_KEY"]
"""


@pytest.fixture
async def broker() -> AsyncIterator[BrokerProcess]:
    """Yield a broker with everything on that measures, and no collector."""
    environ = {"ZEBRA_API_KEY": KEY}
    async with broker_process(CONFIG.format(traces=""), environ) as running:
        await asyncio.to_thread(running.until_ready, "scripted")
        yield running


async def some_calls(broker: BrokerProcess, count: int = 3) -> None:
    """Make calls that end well, one that fails and one that is cancelled."""
    async with trunkline.connect(broker.endpoint, name="measured") as llm:
        for _ in range(count):
            done = await llm.generate(**asking(text=ANSWER, usage=USAGE))
            assert done.finish.kind == "stop"
        failing = {"raise": {"code": "AUTH", "message": f"wrong key {KEY} in {PROMPT}"}}
        failed = await llm.generate(**asking(steps=[failing]))
        assert failed.finish.kind == "error"
        async with llm.stream(**asking(chunks=1000, pace_ms=20)) as stream:
            async for chunk in stream:
                if isinstance(chunk, trunkline.TextDelta):
                    break


def asking(**script: Any) -> dict[str, Any]:
    text = json.dumps({"script": script})
    return {"provider": "scripted", "model": "m", "system": PROMPT, "messages": text}


def page(
    broker: BrokerProcess, accept: str = "", method: str = "GET", path: str = "/metrics"
) -> Any:
    url = broker.status()["measures"]["metrics"]
    host = url.split("/")[2]
    connection = http.client.HTTPConnection(host, timeout=10 * SLOW)
    connection.request(method, path, headers={"Accept": accept} if accept else {})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, body


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in read_text(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(found: Any, name: str, **labels: str) -> float:
    return sum(v for have, v in found.get(name, ()) if labels.items() <= have.items())


def ledger_of(broker: BrokerProcess) -> Path:
    return Path(broker.status()["measures"]["ledger"]["file"])


def counted(broker: BrokerProcess, name: str) -> int:
    return sum(row[name] for row in read_usage(ledger_of(broker), 0))


# --- metrics --------------------------------------------------------------------------------


async def test_a_prometheus_parser_reads_the_endpoint(broker: BrokerProcess) -> None:
    """Everything that was done is on the page, in both formats, with the workers' own figures."""
    await some_calls(broker)

    def has_chunks() -> bool:
        found = samples(page(broker)[2])
        return value(found, "trunkline_chunks_total", provider="scripted") > 3

    await asyncio.to_thread(until, has_chunks, 10.0)  # the next heartbeat
    status, headers, text = await asyncio.to_thread(page, broker)
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    found = samples(text)
    route = {"provider": "scripted", "model": "m"}
    assert value(found, "trunkline_attempts_total", **route, outcome="ended") == 4
    assert value(found, "trunkline_attempts_total", **route, outcome="cancelled") == 1
    assert value(found, "trunkline_failures_total", provider="scripted", code="AUTH") == 1
    assert value(found, "trunkline_tokens_total", **route, kind="input") == 33
    assert value(found, "trunkline_tokens_total", **route, kind="output") == 21
    assert value(found, "trunkline_time_to_first_chunk_seconds_count") >= 4
    assert value(found, "trunkline_chunk_gap_seconds_bucket", le="+Inf") > 0
    assert value(found, "trunkline_attempt_seconds_count") == 5
    assert value(found, "trunkline_worker_up", pool="scripted", slot="0") == 1
    assert value(found, "trunkline_worker_resident_bytes") > 1024 * 1024
    assert value(found, "trunkline_route_up", provider="flaky") == 1
    assert value(found, "trunkline_queue_bound", queue="queries") > 0
    assert value(found, "process_resident_memory_bytes") > 1024 * 1024
    assert value(found, "trunkline_swaps_total") == 0
    accept = "application/openmetrics-text; version=1.0.0"
    _, headers, text = await asyncio.to_thread(page, broker, accept)
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    names = {family.name for family in read_openmetrics(text)}
    assert {"trunkline_retries", "trunkline_refused_frames", "trunkline_wait_seconds"} <= names
    status, _, text = await asyncio.to_thread(page, broker, method="HEAD")
    assert (status, text) == (200, "")


async def test_the_endpoint_answers_nothing_else(broker: BrokerProcess) -> None:
    """Other paths and methods, no HTTP at all, and a reader that says nothing harm nobody."""
    assert (await asyncio.to_thread(page, broker, path="/"))[0] == 404
    assert (await asyncio.to_thread(page, broker, method="POST"))[0] == 405
    host, port = broker.status()["measures"]["metrics"].split("/")[2].split(":")
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(10)
        ]
        silent[0].sendall(b"\x16\x03\x01" * 5000)
        silent[0].settimeout(10 * SLOW)
        with contextlib.suppress(ConnectionResetError):
            answer = await asyncio.to_thread(silent[0].recv, 12)
            assert answer in {b"", b"HTTP/1.1 400", b"HTTP/1.1 431"}
        assert (await asyncio.to_thread(page, broker))[0] == 200  # they make room


async def test_a_port_in_use_costs_the_metrics_and_nothing_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = CONFIG.format(traces="").replace("127.0.0.1:0", f"127.0.0.1:{port}")
        async with broker_process(config) as broker:
            await asyncio.to_thread(broker.until_ready, "scripted")
            assert "metrics" not in broker.status()["measures"]
            (trouble,) = troubles(broker.status())
            assert trouble.text.startswith(f"no metrics: 127.0.0.1:{port}: ")
            assert "metrics_unavailable" in broker.log_text()
            await some_calls(broker)


# --- nothing secret -------------------------------------------------------------------------


async def test_no_prompt_answer_or_key_is_in_log_metrics_or_ledger(broker: BrokerProcess) -> None:
    """All on at debug, and a provider whose error quotes key and prompt."""
    await some_calls(broker)
    await asyncio.to_thread(until, lambda: counted(broker, "calls") == 5, 10.0)
    text = (await asyncio.to_thread(page, broker))[2]
    assert "scripted" in text
    log = broker.log_text()
    assert '"event": "attempt_over"' in log
    await asyncio.to_thread(broker.stop)
    files = [path for path in broker.run_dir.parent.rglob("*") if path.is_file()]
    assert any(path.name == "usage.sqlite" for path in files)
    for name, told in [
        ("page", text),
        *((str(p), p.read_bytes().decode("latin-1")) for p in files),
    ]:
        for secret in ("zebra-prompt", "zebra-answer", "zebra-key"):
            assert secret not in told, name


async def test_the_debug_switch_is_loud_and_writes_no_key() -> None:
    """Prompts and answers are in the worker's log and span, and everything says that they are."""
    with serving(Collector) as collector:
        config = CONFIG.format(traces=url(collector)) + "debug_prompts = true\n"
        async with broker_process(config, {"ZEBRA_API_KEY": KEY}) as broker:
            await asyncio.to_thread(broker.until_ready, "scripted", START_S)
            async with trunkline.connect(broker.endpoint) as llm:
                await llm.generate(**asking(text=f"{ANSWER}, and your key is {KEY}"))
            await until_async(lambda: "trunkline-worker" in spans(collector), 30.0)
            text = "prompts and answers are written to the logs of: scripted/0"
            await until_async(lambda: [each.text for each in troubles(broker.status())] == [text])
            (output,) = [Path(each["output"]) for each in broker.status()["processes"]]
            told = output.read_text()
            log = broker.log_text()
            found = samples((await asyncio.to_thread(page, broker))[2])
    assert value(found, "trunkline_worker_writes_prompts") == 1
    assert WARNING in told.splitlines()[0]
    for secret in (PROMPT, ANSWER):
        assert secret in told
        assert secret not in log
    assert "zebra-key" not in told
    assert log.count("prompts_and_answers_are_written") == 1
    facts = attributes(spans(collector)["trunkline-worker"])
    assert PROMPT in facts["gen_ai.system_instructions"]
    assert ANSWER in facts["gen_ai.output.messages"]
    sent = b"".join(request.SerializeToString() for request in collector.received)
    assert b"zebra-key" not in sent


# --- one id ---------------------------------------------------------------------------------


class Provider(BaseHTTPRequestHandler):
    """Answers chat completions with a request id of its own."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        chunks = [
            {"choices": [{"index": 0, "delta": {"content": "hi"}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
        ]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("x-request-id", "req-zz-42")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


class Collector(BaseHTTPRequestHandler):
    """An OTLP collector that keeps what it receives."""

    protocol_version = "HTTP/1.1"
    received: list[ExportTraceServiceRequest]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        self.server.received.append(ExportTraceServiceRequest.FromString(body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[Any]:
    """Yield a server on loopback; its `received` is what it has got."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.received = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def url(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def spans(collector: Any) -> dict[str, Any]:
    """Return what was received by service name: the last span of each."""
    found: dict[str, Any] = {}
    for request in collector.received:
        for group in request.resource_spans:
            names = {each.key: each.value.string_value for each in group.resource.attributes}
            for scope in group.scope_spans:
                for span in scope.spans:
                    found[names["service.name"]] = span
    return found


def attributes(span: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
    }


async def test_spans_and_log_follow_a_call_from_the_agent_to_the_provider() -> None:
    """One trace over three processes; one call id beside the provider's request id."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("agent")
    with serving(Provider) as provider, serving(Collector) as collector:
        config = CONFIG.format(traces=url(collector)) + (
            '[worker.chat]\nadapter = "chat_completions"\nproviders = ["chat"]\n'
            f'options = {{ baseUrl = "{url(provider)}/v1" }}\n'
        )
        async with broker_process(config) as broker:
            await asyncio.to_thread(broker.until_ready, "chat", START_S)
            async with trunkline.connect(broker.endpoint, name="traced") as llm:
                with tracer.start_as_current_span("agent work") as mine:
                    context = mine.get_span_context()
                    await llm.generate(provider="chat", model="m1", messages=PROMPT)
                await until_async(
                    lambda: {"trunkline", "trunkline-worker"} <= spans(collector).keys(), 30.0
                )
            log = broker.log_text()
    call, attempt = spans(collector)["trunkline"], spans(collector)["trunkline-worker"]
    assert call.trace_id.hex() == attempt.trace_id.hex() == f"{context.trace_id:032x}"
    assert call.parent_span_id.hex() == f"{context.span_id:016x}"
    assert attempt.parent_span_id == call.span_id
    assert (call.name, attempt.name) == ("chat m1", "chat m1")
    assert (call.kind, attempt.kind) == (2, 3)  # SERVER, CLIENT
    assert call.start_time_unix_nano <= attempt.start_time_unix_nano
    facts = attributes(attempt)
    assert facts["gen_ai.operation.name"] == "chat"
    assert facts["gen_ai.provider.name"] == "chat"
    assert facts["gen_ai.request.model"] == "m1"
    assert facts["gen_ai.request.stream"] is True
    assert 0 < facts["gen_ai.response.time_to_first_chunk"] < 60
    assert facts["gen_ai.usage.input_tokens"] == 3
    assert facts["gen_ai.usage.output_tokens"] == 1
    assert facts["trunkline.provider_request_id"] == "req-zz-42"
    assert attributes(call)["trunkline.client"] == "traced"
    assert attributes(call)["trunkline.call_id"] == facts["trunkline.call_id"]
    (line,) = [json.loads(text) for text in log.splitlines() if '"attempt_over"' in text]
    assert (line["call"], line["request_id"]) == (facts["trunkline.call_id"], "req-zz-42")
    assert line["trace"] == call.trace_id.hex()
    told = b"".join(request.SerializeToString() for request in collector.received)
    assert b"zebra" not in told


async def test_retries_failures_and_a_trace_of_its_own() -> None:
    """Without a parent the trace is named like the call; each attempt is a span."""
    with serving(Collector) as collector:
        config = CONFIG.format(traces=url(collector)) + (
            "[worker.scripted.options.retryPolicy]\n"
            'mode = "normal"\nmaxRetries = 1\nbackoff = { initialDelayMs = 1 }\n'
        )
        async with broker_process(config) as broker:
            await asyncio.to_thread(broker.until_ready, "scripted", START_S)
            async with trunkline.connect(broker.endpoint) as llm:
                failing = {"raise": {"code": "SERVER", "message": "no"}}
                done = await llm.generate(**asking(steps=[failing]))
                assert done.attempts == 2
            await asyncio.to_thread(broker.stop)  # sends what is left
        every = [
            span
            for request in collector.received
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
    (call,) = [span for span in every if span.kind == 2]
    attempts = [span for span in every if span.kind == 3]
    assert call.trace_id.hex() == attributes(call)["trunkline.call_id"]
    assert call.parent_span_id == b""
    assert [event.name for event in call.events] == ["trunkline.retry"]
    assert sorted(attributes(span)["trunkline.attempt"] for span in attempts) == [0, 1]
    assert {span.parent_span_id for span in attempts} == {call.span_id}
    assert {attributes(span)["error.type"] for span in every} == {"SERVER"}
    reasons = [attributes(span)["gen_ai.response.finish_reasons"].values for span in every]
    assert {reason.string_value for (reason,) in reasons} == {"error"}
    assert {span.status.code for span in every} == {2}  # ERROR


async def test_without_a_collector_calls_go_on_and_it_is_said_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with broker_process(CONFIG.format(traces=f"http://127.0.0.1:{port}")) as broker:
        await asyncio.to_thread(broker.until_ready, "scripted", START_S)
        await some_calls(broker)
        lost = "broker lost no spans"
        await until_async(lambda: broker.status()["measures"]["traces"]["lost"], 30.0, lost)
        assert broker.log_text().count("traces_not_sent") == 1
        assert "Traceback" not in broker.log_text()


# --- the ledger -----------------------------------------------------------------------------


async def test_the_ledger_survives_a_kill_and_counts_streams_across_it_once() -> None:
    """A stream that outlives its broker is counted by the next one."""
    async with broker_process() as broker:
        await asyncio.to_thread(broker.until_ready, "scripted")
        async with trunkline.connect(broker.endpoint, name="across") as llm:
            for _ in range(5):
                await llm.generate(**asking(text="x", usage=USAGE))
            await until_async(lambda: counted(broker, "calls") == 5, 10.0)
            file = ledger_of(broker)
            async with llm.stream(**asking(chunks=60, pace_ms=50, usage=USAGE)) as stream:
                await anext(stream)
                await asyncio.to_thread(broker.kill)
                with sqlite3.connect(file) as db:
                    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                db.close()
                await asyncio.to_thread(broker.start)
                kinds = [chunk async for chunk in stream]
            assert isinstance(kinds[-1], trunkline.Finish)
            await until_async(lambda: counted(broker, "calls") == 6, 10.0)
        (row,) = read_usage(file, 0)
    assert (row["client"], row["model"], row["output"]) == ("across", "m", 42)


async def test_a_full_disk_never_stops_streaming() -> None:
    """No file of the broker can grow; calls go on, and what waits is written afterwards."""
    async with broker_process() as broker:
        await asyncio.to_thread(broker.until_ready, "scripted")
        async with trunkline.connect(broker.endpoint) as llm:
            await llm.generate(**asking(text="x"))
            await until_async(lambda: counted(broker, "calls") == 1, 10.0)
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (1, hard))
            for _ in range(3):
                assert (await llm.generate(**asking(text="x"))).finish.kind == "stop"
            trouble = lambda: broker.status()["measures"]["ledger"]["trouble"]  # noqa: E731
            await until_async(trouble, 10.0, "the ledger was written all the same")
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))
            await until_async(lambda: counted(broker, "calls") == 4, 15.0)
            assert not trouble()
            assert broker.status()["measures"]["ledger"]["lost"] == 0
