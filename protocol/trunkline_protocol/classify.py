"""Provider wording → failure code. Text is looked at here and nowhere else.

Callers join every text a provider gives (code, type, message: `error_detail`) and ask. The shared
phrases were collected from OpenAI-compatible APIs; `OVERFLOW_WORDINGS` adds, per provider, what
they say instead. Throttling is told apart first: a limit per minute passes by itself, so it is
neither an overflow nor an exhausted quota, however it is worded.
"""

from __future__ import annotations

import re
from typing import Final

from trunkline_protocol.codes import Code

# The phrases were pinned under ECMAScript rules: words are ASCII, blanks are Unicode without the
# control separators, and `.` stops at four line ends.
_BLANK: Final = r"[\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"
_JOIN: Final = _BLANK[:-1] + "_-]"
_NEAR: Final = r"[^\n\r\u2028\u2029]{0,40}"


def _pattern(*alternatives: str) -> re.Pattern[str]:
    """Compile alternatives; a space stands for blanks, `~` for one joint, `…` for a near gap."""
    text = "|".join(f"(?:{each})" for each in alternatives)
    text = text.replace(" ", f"{_BLANK}+").replace("~", _JOIN).replace("…", _NEAR)
    return re.compile(text, re.IGNORECASE | re.ASCII)


_MODEL_CONTEXT: Final = r"(?:model(?:'s)? )?context"
_SHARED_OVERFLOW: Final = _pattern(
    r"(?<![a-z0-9])context~(?:length|window)~"
    r"(?:exceed(?:ed|s)?|overflow(?:ed)?|limit~exceeded)(?![a-z0-9])",
    r"\bmax(?:imum)?(?: (?:allowed|supported))? context (?:length|window)\b",
    rf"\b(?:request|prompt|input|messages?) (?:is |are )?too (?:large|long) for (?:(?:this|the) )?"
    rf"{_MODEL_CONTEXT}(?: window)?\b",
    r"\b(?:input|prompt|request) (?:is )?too (?:long|large) for (?:this|the) model\b",
    r"\b(?:input|prompt|request|messages?)\b…\b(?:exceed(?:s|ed)?|overflows?|is larger than)\b…"
    rf"\b(?:the )?{_MODEL_CONTEXT}(?: (?:length|window))?\b",
)

# What llama.cpp's server says, also under HTTP 500 (ggml-org/llama.cpp#19774).
LLAMA_CPP_OVERFLOW: Final = _pattern(
    r"\bexceed_context_size_error\b",
    r"\bcontext size has been exceeded\b",
    r"\bexceeds the available context size\b",
    r"\binput prompt is too big compared to KV size\b",
)
OVERFLOW_WORDINGS: Final[dict[str, re.Pattern[str]]] = {
    "Anthropic": _pattern(
        r"\bprompt is too long(?:[:.(]|$| \()",
        r"\binput length and `?max_tokens`? exceed context limit\b",
    ),
    "Gemini": _pattern(r"\binput token count\b…\bexceeds the maximum number of tokens\b"),
    "Bedrock": _pattern(
        r"\binput is too long for requested model\b",
        r"\btoo many input tokens\b…\bmax input tokens\b",
        r"\binput tokens exceeded\b",
        r"\bnumber of input tokens exceeds maximum length\b",
    ),
    "Groq": _pattern(r"\breduce the length of the messages or completion\b"),
    "xAI": _pattern(r"\bmaximum prompt length is \d+ but the request contains\b"),
    "SGLang": _pattern(
        r"\binput \(\d+ tokens\) is longer than the model's context length\b",
        r"\binput length(?: \(?\d+(?: tokens)?\)?)? exceeds the maximum allowed length\b",
    ),
    "vLLM": _pattern(
        r"\bprompt \((?:total )?length \d+\) is too long\b",
        r"\bprompt \((?:total )?length \d+\) is longer than the maximum model length\b",
        r"\bprompt length \d+ exceeds the max_model_len\b",
    ),
    "LM Studio": _pattern(
        r"\btokens to keep from the initial prompt is greater than the context length\b",
        r"\bwhen context the overflows\b",
        r"\bloaded with context length of only \d+ tokens\b",
    ),
    "Cohere": _pattern(
        r"\btoo many tokens: (?:total )?number of tokens in the prompt cannot exceed\b",
        r"\btoo many tokens: size limit exceeded by \d+ tokens\b",
    ),
    "llama.cpp": LLAMA_CPP_OVERFLOW,
}

_ACCOUNT_EMPTY: Final = _pattern(
    r"\binsufficient~+(?:balance|credits?)\b",
    r"\b(?:balance|credits?)~+(?:exhausted|depleted)\b",
    r"\bout~+of~+(?:credits?|budget)\b",
)
_QUOTA_EMPTY: Final = _pattern(
    r"\binsufficient~+quota\b",
    r"\b(?:quota|usage~+limit)~+(?:exceeded|exhausted|reached)\b",
    r"\bexceed(?:ed|s)?~+(?:(?:your|the)~+)?(?:current~+)?quota\b",
)
_QUOTA_CODE: Final = _pattern(r"\binsufficient~+quota\b")
_THROTTLED: Final = _pattern(
    r"\bper~(?:second|minute|hour)\b",
    r"\b[rt]p[ms]\b",
    r"Per(?:Second|Minute|Hour)",  # Google's quota ids: GenerateRequestsPerMinutePerProject…
)
_RESETS: Final = _pattern(
    r"\b(?:retry|try again) (?:in|after) \d",
    r"\bresets? (?:in|at|after)\b",
    r"\bretry_?delay\b",
)
_RATE_LIMITED: Final = _pattern(
    r"\brate~?limit", r"\btoo many requests\b", r"\bthrottl", r"\bresource_exhausted\b"
)
# Beyond the basic plane a character counts twice in the gaps of `_NEAR`, as where they were pinned.
_ASTRAL: Final = re.compile("[\U00010000-\U0010ffff]")

_AUTH_STATUSES: Final = frozenset({401, 403})


def error_detail(*parts: object) -> str:
    """Join what a provider says, in the order code, type, message; empty parts are skipped."""
    return " ".join(str(part) for part in parts if part)


def _counted(detail: str) -> str:
    return _ASTRAL.sub("\ufffd\ufffd", detail)


def is_throttling(detail: str) -> bool:
    """Tell whether a text names a limit over time, which passes by itself."""
    return _THROTTLED.search(detail) is not None


def has_reset_signal(detail: str) -> bool:
    """Tell whether a text says when to come back, or names a limit over time."""
    return is_throttling(detail) or _RESETS.search(detail) is not None


def overflow_provider(detail: str) -> str | None:
    """Name the provider whose own wording of a context overflow a text has, if any."""
    found = (name for name, wording in OVERFLOW_WORDINGS.items() if wording.search(detail))
    return next(found, None)


def is_context_window_exceeded(detail: str) -> bool:
    """Tell whether a text says that the request does not fit into the model's context."""
    detail = _counted(detail)
    if is_throttling(detail):
        return False
    return _SHARED_OVERFLOW.search(detail) is not None or overflow_provider(detail) is not None


def is_quota_exceeded(detail: str, *, will_reset: bool = False) -> bool:
    """Tell whether a text says that an account is used up, so that waiting does not help.

    Args:
        detail: the text of the provider.
        will_reset: the response says elsewhere when to come back. Google and Azure call plain
            throttling an exceeded quota; an explicit `insufficient_quota` or an empty account
            stays final.
    """
    if is_throttling(detail):
        return False
    if _ACCOUNT_EMPTY.search(detail):
        return True
    if not _QUOTA_EMPTY.search(detail) or has_reset_signal(detail):
        return False
    return not will_reset or _QUOTA_CODE.search(detail) is not None


def http_error_code(status: int, detail: str = "", *, will_reset: bool = False) -> str:
    """Choose the failure code of a response that is not 2xx.

    Args:
        status: of the response.
        detail: every text of the body, see `error_detail`.
        will_reset: the response has a `Retry-After` or its like.
    """
    if status in _AUTH_STATUSES:
        return Code.AUTH
    if is_throttling(detail) and (status in {400, 413, 429} or status >= 500):
        return Code.RATE_LIMIT
    if status == 413:
        return Code.INVALID_REQUEST
    quota_code = _quota_code(status, detail, will_reset=will_reset)
    if quota_code is not None:
        return quota_code
    if status == 429:
        return Code.RATE_LIMIT
    if status == 400:
        return _bad_request_code(detail)
    if status >= 500:
        return _server_code(status, detail)
    return f"HTTP_{status}"


def _quota_code(status: int, detail: str, *, will_reset: bool) -> str | None:
    """Judge quota wording under a status; `None` if there is none.

    A header that says when to come back speaks of the wording under 429 only: elsewhere gateways
    send it by habit. Under 402 (Payment Required) waiting never helps, unless the text itself
    speaks of throttling.
    """
    if is_throttling(detail):
        return Code.RATE_LIMIT if status == 402 else None
    if status == 402 and (_QUOTA_EMPTY.search(detail) or _ACCOUNT_EMPTY.search(detail)):
        return Code.QUOTA
    if is_quota_exceeded(detail, will_reset=will_reset and status == 429):
        return Code.QUOTA
    has_wording = _QUOTA_EMPTY.search(detail) and (has_reset_signal(detail) or status == 429)
    return Code.RATE_LIMIT if has_wording else None


def _bad_request_code(detail: str) -> str:
    overflows = is_context_window_exceeded(detail)
    return Code.CONTEXT_WINDOW_EXCEEDED if overflows else Code.INVALID_REQUEST


def _server_code(status: int, detail: str) -> str:
    overflows = status == 500 and LLAMA_CPP_OVERFLOW.search(detail)
    return Code.CONTEXT_WINDOW_EXCEEDED if overflows else Code.SERVER


# Types of in-band errors that say more than their text; OpenAI's and Anthropic's names.
_CODE_BY_TYPE: Final[dict[str, str]] = {
    "authentication_error": Code.AUTH,
    "invalid_api_key": Code.AUTH,
    "permission_error": Code.AUTH,
    "invalid_request_error": Code.INVALID_REQUEST,
    "content_filter": Code.CONTENT_FILTER,
    "billing_error": Code.QUOTA,
    "timeout_error": Code.TIMEOUT,
}


def in_band_error_code(detail: str, *names: str) -> str:
    """Choose the failure code of an error that came inside a stream, without a status.

    Args:
        detail: every text of the error, see `error_detail`.
        names: its code and type; a known one decides if the text does not.

    Returns:
        `SERVER` where nothing is known: the provider broke off a request it had accepted.
    """
    if is_throttling(detail):
        return Code.RATE_LIMIT
    if is_quota_exceeded(detail):
        return Code.QUOTA
    if _RATE_LIMITED.search(detail):
        return Code.RATE_LIMIT
    if is_context_window_exceeded(detail):
        return Code.CONTEXT_WINDOW_EXCEEDED
    known = (_CODE_BY_TYPE.get(name) for name in names)
    return next((code for code in known if code is not None), Code.SERVER)
