"""What is noted of attempts beside their chunks: the provider's request id, and a span if wanted.

The note of an attempt is a context variable of its task, so code deep in an adapter's HTTP can add
to it without being handed anything. Nothing here sees an answer or a key, or keeps a prompt, and
nothing runs per chunk; the debug switch is in `prompts`.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from trunkline_protocol.finish import FinishReason, TokenUsage
from trunkline_protocol.frames import Start
from trunkline_protocol.http_failure import request_id
from trunkline_protocol.ids import CallId
from trunkline_protocol.options import GenerateOptions

from trunkline_workers.boundary import shown_id


class AttemptSpan(Protocol):
    """A span that was begun."""

    def request(self, options: GenerateOptions) -> None:
        """Note the numbers of a request; never its text."""
        ...

    def text(self, attributes: Mapping[str, str]) -> None:
        """Note what the debug switch shows of prompt and answer."""
        ...

    def end(
        self,
        finish: FinishReason,
        usage: TokenUsage | None,
        provider_request: str,
        first_chunk_after_s: float | None,
    ) -> None:
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


class PromptSource(Protocol):
    """The debug switch (`prompts.PromptLog`)."""

    def request(self, key: tuple[CallId, int], options: GenerateOptions) -> Mapping[str, str]:
        """Write what an attempt asks; return it as attributes of a span."""
        ...

    def end(self, key: tuple[CallId, int], finish: FinishReason) -> Mapping[str, str]:
        """Write what an attempt has answered; return it as attributes of a span."""
        ...


@dataclass(slots=True, eq=False)
class AttemptNote:
    """What is known of one attempt.

    Attributes:
        prompts: the debug switch, if it is on.
        request_id: the provider's own name of its request; empty: not known (yet).
    """

    start: Start
    span: AttemptSpan | None = None
    prompts: PromptSource | None = None
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
    if note is not None and type(text) is str and text:
        note.request_id = shown_id(text)


def note_request(options: GenerateOptions) -> None:
    """Note the request of the current attempt as its adapter sees it."""
    note = _CURRENT.get()
    if note is None:
        return
    if note.span is not None:
        note.span.request(options)
    if note.prompts is not None:
        text = note.prompts.request((note.start.call, note.start.attempt), options)
        if note.span is not None:
            note.span.text(text)


class AttemptNotes:
    """The notes of the attempts that run.

    Args:
        spans: where spans are begun; `None`: nowhere.
        clean: takes secrets out of what a provider calls its request.
        prompts: the debug switch; `None`: it is off.
    """

    def __init__(
        self,
        spans: SpanSource | None = None,
        clean: Callable[[str], str] = str,
        prompts: PromptSource | None = None,
    ) -> None:
        self._clean = clean
        self._spans = spans
        self._prompts = prompts
        self._notes: dict[tuple[CallId, int], AttemptNote] = {}

    def begin(self, start: Start) -> contextvars.Context:
        """Begin the note of an attempt; return the context that its task must run in."""
        span = self._spans.begin(start) if self._spans is not None else None
        note = self._notes[start.call, start.attempt] = AttemptNote(start, span, self._prompts)
        context = contextvars.copy_context()
        context.run(_CURRENT.set, note)
        return context

    def end(
        self,
        call: CallId,
        attempt: int,
        finish: FinishReason,
        usage: TokenUsage | None,
        first_chunk_after_s: float | None = None,
    ) -> str:
        """End the note of an attempt; return the provider's request id, empty if unknown."""
        note = self._notes.pop((call, attempt), None)
        if note is None:
            return ""
        cleaned_id = self._clean(note.request_id)
        text = None if self._prompts is None else self._prompts.end((call, attempt), finish)
        if note.span is not None:
            if text is not None:
                note.span.text(text)
            note.span.end(finish, usage, cleaned_id, first_chunk_after_s)
        return cleaned_id

    def close(self) -> None:
        """Send what is left of the spans."""
        if self._spans is not None:
            self._spans.close()
