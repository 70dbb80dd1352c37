"""Streams of providers as they come on the wire, with neutral content; one `Recording` per API.

The shapes are those of the providers' documentation and of recorded responses; ids, texts and
signatures are made up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trunkline_workers.testing import EMPTY, FAILURE, STALL, TEXT, TOOLS, Reply

from tests.support.event_stream import event, exception

SIGNATURE: Final = "c2lnbmVkIGJ5IG5vYm9keQ=="
ARGUMENTS: Final = '{"city":  "Oslo"}'  # two blanks: raw text, not what a JSON library would write
PLAIN_ARGUMENTS: Final = '{"city": "Oslo"}'


@dataclass(frozen=True, slots=True)
class Recording:
    """What one provider answers.

    Attributes:
        profile: of the pydantic_ai adapter.
        model: a current one that thinks.
        path: after the URL of the server, part of the base URL.
        text: the parts of an answer with thinking, text and usage.
        tools: the parts of an answer with one tool call.
        empty: the parts of a completion without content.
        error: body of a refusal with HTTP 429.
        in_band: one event that ends a begun stream in an overload, after `begun`.
        begun: parts of `text` that come before `in_band`.
        arguments: of the tool call, to the character.
        content_type: of the streams.
    """

    profile: str
    model: str
    path: str
    text: Sequence[bytes]
    tools: Sequence[bytes]
    empty: Sequence[bytes]
    error: Mapping[str, Any]
    in_band: bytes
    begun: int
    arguments: str = ARGUMENTS
    content_type: str = "text/event-stream"

    def replies(self) -> dict[str, Reply]:
        """Return the reply to each scenario of the contract."""
        kind = self.content_type
        body = json.dumps(self.error).encode()
        return {
            TEXT: Reply(self.text, content_type=kind),
            TOOLS: Reply(self.tools, content_type=kind),
            EMPTY: Reply(self.empty, content_type=kind),
            STALL: Reply(is_endless=True, content_type=kind),
            FAILURE: Reply((body,), status=429, content_type="application/json"),
        }


def named_events(*events: Mapping[str, Any]) -> list[bytes]:
    """Return events as Anthropic and OpenAI write them: with their type as name."""
    return [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]


def data_events(*events: Mapping[str, Any], end: str = "\r\n\r\n") -> list[bytes]:
    """Return events without a name."""
    return [f"data: {json.dumps(event)}{end}".encode() for event in events]


# --- Anthropic -------------------------------------------------------------------------------


def _anthropic(stop_reason: str, *blocks: Sequence[Mapping[str, Any]]) -> list[bytes]:
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 7}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 1},
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, (block, *deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop_reason, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 42}})
    return named_events(*events, {"type": "message_stop"})


_A_THINKING = (
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "thinking_delta", "thinking": "A greeting "},
    {"type": "thinking_delta", "thinking": "will do."},
    {"type": "signature_delta", "signature": SIGNATURE},
)
_A_TEXT = (
    {"type": "text", "text": ""},
    {"type": "text_delta", "text": "Hello "},
    {"type": "text_delta", "text": "there."},
)
_A_CALL = (
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
    {"type": "input_json_delta", "partial_json": '{"city":  '},
    {"type": "input_json_delta", "partial_json": '"Oslo"}'},
)
_A_OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}

ANTHROPIC: Final = Recording(
    profile="anthropic",
    model="claude-sonnet-5",
    path="",
    text=_anthropic("end_turn", _A_THINKING, _A_TEXT),
    tools=_anthropic("tool_use", _A_THINKING, _A_TEXT, _A_CALL),
    empty=_anthropic("end_turn"),
    error={
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "Number of requests has exceeded"},
    },
    in_band=named_events({"type": "error", "error": _A_OVERLOADED})[0],
    begun=8,
)

BEDROCK: Final = replace(ANTHROPIC, profile="bedrock", model="anthropic.claude-sonnet-5")

# --- Gemini ----------------------------------------------------------------------------------


def _gemini(*parts: Mapping[str, Any], finish: str = "STOP") -> list[bytes]:
    head = {"modelVersion": "gemini-3-pro-preview", "responseId": "r1"}
    usage = {
        "promptTokenCount": 20,
        "cachedContentTokenCount": 8,
        "candidatesTokenCount": 12,
        "thoughtsTokenCount": 30,
        "totalTokenCount": 62,
    }
    events: list[dict[str, Any]] = [
        {"candidates": [{"content": {"parts": [part], "role": "model"}, "index": 0}], **head}
        for part in parts
    ]
    last = {"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": finish}
    events.append({"candidates": [{**last, "index": 0}], "usageMetadata": usage, **head})
    return data_events(*events)


_G_THOUGHT = {"text": "A greeting will do.", "thought": True}
_G_TEXTS = ({"text": "Hello "}, {"text": "there."})
_G_CALL = {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}}

GEMINI: Final = Recording(
    profile="google",
    model="gemini-3-pro-preview",
    path="",
    text=_gemini(_G_THOUGHT, *_G_TEXTS),
    tools=_gemini(_G_THOUGHT, *_G_TEXTS, {**_G_CALL, "thoughtSignature": SIGNATURE}),
    empty=_gemini(),
    error={
        "error": {"code": 429, "message": "Resource exhausted.", "status": "RESOURCE_EXHAUSTED"}
    },
    in_band=data_events(
        {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    )[0],
    begun=3,
    arguments=PLAIN_ARGUMENTS,  # this API sends a map, not text
)

# --- OpenAI Responses ------------------------------------------------------------------------


def _response(**fields: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1790000000,
        "status": "in_progress",
        "model": "gpt-5",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        **fields,
    }


def _responses(*events: Mapping[str, Any]) -> list[bytes]:
    usage = {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 42,
        "output_tokens_details": {"reasoning_tokens": 30},
        "total_tokens": 62,
    }
    whole = [
        {"type": "response.created", "response": _response()},
        *events,
        {"type": "response.completed", "response": _response(status="completed", usage=usage)},
    ]
    return named_events(*({**each, "sequence_number": n} for n, each in enumerate(whole)))


def _item(kind: str, position: int, **item: Any) -> dict[str, Any]:
    return {"type": f"response.output_item.{kind}", "output_index": position, "item": item}


def _of(item: str, position: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "item_id": item, "output_index": position, **fields}


_SUMMARY = {"type": "summary_text", "text": "A greeting will do."}
_O_THINKING = (
    _item("added", 0, id="rs_1", type="reasoning", summary=[]),
    _of("rs_1", 0, "reasoning_summary_part.added", summary_index=0, part={**_SUMMARY, "text": ""}),
    _of("rs_1", 0, "reasoning_summary_text.delta", summary_index=0, delta="A greeting "),
    _of("rs_1", 0, "reasoning_summary_text.delta", summary_index=0, delta="will do."),
    _of("rs_1", 0, "reasoning_summary_text.done", summary_index=0, text=_SUMMARY["text"]),
    _of("rs_1", 0, "reasoning_summary_part.done", summary_index=0, part=_SUMMARY),
    _item("done", 0, id="rs_1", type="reasoning", summary=[_SUMMARY], encrypted_content=SIGNATURE),
)
_O_PART = {"type": "output_text", "text": "Hello there.", "annotations": []}
_O_MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant"}
_O_TEXT = (
    _item("added", 1, **_O_MESSAGE, status="in_progress", content=[]),
    _of("msg_1", 1, "content_part.added", content_index=0, part={**_O_PART, "text": ""}),
    _of("msg_1", 1, "output_text.delta", content_index=0, delta="Hello ", logprobs=[]),
    _of("msg_1", 1, "output_text.delta", content_index=0, delta="there.", logprobs=[]),
    _of("msg_1", 1, "output_text.done", content_index=0, text="Hello there.", logprobs=[]),
    _of("msg_1", 1, "content_part.done", content_index=0, part=_O_PART),
    _item("done", 1, **_O_MESSAGE, status="completed", content=[_O_PART]),
)
_O_FUNCTION = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "weather"}
_O_CALL = (
    _item("added", 2, **_O_FUNCTION, status="in_progress", arguments=""),
    _of("fc_1", 2, "function_call_arguments.delta", delta='{"city":  '),
    _of("fc_1", 2, "function_call_arguments.delta", delta='"Oslo"}'),
    _of("fc_1", 2, "function_call_arguments.done", arguments=ARGUMENTS, name="weather"),
    _item("done", 2, **_O_FUNCTION, status="completed", arguments=ARGUMENTS),
)
_O_FAILED = {"code": "server_error", "message": "The server had an error."}

RESPONSES: Final = Recording(
    profile="openai-responses",
    model="gpt-5",
    path="/v1",
    text=_responses(*_O_THINKING, *_O_TEXT),
    tools=_responses(*_O_THINKING, *_O_TEXT, *_O_CALL),
    empty=_responses(),
    error={"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit"}},
    in_band=named_events(
        {
            "type": "response.failed",
            "sequence_number": 99,
            "response": _response(status="failed", error=_O_FAILED),
        }
    )[0],
    begun=11,
)

XAI: Final = replace(RESPONSES, profile="xai", model="grok-4")

# --- Chat completions, as Mistral and Groq write them ----------------------------------------


def _chat(model: str, *deltas: Mapping[str, Any], finish: str = "stop") -> list[bytes]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1790000000, "model": model}
    choices = [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    choices += [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    events: list[dict[str, Any]] = [{**head, "choices": [choice]} for choice in choices]
    usage = {"prompt_tokens": 20, "completion_tokens": 42, "total_tokens": 62}
    last = {"index": 0, "delta": {"content": ""}, "finish_reason": finish}
    events.append({**head, "choices": [last], "usage": usage, "x_groq": {"usage": usage}})
    return [*data_events(*events, end="\n\n"), b"data: [DONE]\n\n"]


def _chat_recording(profile: str, model: str, path: str) -> Recording:
    texts = ({"content": "Hello "}, {"content": "there."})
    function = {"name": "weather", "arguments": ARGUMENTS}
    call = {"index": 0, "id": "call00001", "type": "function", "function": function}
    return Recording(
        profile=profile,
        model=model,
        path=path,
        text=_chat(model, *texts),
        tools=_chat(model, *texts, {"tool_calls": [call]}, finish="tool_calls"),
        empty=_chat(model),
        error={"error": {"message": "Rate limit reached", "type": "requests", "code": "1300"}},
        in_band=data_events({"error": {"message": "Overloaded", "code": 503}}, end="\n\n")[0],
        begun=3,
    )


def _openrouter() -> Sequence[bytes]:
    """Return an answer with what OpenRouter wants back: signed thinking, data beside a call."""
    detail = {"type": "reasoning.text", "index": 0, "text": "A greeting will do."}
    signed = {"type": "reasoning.text", "index": 0, "signature": SIGNATURE}
    function = {"name": "weather", "arguments": ARGUMENTS}
    extra = {"google": {"thought_signature": SIGNATURE}}
    call = {"index": 0, "id": "c1", "type": "function", "function": function}
    return _chat(
        "some/model",
        {"reasoning_details": [detail]},
        {"reasoning_details": [signed]},
        {"content": "Hello there."},
        {"tool_calls": [{**call, "extra_content": extra}]},
        finish="tool_calls",
    )


OPENROUTER_TOOLS: Final = _openrouter()
MISTRAL: Final = _chat_recording("mistral", "mistral-large-latest", "")
GROQ: Final = _chat_recording("groq", "llama-3.3-70b-versatile", "")

# --- Bedrock's Converse ----------------------------------------------------------------------


def _converse(stop_reason: str, *blocks: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return the frames of an answer; a block is a start, which may be empty, and its deltas."""
    frames = [event("messageStart", role="assistant", p="abc")]
    for index, (start, *deltas) in enumerate(blocks):
        at = {"contentBlockIndex": index}
        if start:
            frames.append(event("contentBlockStart", **at, start=start))
        frames += [event("contentBlockDelta", **at, delta=delta, p="ab") for delta in deltas]
        frames.append(event("contentBlockStop", **at))
    counts = {"inputTokens": 10, "outputTokens": 42, "totalTokens": 62}
    cached = {"cacheReadInputTokens": 7, "cacheWriteInputTokens": 3}
    frames.append(event("messageStop", stopReason=stop_reason))
    return [*frames, event("metadata", usage={**counts, **cached}, metrics={"latencyMs": 100})]


_C_THINKING = (
    {},
    {"reasoningContent": {"text": "A greeting "}},
    {"reasoningContent": {"text": "will do."}},
    {"reasoningContent": {"signature": SIGNATURE}},
)
_C_TEXT = ({}, {"text": "Hello "}, {"text": "there."})
_C_CALL = (
    {"toolUse": {"toolUseId": "tooluse_1", "name": "weather"}},
    {"toolUse": {"input": '{"city":  '}},
    {"toolUse": {"input": '"Oslo"}'}},
)

CONVERSE: Final = Recording(
    profile="bedrock-converse",
    model="us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    path="",
    text=_converse("end_turn", _C_THINKING, _C_TEXT),
    tools=_converse("tool_use", _C_THINKING, _C_TEXT, _C_CALL),
    empty=_converse("end_turn"),
    error={"message": "Too many requests, please wait before trying again."},
    in_band=exception("serviceUnavailableException", "The service is not available."),
    begun=7,
    content_type="application/vnd.amazon.eventstream",
)

RECORDINGS: Final = {
    each.profile: each
    for each in (ANTHROPIC, BEDROCK, CONVERSE, GEMINI, RESPONSES, XAI, MISTRAL, GROQ)
}
