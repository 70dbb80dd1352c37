"""Notes of attempts: the request id finds its attempt, and each span is ended once."""

from __future__ import annotations

from collections.abc import Mapping

from trunkline_protocol.finish import FinishReason, TokenUsage
from trunkline_protocol.frames import Start
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.boundary import MAX_REQUEST_ID_CHARS
from trunkline_workers.tracing import (
    AttemptNotes,
    note_request_id,
    note_response,
)

from tests.unit.workers.a_worker import a_start

STOP = FinishReason("stop")
USAGE = TokenUsage(1, 2)


class Span:
    def __init__(self) -> None:
        self.ends: list[tuple[str, TokenUsage | None, str, float | None]] = []
        self.requests: list[GenerateOptions] = []
        self.texts: dict[str, str] = {}

    def request(self, options: GenerateOptions) -> None:
        self.requests.append(options)

    def text(self, attributes: Mapping[str, str]) -> None:
        self.texts |= attributes

    def end(
        self,
        finish: FinishReason,
        usage: TokenUsage | None,
        provider_request: str,
        first_chunk_after_s: float | None,
    ) -> None:
        self.ends.append((finish.kind, usage, provider_request, first_chunk_after_s))


class Spans:
    def __init__(self) -> None:
        self.begun: list[tuple[Start, Span]] = []
        self.is_closed = False

    def begin(self, start: Start) -> Span:
        self.begun.append((start, Span()))
        return self.begun[-1][1]

    def close(self) -> None:
        self.is_closed = True


def test_a_request_id_is_noted_with_the_attempt_whose_task_heard_it() -> None:
    notes = AttemptNotes()
    one, two = a_start(), a_start(attempt=1)
    first, second = notes.begin(one), notes.begin(two)
    second.run(note_response, {"x-request-id": "b"})
    first.run(note_response, {"request-id": "a"})
    first.run(note_response, {})
    note_request_id("nobody's")
    assert notes.end(one.call, 0, STOP, None) == "a"
    assert notes.end(two.call, 1, STOP, None) == "b"
    assert notes.end(two.call, 1, STOP, None) == ""


def test_a_request_id_is_bounded() -> None:
    notes = AttemptNotes()
    notes.begin(a_start()).run(note_request_id, "x" * 1000)
    assert len(notes.end(a_start().call, 0, STOP, None)) == MAX_REQUEST_ID_CHARS


def test_a_span_is_begun_and_ended_once() -> None:
    spans = Spans()
    notes = AttemptNotes(spans)
    start = a_start()
    notes.begin(start).run(note_request_id, "r")
    notes.end(start.call, 0, STOP, USAGE, 0.25)
    notes.end(start.call, 0, STOP, None)
    ((begun, span),) = spans.begun
    assert begun is start
    assert span.ends == [("stop", USAGE, "r", 0.25)]
    notes.close()
    assert spans.is_closed
    AttemptNotes().close()
