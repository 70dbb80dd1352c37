"""Payloads of a chat-completions stream in, stream chunks out; pure.

One `Translator` reads one response. It never raises for what a provider sends: a response that
can't go on sets `failure`, and the chunks made before it stand. Text and reasoning are one block
each, however they interleave; blocks end together at the end, as a provider may come back to any
of them. This file knows neither HTTP nor SSE framing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, cast

from trunkline_protocol.chunks import Finish, FinishReason, ReplayEnvelope, StreamChunk, Usage
from trunkline_protocol.failure import Code, LlmFailure

from trunkline_workers.adapters.chat_completions.blocks import CallState, OpenBlocks
from trunkline_workers.adapters.chat_completions.details import ReasoningDetails
from trunkline_workers.adapters.chat_completions.profiles import ResponseRules
from trunkline_workers.adapters.chat_completions.repair import DONE, is_whole, taken_apart
from trunkline_workers.adapters.chat_completions.think import ThinkSplitter
from trunkline_workers.adapters.chat_completions.usage import UsageReader
from trunkline_workers.adapters.chat_completions.wire import (
    Choice,
    Chunk,
    Delta,
    MalformedPayloadError,
    ToolCall,
    WholeArguments,
    decode,
    decode_untyped,
    find_error,
)
from trunkline_workers.sse import ErrorEvent, KeepAliveEvent

REPLAY_VERSION: Final = 1

# The API's own words. Everything else is an error of that name.
_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {"stop": "stop", "length": "max-tokens", "tool_calls": "tool-calls"}
)
# Words seen from providers and gateways that speak the API loosely.
_LENIENT_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("stop", "eos", "eos_token", "end", "end_turn", "stop_sequence"), "stop"),
        **dict.fromkeys(("complete", "completed", "finished", "done"), "stop"),
        **dict.fromkeys(("length", "max_tokens", "model_length", "max_length"), "max-tokens"),
        **dict.fromkeys(("max_output_tokens", "token_limit"), "max-tokens"),
        **dict.fromkeys(("tool_calls", "tool_call", "tool-calls", "tool_use"), "tool-calls"),
        **dict.fromkeys(("function_call", "function-call"), "tool-calls"),
    }
)
_LENIENT_CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("content-filter", "safety", "sensitive"), Code.CONTENT_FILTER),
        **dict.fromkeys(("prohibited_content", "blocklist", "spii"), Code.CONTENT_FILTER),
        **dict.fromkeys(("recitation", "refusal", "guardrail"), Code.CONTENT_FILTER),
        **dict.fromkeys(("error", "network_error", "abort", "aborted"), Code.SERVER),
    }
)
_NO_REASONS: Final = frozenset({"null", "none"})  # gateways that print what they have not


class Translator:
    """The reader of one response.

    Attributes:
        is_done: a terminal finish was emitted or `failure` is set; nothing more is read.
        failure: why the response can't go on, to be raised after the chunks.
        finish_reason: the provider's own word, once it has said one.
        moves: payloads so far that brought content; a keep-alive adds nothing.
        shares_finish: the finish reason came in a payload that brought content too.
    """

    def __init__(
        self,
        rules: ResponseRules,
        classify: Callable[[object], LlmFailure],
        *,
        max_tokens: int | None = None,
        context_window: int | None = None,
        id_prefix: str = "call_",
    ) -> None:
        """Start before the first payload.

        Args:
            rules: of the provider.
            classify: turns what the provider calls an error into a failure.
            max_tokens: output limit of the request, if it had one.
            context_window: of the model in tokens, if known.
            id_prefix: of the ids given to tool calls for which the provider sent none; with a
                random part they are unique in a conversation.
        """
        self.is_done = False
        self.failure: LlmFailure | None = None
        self.finish_reason: str | None = None
        self.moves = 0
        self.shares_finish = False
        self._moves_at_finish = -1
        self._rules = rules
        self._classify = classify
        self._id_prefix = id_prefix
        self._max_tokens = max_tokens
        self._context_window = context_window
        self._blocks = OpenBlocks()
        self._usage = UsageReader()
        self._details = ReasoningDetails()
        self._by_index: dict[int, CallState] = {}
        inline = rules.inline_thinking
        self._think = None if inline == "off" else ThinkSplitter(is_open=inline == "prefilled")

    @property
    def is_finishing(self) -> bool:
        """Return whether the provider has said how the answer ends, and sent no content since.

        Some servers say `stop` in every payload. Content behind it shows that it means nothing.
        """
        return self.finish_reason is not None and self.moves == self._moves_at_finish

    # --- entry points -------------------------------------------------------------------------

    def feed(self, payloads: Iterable[bytes]) -> list[StreamChunk]:
        """Take the payloads of one read and return the chunks they make."""
        return self._feed(payloads, lenient=self._rules.lenient)

    def _feed(self, payloads: Iterable[bytes], *, lenient: bool) -> list[StreamChunk]:
        out: list[StreamChunk] = []
        plain = self._think is None
        for payload in payloads:
            if self.is_done:
                break
            if payload == DONE:
                self._finish(out)
                break
            if not payload:
                continue
            try:
                chunk = decode(payload, lenient=lenient)
            except MalformedPayloadError as exc:
                self._on_malformed(payload, exc, out, lenient=lenient)
                continue
            if plain and (text := _only_text(chunk)) is not None:
                self.moves += 1
                self._blocks.add_text(text, out)
            else:
                if isinstance(payload, ErrorEvent) and not chunk.error:
                    chunk.error = decode_untyped(payload, lenient=lenient)
                self._take(chunk, out)
        return out

    def _on_malformed(
        self, payload: bytes, exc: MalformedPayloadError, out: list[StreamChunk], *, lenient: bool
    ) -> None:
        """Take a payload that is no chunk: an error in words, or events that ran together."""
        if isinstance(payload, ErrorEvent):
            self._fail(self._classify(payload.decode(errors="replace")), out)
        elif lenient and isinstance(payload, KeepAliveEvent):
            pass  # whatever a server says in it, nothing is meant
        elif lenient and (parts := taken_apart(payload)):
            out += self._feed(parts, lenient=True)
        else:
            self._fail(LlmFailure(str(exc), Code.MALFORMED_RESPONSE), out)

    def end(self, pending: bytes | None = None, stray: bytes = b"") -> list[StreamChunk]:
        """Take the end of the stream without `[DONE]`.

        Args:
            pending: an event that lacks its blank line; used if it is whole by its own framing.
            stray: lines that were no field of an event, where some providers put an error.

        Returns:
            A normal end if the provider has given a finish reason; else `failure` is set, to the
            error found in `stray` or to `STREAM_CLOSED`.
        """
        out: list[StreamChunk] = []
        if pending and not self.is_done and is_whole(pending):
            out = self.feed([pending])
        if self.is_done:
            return out
        if self.finish_reason is not None:
            self._finish(out)
        elif (error := _stray_error(stray)) is not None:
            self._fail(self._classify(error), out)
        else:
            text = "the stream ended before the provider finished its answer"
            self._fail(LlmFailure(text, Code.STREAM_CLOSED), out)
        return out

    def whole(self, body: bytes) -> list[StreamChunk]:
        """Take a JSON answer that came instead of a stream."""
        out: list[StreamChunk] = []
        try:
            self._take(decode(body, lenient=True), out)
        except MalformedPayloadError as exc:
            self._fail(LlmFailure(str(exc), Code.MALFORMED_RESPONSE), out)
        if self.is_done:
            return out
        if not self._blocks and self.finish_reason is None:
            text = "the provider answered with JSON that is no completion"
            self._fail(LlmFailure(text, Code.MALFORMED_RESPONSE), out)
        else:
            self._finish(out)
        return out

    def fail(self, failure: LlmFailure) -> list[StreamChunk]:
        """Take a failure of the transport; after a finish reason that holds it is a normal end.

        One that came together with content may stand in every payload, so it does not hold here.
        """
        if self.is_done:
            return []
        if self.is_finishing and not self.shares_finish:
            return self.end()
        out: list[StreamChunk] = []
        self._fail(failure, out)
        return out

    # --- one payload --------------------------------------------------------------------------

    def _take(self, chunk: Chunk, out: list[StreamChunk]) -> None:
        if chunk.usage:
            self._usage.take(chunk.usage)
        if isinstance(chunk.x_groq, dict):
            self._take_groq(cast("dict[str, object]", chunk.x_groq), out)
        error = chunk.error
        if not error and chunk.choices:
            error = next((choice.error for choice in chunk.choices if choice.error), None)
        if error:
            self._fail(self._classify(error), out)
            return
        for choice in chunk.choices or ():
            self._take_choice(choice, out)

    def _take_groq(self, extra: dict[str, object], out: list[StreamChunk]) -> None:
        """Take Groq's own object, which holds the usage and, mid-stream, an error."""
        usage, error = extra.get("usage"), extra.get("error")
        if isinstance(usage, dict):
            self._usage.take(cast("dict[str, object]", usage))
        if error and not self.is_done:
            self._fail(self._classify({"error": error}), out)

    def _take_choice(self, choice: Choice, out: list[StreamChunk]) -> None:
        if self.is_done:
            return
        delta, before = choice.delta, self.moves
        # Some servers say the whole answer again behind its pieces.
        if delta is not None and not (choice.is_whole and self._blocks):
            self._take_delta(delta, out)
        if choice.finish_reason and not self._is_no_reason(choice.finish_reason):
            if self.finish_reason is None:
                self.shares_finish = self.moves != before
                self.moves += 1
                self._moves_at_finish = self.moves
            self.finish_reason = choice.finish_reason
        if choice.usage:
            self._usage.take(choice.usage)

    def _is_no_reason(self, word: str) -> bool:
        return self._rules.lenient and word.lower() in _NO_REASONS

    def _take_delta(self, delta: Delta, out: list[StreamChunk]) -> None:
        before = len(out)
        reasoning = delta.reasoning_content
        if self._rules.lenient:
            reasoning = reasoning or delta.reasoning or delta.reasoning_text
            if delta.reasoning_details:
                text = self._details.take(delta.reasoning_details)
                reasoning = reasoning or text
        if reasoning:
            self._blocks.add_reasoning(reasoning, out)
        if delta.content:
            self._take_content(delta.content, out)
        if delta.refusal and self._rules.lenient:
            self._blocks.add_text(delta.refusal, out)
        for call in delta.tool_calls or ():
            self._take_call(call, out)
        if delta.usage:
            self._usage.take(delta.usage)
        if len(out) > before:
            self.moves += 1

    def _take_content(self, content: str, out: list[StreamChunk]) -> None:
        if self._think is None:
            self._blocks.add_text(content, out)
            return
        for is_reasoning, text in self._think.feed(content):
            add = self._blocks.add_reasoning if is_reasoning else self._blocks.add_text
            add(text, out)

    # --- tool calls ---------------------------------------------------------------------------

    def _take_call(self, piece: ToolCall, out: list[StreamChunk]) -> None:
        if self.is_done:
            return
        function = piece.function
        name = function.name if function is not None else None
        call = self._find_call(piece.index, piece.id, name)
        if call is not None and self._begins_another(call, piece):
            call = None
        if call is None:
            call = self._blocks.open_call(out)
            if piece.index is not None:
                self._by_index[piece.index] = call
        if piece.id:
            call.id = piece.id
        if name:
            call.name = name
        if piece.extra_content is not None:
            call.extra = piece.extra_content
        arguments = (function.arguments if function is not None else None) or ""
        if isinstance(arguments, WholeArguments):
            self._take_whole(call, str(arguments), out)
        elif not (self._rules.repairs_tool_calls and call.has_whole(arguments)):
            out.append(call.delta(arguments))

    def _find_call(
        self, index: int | None, call_id: str | None, name: str | None
    ) -> CallState | None:
        """Find the call that a piece continues; `None`: it begins a new one."""
        known = self._blocks.calls
        if index is not None:
            call = self._by_index.get(index)
            if call is None and not self._rules.repairs_tool_calls:
                return None
            if call is not None:
                is_other = bool(call_id and name and call.id and call_id != call.id)
                if not (is_other and self._rules.repairs_tool_calls):
                    return call
                return next((other for other in known if other.id == call_id), None)
        if call_id:
            return self._by_id(index, call_id, name)
        if name or not known:
            return None
        # A nameless piece without a known index continues the call before it, if that one has no
        # index either; with an unknown index it is a call of its own, however bare.
        last = known[-1]
        is_indexed = any(call is last for call in self._by_index.values())
        return last if index is None or not is_indexed else None

    def _begins_another(self, call: CallState, piece: ToolCall) -> bool:
        """Tell whether a named piece is a second call under the index of one that is complete.

        Gemini sends every call whole, with index 0 and no id. Whoever only repeats the name sends
        pieces, behind which the call is not complete; an exact repeat is none of either.
        """
        function = piece.function
        if not self._rules.repairs_tool_calls or piece.id or function is None or not function.name:
            return False
        text = function.arguments or ""
        return text.startswith("{") and call.is_whole() and call.arguments() != text

    def _by_id(self, index: int | None, call_id: str, name: str | None) -> CallState | None:
        """Find a call by its id; under a new index, a name makes it another call."""
        if index is not None and name:
            return None
        return next((call for call in self._blocks.calls if call.id == call_id), None)

    def _take_whole(self, call: CallState, arguments: str, out: list[StreamChunk]) -> None:
        """Take arguments that are a JSON value: once, and never a second value."""
        if call.whole == arguments:
            return
        if call.whole is not None or call.arguments().strip():
            text = f"tool call {call.id!r} has two different sets of arguments"
            self._fail(LlmFailure(text, Code.MALFORMED_RESPONSE), out)
            return
        call.whole = arguments
        out.append(call.delta(arguments))

    # --- the end ------------------------------------------------------------------------------

    def _fail(self, failure: LlmFailure, out: list[StreamChunk]) -> None:
        """End without a finish; blocks stay open, since they are not complete."""
        if self._rules.lenient:
            self._add_usage(out)
        self.failure = failure
        self.is_done = True

    def _add_usage(self, out: list[StreamChunk]) -> None:
        usage = self._usage.result()
        if usage is not None:
            out.append(Usage(usage))

    def _finish(self, out: list[StreamChunk]) -> None:
        """End with a terminal finish."""
        if self._think is not None:
            for is_reasoning, text in self._think.finish():
                add = self._blocks.add_reasoning if is_reasoning else self._blocks.add_text
                add(text, out)
        reason = self._reason()
        broken: CallState | None = None
        if self._rules.repairs_tool_calls:
            if reason.failure is None:
                self._blocks.complete_calls(self._id_prefix, out)
            broken = self._blocks.broken_call()
            reason = self._repaired(reason, broken)
        shown_as_whole = reason.kind == "max-tokens"
        self._blocks.end_all(out, None if shown_as_whole else broken)
        self._add_usage(out)
        replay = self._replay() if reason.failure is None else None
        out.append(Finish(self._not_empty(reason), replay))
        self.is_done = True

    def _reason(self) -> FinishReason:
        """Translate the provider's finish reason; none at all is a stop."""
        word = self.finish_reason or "stop"
        kinds, code = _KINDS, word.upper()
        if self._rules.lenient:
            word = word.lower()
            kinds, code = _LENIENT_KINDS, _LENIENT_CODES.get(word, code)
        kind = kinds.get(word)
        if kind is not None:
            return FinishReason(kind)
        text = f"the provider ended the response: {self.finish_reason}"
        return FinishReason("error", LlmFailure(text, code))

    def _repaired(self, reason: FinishReason, broken: CallState | None) -> FinishReason:
        """Correct a reason that contradicts the calls that came."""
        if reason.kind not in {"stop", "tool-calls"}:
            return reason
        if broken is None:
            return FinishReason("tool-calls" if self._blocks.calls else "stop")
        if self._reached_limit():
            return FinishReason("max-tokens")
        text = f"the arguments of tool call {broken.id!r} are no JSON"
        return FinishReason("error", LlmFailure(text, Code.MALFORMED_RESPONSE))

    def _reached_limit(self) -> bool:
        usage, limit = self._usage.result(), self._max_tokens
        return usage is not None and limit is not None and usage.output_tokens >= limit

    def _not_empty(self, reason: FinishReason) -> FinishReason:
        """Turn a stop without any block into a failure that says so."""
        if reason.kind != "stop" or self._blocks:
            return reason
        usage, window = self._usage.result(), self._context_window
        if usage is not None and window is not None:
            asked = usage.input_tokens + (usage.cache_read_tokens or 0)
            if asked + (usage.cache_write_tokens or 0) > window:
                text = f"the prompt has {asked} tokens, the model's context window {window}"
                return FinishReason("error", LlmFailure(text, Code.CONTEXT_WINDOW_EXCEEDED))
        text = "the provider ended the response without any content"
        return FinishReason("error", LlmFailure(text, Code.EMPTY_RESPONSE))

    def _replay(self) -> ReplayEnvelope | None:
        """Return what has to go back with this answer, or `None` if nothing has."""
        details, extras = self._details.result(), self._blocks.extras()
        if not details and extras is None:
            return None
        response: dict[str, object] = {"v": REPLAY_VERSION}
        if details:
            response["reasoningDetails"] = details
        return ReplayEnvelope(response, extras)


def _only_text(chunk: Chunk) -> str | None:
    """Return the text of a chunk that brings nothing else: nearly all chunks."""
    choices = chunk.choices
    if not choices or len(choices) != 1 or chunk.usage is not None or chunk.error is not None:
        return None
    choice = choices[0]
    delta = choice.delta
    if delta is None or choice.finish_reason is not None or not delta.content:
        return None
    if (
        delta.reasoning_content is not None
        or delta.reasoning is not None
        or delta.tool_calls is not None
        or delta.reasoning_text is not None
        or delta.refusal is not None
        or delta.reasoning_details is not None
        or delta.usage is not None
        or choice.usage is not None
        or choice.error is not None
        or chunk.x_groq is not None
    ):
        return None
    return delta.content


_LINES: Final = re.compile(rb"[\r\n]+")


def _stray_error(stray: bytes) -> object:
    """Return the error that lines outside of events hold, or `None`."""
    for candidate in (stray, *_LINES.split(stray)):
        try:
            value = decode_untyped(candidate)
        except MalformedPayloadError:
            continue
        if isinstance(value, list) and value:  # Gemini wraps it
            value = cast("list[object]", value)[0]
        if isinstance(value, dict):
            error = find_error(cast("dict[str, object]", value))
            if error is not None:
                return error
    return None
