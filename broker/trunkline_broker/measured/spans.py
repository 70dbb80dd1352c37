"""A span per call by the OpenTelemetry conventions for generative AI; imported only if wanted.

It is made when the call is over, from what the core tells then: its ids follow from the call id
(SPEC 3.1), so nothing has to be remembered while the call runs but the failures of retried
attempts. Attributes are names and numbers: no prompt, answer, key or header.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from trunkline_protocol.trace_context import read_traceparent, span_of_call
from trunkline_protocol.version import __version__

from trunkline_broker.core.effects import AttemptEnded

SEND_EVERY_MS: Final = 1000
SEND_TIMEOUT_S: Final = 2.0
MAX_WAITING: Final = 8192  # spans; the SDK drops what is beyond
MAX_RETRIED: Final = 4096  # calls whose failed attempts are remembered
_CLOSE_MS: Final = 2000
_NS: Final = 1_000_000_000

Say = Callable[[str, str, Mapping[str, Any]], None]


class _Ids(IdGenerator):
    """Gives out the ids of the call that is being told."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class CallSpans:
    """Makes and sends spans until it is closed.

    Args:
        endpoint: base URL of the collector.
        say: writes a log line; called from the sending thread too.
    """

    def __init__(self, endpoint: str, say: Say) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # `_Said` tells it instead
        self._ids = _Ids()
        self._retried: OrderedDict[bytes, list[tuple[int, str]]] = OrderedDict()
        resource = Resource.create(
            {
                "service.name": "trunkline",
                "service.version": __version__,
                "process.pid": os.getpid(),
            }
        )
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=SEND_TIMEOUT_S)
        self.exporter = _Said(exporter, say)
        self._provider = TracerProvider(
            resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        processor = BatchSpanProcessor(self.exporter, MAX_WAITING, SEND_EVERY_MS)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("trunkline", __version__)

    def on_attempt(self, ended: AttemptEnded) -> None:
        """Remember a retried attempt; make the span of a call that is over."""
        now_ns = time.time_ns()
        if ended.outcome == "retried":
            failed = self._retried.setdefault(ended.call, [])
            failed.append((now_ns, ended.code))
            if len(self._retried) > MAX_RETRIED:
                self._retried.popitem(last=False)
            return
        failed = self._retried.pop(ended.call, [])
        if ended.age_s is None:
            return  # an older broker knew when it began
        mine = span_of_call(ended.call, ended.traceparent)
        self._ids.trace_id, self._ids.span_id = int(mine.trace_id, 16), int(mine.span_id, 16)
        span = self._tracer.start_span(
            f"chat {ended.model}".rstrip(),
            _context(ended.traceparent),
            SpanKind.SERVER,
            _attributes(ended),
            start_time=now_ns - int(ended.age_s * _NS),
        )
        for at_ns, code in failed:
            span.add_event("trunkline.retry", {"error.type": code}, at_ns)
        if ended.kind == "error":
            span.set_status(Status(StatusCode.ERROR, ended.code))
        span.end(now_ns)

    def close(self) -> None:
        """Send what is left, for two seconds at most."""
        self._provider.force_flush(_CLOSE_MS)
        self._provider.shutdown()


def _attributes(ended: AttemptEnded) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": ended.provider,
        "gen_ai.request.model": ended.model,
        "gen_ai.request.stream": True,
        # The conventions know one word for whatever did not end by itself.
        "gen_ai.response.finish_reasons": ["error" if ended.code else ended.kind],
        "trunkline.call_id": ended.call.hex(),
        "trunkline.client": ended.client,
        "trunkline.attempts": ended.attempt + 1,
        "trunkline.outcome": ended.outcome,
    }
    if ended.code:
        attributes["error.type"] = ended.code
    if ended.pool:
        attributes["trunkline.worker"] = f"{ended.pool}/{ended.slot}"
    if ended.waited_s is not None:
        attributes["trunkline.wait_ms"] = round(ended.waited_s * 1000, 3)
    figures = ended.figures or {}
    for key, name in (
        ("ttftMs", "trunkline.time_to_first_chunk_ms"),
        ("chunks", "trunkline.chunks"),
        ("requestId", "trunkline.provider_request_id"),
    ):
        if isinstance(figures.get(key), int | float | str):
            attributes[name] = figures[key]
    return attributes


def _context(traceparent: str) -> Any:
    above = read_traceparent(traceparent)
    if above is None:
        return None
    flags = TraceFlags(TraceFlags.SAMPLED if above.is_sampled else TraceFlags.DEFAULT)
    parent = SpanContext(int(above.trace_id, 16), int(above.span_id, 16), True, flags)
    return trace.set_span_in_context(NonRecordingSpan(parent))


class _Said(SpanExporter):
    """An exporter whose trouble is said once when it begins and once when it is over."""

    def __init__(self, inner: SpanExporter, say: Say) -> None:
        self._inner = inner
        self._say = say
        self._lost_of_late = 0
        self.sent = self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.sent += len(spans)
            if self._lost_of_late:
                self._say("info", "traces_sent_again", {"lost": self._lost_of_late})
            self._lost_of_late = 0
            return result
        if not self._lost_of_late:
            self._say("warning", "traces_not_sent", {"reason": "the collector did not take them"})
        self.lost += len(spans)
        self._lost_of_late += len(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()
