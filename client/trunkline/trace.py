"""The span of the application that asks, if it uses OpenTelemetry; nothing here loads that."""

from __future__ import annotations

import sys


def current_traceparent() -> str:
    """Return the current span as W3C trace context; empty if the application traces nothing."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return ""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
