"""What is noted of attempts beside their chunks: the provider's request id, and a span if wanted.

The note of an attempt is a context variable of its task, so code deep in an adapter's HTTP can add
to it without being handed anything. Nothing here sees a prompt, an answer or a key, and nothing
runs per chunk.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from trunkline_protocol.finish import FinishReason, TokenUsage
from trunkline_protocol.frames import Start
from trunkline_protocol.http_failure import request_id
from trunkline_protocol.ids import CallId

MAX_REQUEST_ID_CHARS: Final = 200  # from a header: a bound all the same


class AttemptSpan(Protocol):
    """A span that was begun."""

    def end(self, finish: FinishReason, usage: TokenUsage | None, provider_request: str) -> None:
        """Close it; sending it is somebody else's job and never waits."""
        ...


class SpanSource(Protocol):
    """Begins spans."""

    def begin(self, start: Start) -> AttemptSpan:
        """Begin the span of an attempt, as a child of the one that `START` names."""
        ...

    def close(self) -> None:
        """Send what is left, for a moment at most."""
        ...


@dataclass(slots=True, eq=False)
class AttemptNote:
    """What is known of one attempt.

    Attributes:
        request_id: the provider's own name of its request; empty: not known (yet).
    """

    start: Start
    span: AttemptSpan | None = None
    request_id: str = ""


_CURRENT: contextvars.ContextVar[AttemptNote | None] = contextvars.ContextVar(
    "trunkline_attempt", default=None
)


def note_response(headers: Mapping[str, str]) -> None:
    """Note the request id in the headers of a provider's answer; harmless outside of attempts.

    Args:
        headers: names in lower case.
    """
    note_request_id(request_id(headers) or "")


def note_request_id(text: str) -> None:
    """Note the provider's name of the request that serves the current attempt."""
    note = _CURRENT.get()
    if note is not None and text:
        note.request_id = text[:MAX_REQUEST_ID_CHARS]


class AttemptNotes:
    """The notes of the attempts that run.

    Args:
        spans: where spans are begun; `None`: nowhere.
        clean: takes secrets out of what a provider calls its request.
    """

    def __init__(self, spans: SpanSource | None = None, clean: Callable[[str], str] = str) -> None:
        self._clean = clean
        self._spans = spans
        self._notes: dict[tuple[CallId, int], AttemptNote] = {}

    def begin(self, start: Start) -> contextvars.Context:
        """Begin the note of an attempt; return the context that its task must run in."""
        span = self._spans.begin(start) if self._spans is not None else None
        note = self._notes[start.call, start.attempt] = AttemptNote(start, span)
        context = contextvars.copy_context()
        context.run(_CURRENT.set, note)
        return context

    def end(
        self, call: CallId, attempt: int, finish: FinishReason, usage: TokenUsage | None
    ) -> str:
        """End the note of an attempt; return the provider's request id, empty if unknown."""
        note = self._notes.pop((call, attempt), None)
        if note is None:
            return ""
        cleaned_id = self._clean(note.request_id)
        if note.span is not None:
            note.span.end(finish, usage, cleaned_id)
        return cleaned_id

    def close(self) -> None:
        """Send what is left of the spans."""
        if self._spans is not None:
            self._spans.close()
