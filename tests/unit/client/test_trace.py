"""The context of the application's own spans."""

from __future__ import annotations

import subprocess
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from trunkline.trace import current_traceparent
from trunkline_protocol.trace_context import read_traceparent


def test_the_current_span_is_named() -> None:
    """Outside of spans there is nothing to name."""
    assert current_traceparent() == ""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    with tracer.start_as_current_span("asking") as span:
        context = span.get_span_context()
        told = current_traceparent()
    found = read_traceparent(told)
    assert found is not None
    assert found.trace_id == trace.format_trace_id(context.trace_id)
    assert found.span_id == trace.format_span_id(context.span_id)
    assert found.is_sampled
    assert current_traceparent() == ""


def test_nothing_is_loaded_for_it() -> None:
    """An application without OpenTelemetry gets none from us."""
    program = (
        "import sys; from trunkline.trace import current_traceparent as now;"
        "print(repr(now()), 'opentelemetry' in sys.modules)"
    )
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["''", "False"]
