"""Spans of attempts by the OpenTelemetry conventions for generative AI; imported only if wanted.

A span of kind CLIENT per attempt, `chat MODEL`, whose parent is what `START` names. It is sent by
the SDK's own thread. Names are those of version 0.1.0 of github.com/open-telemetry/
semantic-conventions-genai, where these conventions live now. Attributes are names and numbers;
prompts and answers come only from the debug switch (`prompts`), keys and headers never.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from trunkline_protocol.finish import FinishReason, TokenUsage
from trunkline_protocol.frames import Start
from trunkline_protocol.options import GenerateOptions
from trunkline_protocol.trace_context import read_traceparent
from trunkline_protocol.version import __version__

SEND_EVERY_MS: Final = 1000
SEND_TIMEOUT_S: Final = 2.0
MAX_WAITING: Final = 2048  # spans; the SDK drops what is beyond
_CLOSE_MS: Final = 2000

Report = Callable[[str], None]


class Spans:
    """Spans of one worker process.

    Args:
        endpoint: base URL of the collector.
        pool: NAME of the worker's pool, and its `slot`.
        report: is told when the collector can't be reached, and when it can again.
    """

    def __init__(self, endpoint: str, pool: str, slot: int, report: Report) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # said by `_Said` instead
        self._pool, self._slot = pool, slot
        resource = Resource.create(
            {
                "service.name": "trunkline-worker",
                "service.version": __version__,
                "service.instance.id": f"{pool}/{slot}",
                "process.pid": os.getpid(),
            }
        )
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=SEND_TIMEOUT_S)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(_Said(exporter, report), MAX_WAITING, SEND_EVERY_MS)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("trunkline", __version__)

    def begin(self, start: Start) -> Attempt:
        """Begin the span of an attempt."""
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": start.provider,
            "gen_ai.request.model": start.model,
            "gen_ai.request.stream": True,
            "trunkline.call_id": start.call.hex(),
            "trunkline.attempt": start.attempt,
            "trunkline.worker": f"{self._pool}/{self._slot}",
        }
        span = self._tracer.start_span(
            f"chat {start.model}", _context(start.traceparent), SpanKind.CLIENT, attributes
        )
        return Attempt(span)

    def close(self) -> None:
        """Send what is left, for two seconds at most."""
        self._provider.force_flush(_CLOSE_MS)
        self._provider.shutdown()


class Attempt:
    """The span of one attempt."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def request(self, options: GenerateOptions) -> None:
        """Note the numbers of a request."""
        for key, value in (
            ("gen_ai.request.max_tokens", options.max_tokens),
            ("gen_ai.request.temperature", options.temperature),
            ("gen_ai.request.reasoning.level", options.reasoning_effort),
        ):
            if value is not None:
                self._span.set_attribute(key, value)

    def text(self, attributes: Mapping[str, str]) -> None:
        """Note what the debug switch shows."""
        for key, value in attributes.items():
            self._span.set_attribute(key, value)

    def end(
        self,
        finish: FinishReason,
        usage: TokenUsage | None,
        provider_request: str,
        first_chunk_after_s: float | None,
    ) -> None:
        """Close it with what came of the attempt."""
        span = self._span
        # The conventions know one word for whatever did not end by itself.
        reason = finish.kind if finish.failure is None else "error"
        span.set_attribute("gen_ai.response.finish_reasons", [reason])
        if first_chunk_after_s is not None:
            span.set_attribute("gen_ai.response.time_to_first_chunk", first_chunk_after_s)
        if provider_request:
            span.set_attribute("trunkline.provider_request_id", provider_request)
        for key, value in _counts(usage).items():
            span.set_attribute(key, value)
        if finish.failure is not None:
            span.set_attribute("error.type", finish.failure.code)
            if finish.kind == "error":
                span.set_status(Status(StatusCode.ERROR, finish.failure.code))
        span.end()


def _counts(usage: TokenUsage | None) -> Mapping[str, int]:
    if usage is None:
        return {}
    cached = usage.cache_read_tokens or 0
    written = usage.cache_write_tokens or 0
    counts = {
        # The conventions count all input here; ours are disjoint.
        "gen_ai.usage.input_tokens": usage.input_tokens + cached + written,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_write.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }
    return {key: count for key, count in counts.items() if count is not None}


def _context(traceparent: str) -> Any:
    above = read_traceparent(traceparent)
    if above is None:
        return None
    flags = TraceFlags(TraceFlags.SAMPLED if above.is_sampled else TraceFlags.DEFAULT)
    parent = SpanContext(int(above.trace_id, 16), int(above.span_id, 16), True, flags)
    return trace.set_span_in_context(NonRecordingSpan(parent))


class _Said(SpanExporter):
    """An exporter whose trouble is said once when it begins and once when it is over."""

    def __init__(self, inner: SpanExporter, report: Report) -> None:
        self._inner = inner
        self._report = report
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            if self._lost:
                self._report(f"spans are sent again; {self._lost} were lost")
            self._lost = 0
        else:
            if not self._lost:
                self._report("the collector of spans can't be reached; calls go on without them")
            self._lost += len(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()
