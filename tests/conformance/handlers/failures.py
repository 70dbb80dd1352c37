"""`failure`, `classify`, `http_failure`, and the deviations that go with wording."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from trunkline_protocol.classify import (
    error_detail,
    http_error_code,
    is_context_window_exceeded,
    is_quota_exceeded,
)
from trunkline_protocol.failure import LlmError, TrunklineError, error_chain, normalize_failure
from trunkline_protocol.http_failure import http_failure

from tests.conformance.handlers.thrown import failure_map, llm_error, thrown


def run_failure(given: dict[str, Any]) -> object:
    if given["op"] == "errorChain":
        return error_chain(thrown(given["thrown"]))
    if given["op"] == "normalize":
        return failure_map(normalize_failure(thrown(given["thrown"])))
    try:
        error = llm_error(given["message"], given["code"], given.get("options", {}))
    except ValueError:
        return {"error": {"type": "Error"}}
    return {
        "name": type(error).__name__,
        "code": error.code,
        "failure": failure_map(error.failure),
        "frozen": _is_frozen(error.failure),
        "isHarnessError": isinstance(error, TrunklineError),
    }


def _is_frozen(value: object) -> bool:
    try:
        value.code = "changed"  # type: ignore[attr-defined]
    except AttributeError:
        return True
    return False


def run_classify(given: dict[str, Any]) -> object:
    if given["op"] == "classify":
        return {
            "contextWindowExceeded": is_context_window_exceeded(given["detail"]),
            "quotaExceeded": is_quota_exceeded(given["detail"]),
        }
    body = given.get("errorBody") or {}
    detail = error_detail(body.get("code"), body.get("type"), body.get("message"))
    return http_error_code(given["status"], detail)


def run_http_failure(given: dict[str, Any]) -> object:
    failure = http_failure(given["status"], given["headers"], given["body"], given["nowMs"])
    error = LlmError(failure)
    return {
        "failure": failure_map(failure),
        "code": error.code,
        "type": type(error).__name__,
        "normalized": failure_map(normalize_failure(error)),
    }


# Written without a look at the classifier: what the providers say, in their own words.
_OVERFLOWS: Final = (
    "prompt is too long",  # Anthropic
    "exceed context limit",
    "exceeds the maximum number of tokens allowed",  # Gemini
    "input is too long for requested model",  # Bedrock
    "too many input tokens",
    "input tokens exceeded",
    "number of input tokens exceeds",
    "reduce the length of the messages or completion",  # Groq
    "maximum prompt length is",  # xAI
    "is longer than the model's context length",  # SGLang
    "exceeds the maximum allowed length",
    "is longer than the maximum model length",  # vLLM
    "is too long to fit into the model",
    "exceeds the max_model_len",
    "is greater than the context length",  # LM Studio
    "when context the overflows",
    "loaded with context length of only",
    "tokens in the prompt cannot exceed",  # Cohere
    "too many tokens: size limit exceeded",
    "exceed_context_size_error",  # llama.cpp
    "context size has been exceeded",
    "exceeds the available context size",
    "input prompt is too big compared to kv size",
)
_RESETS: Final = re.compile(
    r"per[ _-](second|minute|hour)|\b[tr]p[ms]\b|per(second|minute|hour)|retry_?delay"
    r"|(retry|try again) (in|after) \d|resets? (in|at|after)",
    re.IGNORECASE,
)


def _text(given: Any) -> str:
    """Return all that a provider says in an input."""
    return json.dumps(given, ensure_ascii=False).lower()


def has_provider_overflow_wording(given: Any) -> bool:
    return any(phrase in _text(given) for phrase in _OVERFLOWS)


def has_reset_signal(given: Any) -> bool:
    """Tell whether the text, or a header, says that the limit passes by itself."""
    headers = given.get("headers", {})
    return bool(_RESETS.search(_text(given))) or any(
        name.startswith("retry-after") for name in headers
    )


def _body(given: Any) -> object:
    try:
        value, _ = json.JSONDecoder().raw_decode(given.get("body", "").lstrip("\ufeff \r\n\t"))
    except ValueError:
        return None
    return value


def has_error_elsewhere(given: Any) -> bool:
    """Tell whether a body gives its error other than as an object with a text message."""
    body = _body(given)
    if isinstance(body, list):
        return True
    if not isinstance(body, Mapping):
        return False
    error = body.get("error")
    if isinstance(error, str):
        return True
    if isinstance(error, Mapping):
        return not isinstance(error.get("message"), str)
    return bool({"message", "detail", "reason"} & set(body))


def has_delay_elsewhere(given: Any) -> bool:
    """Tell whether a delay is given other than in whole seconds or a date of `Retry-After`."""
    headers = {name.lower(): value for name, value in given.get("headers", {}).items()}
    is_decimal = re.fullmatch(r"\d+\.\d+", headers.get("retry-after", "").strip()) is not None
    others = any("ratelimit" in name or name == "retry-after-ms" for name in headers)
    return is_decimal or others or bool(_RESETS.search(_text(given)))


def is_overflow(actual: Any) -> bool:
    if isinstance(actual, Mapping):
        if "failure" in actual:
            return actual["failure"].get("code") == "CONTEXT_WINDOW_EXCEEDED"
        return actual.get("contextWindowExceeded") is True
    return actual == "CONTEXT_WINDOW_EXCEEDED"


def is_no_quota(actual: Any) -> bool:
    if isinstance(actual, Mapping):
        if "failure" in actual:
            return actual["failure"].get("code") == "RATE_LIMIT"
        return not actual.get("quotaExceeded") and not actual.get("contextWindowExceeded")
    return actual == "RATE_LIMIT"


def has_status(actual: Any) -> bool:
    return isinstance(actual, Mapping) and "status" in actual.get("failure", {})


def has_delay(actual: Any) -> bool:
    return has_status(actual) and "providerRetryAfterMs" in actual["failure"]


HANDLERS = {
    "failure": run_failure,
    "classify": run_classify,
    "http_failure": run_http_failure,
}
PREDICATES = {
    "provider_overflow_wording": has_provider_overflow_wording,
    "reset_signal": has_reset_signal,
    "error_elsewhere": has_error_elsewhere,
    "delay_elsewhere": has_delay_elsewhere,
}
RESULTS = {
    "is_overflow": is_overflow,
    "is_no_quota": is_no_quota,
    "has_status": has_status,
    "has_delay": has_delay,
}
