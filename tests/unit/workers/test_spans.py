"""The span of an attempt: the conventions' names, numbers, and no text unless it is switched on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.finish import FinishReason, TokenUsage
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.spans import Attempt

STOP = FinishReason("stop")
USER = {"kind": "user"}
TEXT = {"type": "text", "text": "zebra"}


class Spans:
    """A tracer whose spans stay here."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._tracer = provider.get_tracer("test")

    def begin(self) -> Attempt:
        return Attempt(self._tracer.start_span("chat m"))

    @property
    def only(self) -> Any:
        (span,) = self._exporter.get_finished_spans()
        return span

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.only.attributes


@pytest.fixture
def spans() -> Spans:
    return Spans()


def a_request(**fields: object) -> GenerateOptions:
    message = {"id": "1", "role": "user", "content": [TEXT], "source": USER}
    return GenerateOptions.from_dict(
        {"provider": "p", "model": "m", "messages": [message], "system": "zebra", **fields}
    )


def test_the_numbers_of_a_request_are_told_and_nothing_of_its_text(spans: Spans) -> None:
    attempt = spans.begin()
    attempt.request(a_request(maxTokens=9, temperature=0.5, reasoningEffort="high"))
    attempt.end(STOP, None, "", None)
    assert spans.facts == {
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.reasoning.level": "high",
        "gen_ai.response.finish_reasons": ("stop",),
    }


def test_what_was_not_asked_is_not_told(spans: Spans) -> None:
    attempt = spans.begin()
    attempt.request(a_request())
    attempt.end(STOP, None, "", None)
    assert spans.facts.keys() == {"gen_ai.response.finish_reasons"}


def test_tokens_are_counted_as_the_conventions_do(spans: Spans) -> None:
    """There all input is one number with parts; here the parts are disjoint."""
    usage = TokenUsage(10, 5, cache_read_tokens=3, cache_write_tokens=2, reasoning_tokens=1)
    spans.begin().end(STOP, usage, "req-1", 0.25)
    assert spans.facts == {
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 0.25,
        "trunkline.provider_request_id": "req-1",
        "gen_ai.usage.input_tokens": 15,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.cache_write.input_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 1,
    }


@pytest.mark.parametrize(
    ("kind", "code", "status"),
    [("error", "SERVER", StatusCode.ERROR), ("aborted", "ABORTED", StatusCode.UNSET)],
)
def test_a_failure_is_a_code_and_never_the_words_of_a_provider(
    spans: Spans, kind: str, code: str, status: StatusCode
) -> None:
    """Who cancels has made no error, though the conventions have one word for both."""
    spans.begin().end(FinishReason(kind, LlmFailure("zebra", code)), None, "", None)
    assert spans.facts == {"gen_ai.response.finish_reasons": ("error",), "error.type": code}
    assert spans.only.status.status_code is status
    assert "zebra" not in spans.only.to_json()


def test_text_comes_from_the_debug_switch_alone(spans: Spans) -> None:
    attempt = spans.begin()
    attempt.text({"gen_ai.input.messages": "[]"})
    attempt.end(STOP, None, "", None)
    assert spans.facts["gen_ai.input.messages"] == "[]"
