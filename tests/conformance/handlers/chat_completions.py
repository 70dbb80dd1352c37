"""`translate`, `sse`, `pipeline`, `serialize`: the chat-completions adapter as DeepSeek's.

The predicates name the kinds of input for which the vectors' "Do better" list wins.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.chunks import StreamChunk
from trunkline_protocol.failure import LlmError
from trunkline_protocol.http_failure import in_band_failure
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.adapters.chat_completions.profiles import PROFILES
from trunkline_workers.adapters.chat_completions.serialize import RequestDefaults, build_body
from trunkline_workers.adapters.chat_completions.translate import DONE, Translator
from trunkline_workers.sse import SseDecoder

PROFILE = PROFILES["deepseek"]
CLOSED = {"code": "STREAM_CLOSED", "type": "LlmError"}


def run_translate(given: list[str]) -> object:
    translator = Translator(PROFILE.response, in_band_failure)
    chunks: list[StreamChunk] = []
    for payload in given:  # one read each
        chunks += translator.feed([payload.encode()])
    chunks += [] if translator.is_done else translator.end()
    shown = [chunk.to_dict() for chunk in chunks]
    if translator.failure is None:
        return shown
    return {"chunksBeforeError": shown, "error": _error(translator)}


def run_sse(given: dict[str, Any]) -> object:
    comments: list[str] = []
    decoder = SseDecoder(lambda comment: comments.append(comment.decode(errors="replace")))
    payloads: list[str] = []
    for data in _reads(given):
        for payload in decoder.feed(data):
            payloads.append(payload.decode(errors="replace"))
            if payload == DONE:
                result: dict[str, object] = {"payloads": payloads}
                # A comment after the end may or may not have been read, so then none are compared.
                return result if _has_late_comment(given) else {**result, "comments": comments}
    return {"payloads": payloads, "error": CLOSED, "comments": comments}


def run_pipeline(given: dict[str, Any]) -> object:
    decoder = SseDecoder()
    translator = Translator(PROFILE.response, in_band_failure)
    assembler = BlockAssembler()
    chunks: list[StreamChunk] = []
    for data in _reads(given):
        if not translator.is_done:
            chunks += translator.feed(decoder.feed(data))
    if not translator.is_done:
        chunks += translator.end(decoder.finish(), decoder.stray)
    for chunk in chunks:
        assembler.push(chunk)
    shown = [chunk.to_dict() for chunk in chunks]
    interrupted = [block.to_dict() for block in assembler.interrupted_blocks()]
    if translator.failure is not None:
        error = _error(translator)
        return {"chunksBeforeError": shown, "error": error, "interruptedBlocks": interrupted}
    usage = assembler.usage
    return {
        "chunks": shown,
        "blocks": [block.to_dict() for block in assembler.blocks()],
        "usage": None if usage is None else usage.to_dict(),
        "finish": assembler.finish.to_dict(),
        "interruptedBlocks": interrupted,
    }


def run_serialize(given: dict[str, Any]) -> object:
    defaults = given.get("defaults") or {}
    try:
        body = build_body(
            GenerateOptions.from_dict(given["options"]),
            PROFILE.request,
            RequestDefaults(
                reasoning_effort=defaults.get("reasoningEffort"), thinking=defaults.get("thinking")
            ),
        )
    except LlmError as exc:
        return {"error": {"code": exc.code, "type": type(exc).__name__}}
    return {"body": json.loads(json.dumps(body))}


def _error(translator: Translator) -> dict[str, object]:
    assert translator.failure is not None
    return {"code": translator.failure.code, "type": "LlmError"}


def _reads(given: dict[str, Any]) -> list[bytes]:
    return [base64.b64decode(data) for data in given["chunksBase64"]]


def _has_late_comment(given: dict[str, Any]) -> bool:
    return re.search(rb"\[DONE\].*[\r\n]:", b"".join(_reads(given)), re.DOTALL) is not None


# --- inputs for which the list wins -----------------------------------------------------------


def _payloads(given: Any) -> list[str]:
    """Return the payload texts of a translate, sse or pipeline input."""
    if isinstance(given, list):
        return given
    decoder = SseDecoder()
    return [
        payload.decode(errors="replace") for data in _reads(given) for payload in decoder.feed(data)
    ]


def _values(given: Any) -> Iterator[Any]:
    """Yield the payloads up to the end that are JSON."""
    for payload in _payloads(given):
        if payload == DONE.decode():
            return
        try:
            yield json.loads(payload)
        except ValueError:
            return  # the stream ends here


def _choices(given: Any) -> Iterator[dict[str, Any]]:
    for value in _values(given):
        choices = value.get("choices") if isinstance(value, dict) else None
        yield from (each for each in choices or () if isinstance(each, dict))


def _calls(given: Any) -> Iterator[dict[str, Any]]:
    for choice in _choices(given):
        calls = (choice.get("delta") or {}).get("tool_calls")
        yield from (call for call in calls or () if isinstance(call, dict))


def blank_identity(given: Any) -> bool:
    """Tell whether a later piece of a tool call has a null or empty id or name."""
    seen: set[object] = set()
    for call in _calls(given):
        fields = [call.get("id", "-"), (call.get("function") or {}).get("name", "-")]
        if call.get("index") in seen and any(each in (None, "") for each in fields):
            return True
        seen.add(call.get("index"))
    return False


def unindexed_calls(given: Any) -> bool:
    return any(call.get("index") is None for call in _calls(given))


def in_band_error(given: Any) -> bool:
    return any(isinstance(value, dict) and bool(value.get("error")) for value in _values(given))


def blank_finish_reason(given: Any) -> bool:
    return any(choice.get("finish_reason") == "" for choice in _choices(given))


def weak_usage(given: Any) -> bool:
    """Tell whether a usage is zero, has null counts, or more cached than prompt tokens."""
    usages = (value.get("usage") for value in _values(given) if isinstance(value, dict))
    return any(_is_weak(usage) for usage in usages if isinstance(usage, dict))


def _is_weak(usage: dict[str, Any]) -> bool:
    prompt_details = usage.get("prompt_tokens_details") or {}
    details = [prompt_details, usage.get("completion_tokens_details") or {}]
    counts = [*usage.values(), *(count for each in details for count in each.values())]
    cached = prompt_details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0
    has_null = any(count is None for count in counts)
    return has_null or not any(usage.values()) or cached > (usage.get("prompt_tokens") or 0)


def wrong_shape(given: Any) -> bool:
    for value in _values(given):
        if not isinstance(value, dict):
            return True
        choices = value.get("choices")
        if choices is not None and not isinstance(choices, list):
            return True
        if any(not isinstance(each, dict) for each in choices or ()):
            return True
    return False


def empty_data(given: Any) -> bool:
    return "" in _payloads(given)


def finished_without_done(given: Any) -> bool:
    has_reason = any(choice.get("finish_reason") for choice in _choices(given))
    return has_reason and DONE.decode() not in _payloads(given)


def ends_with_cr(given: dict[str, Any]) -> bool:
    return b"".join(_reads(given)).endswith(b"\r")


def results_beside_text(given: dict[str, Any]) -> bool:
    """Tell whether a user message has tool results and text."""
    for message in given["options"]["messages"]:
        kinds = {block["type"] for block in message["content"]}
        if message["role"] == "user" and {"text", "tool-result"} <= kinds:
            return True
    return False


def nested_result(given: dict[str, Any]) -> bool:
    return any(
        inner["type"] == "tool-result"
        for message in given["options"]["messages"]
        for block in message["content"]
        if block["type"] == "tool-result"
        for inner in block["content"]
    )


HANDLERS: dict[str, Callable[[Any], object]] = {
    "translate": run_translate,
    "sse": run_sse,
    "pipeline": run_pipeline,
    "serialize": run_serialize,
}
_RULES: Sequence[Callable[[Any], bool]] = (
    blank_identity,
    unindexed_calls,
    in_band_error,
    blank_finish_reason,
    weak_usage,
    wrong_shape,
    empty_data,
    finished_without_done,
    ends_with_cr,
    results_beside_text,
    nested_result,
)
PREDICATES = {rule.__name__: rule for rule in _RULES}
