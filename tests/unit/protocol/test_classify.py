"""Provider wording → code."""

from __future__ import annotations

import pytest
from trunkline_protocol.classify import (
    OVERFLOW_WORDINGS,
    error_detail,
    has_reset_signal,
    http_error_code,
    in_band_error_code,
    is_context_window_exceeded,
    is_quota_exceeded,
    overflow_provider,
)
from trunkline_protocol.codes import Code

# As seen in the field, one or more per provider.
OVERFLOWS = {
    "Anthropic": [
        "prompt is too long: 1284668 tokens > 1000000 maximum",
        "invalid_request_error prompt is too long",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    ],
    "Gemini": [
        "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).",
        "The input token count exceeds the maximum number of tokens allowed 30720.",
    ],
    "Bedrock": [
        "ValidationException Input is too long for requested model.",
        "Too many input tokens. Max input tokens: 4096, request input token count: 5007",
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length",
    ],
    "Groq": ["Please reduce the length of the messages or completion."],
    "xAI": ["This model's maximum prompt length is 131072 but the request contains 153226 tokens."],
    "SGLang": [
        "The input (81 tokens) is longer than the model's context length (64 tokens).",
        "Input length (90 tokens) exceeds the maximum allowed length (80 tokens).",
    ],
    "vLLM": [
        "The decoder prompt (length 33000) is longer than the maximum model length of 32768.",
        "The prompt (total length 50000) is too long to fit into the model (context length 32768).",
        "The engine prompt length 9000 exceeds the max_model_len 8192. Please reduce prompt.",
    ],
    "LM Studio": [
        "The number of tokens to keep from the initial prompt is greater than the context length.",
        "Trying to keep the first 6000 tokens when context the overflows. However, the model is "
        "loaded with context length of only 4096 tokens, which is not enough.",
    ],
    "Cohere": [
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5201",
        "too many tokens: size limit exceeded by 11326 tokens. Try using shorter or fewer inputs",
    ],
    "llama.cpp": [
        "400 exceed_context_size_error",
        "the request exceeds the available context size, try increasing it",
        "Context size has been exceeded.",
        "Input prompt is too big compared to KV size.",
    ],
}
SHARED_OVERFLOWS = [
    "context_length_exceeded",
    "context window exceeds limit",
    "This model's maximum context length is 4097 tokens.",
    "prompt is too long for the context window",
    "prompt too large for the model",
    "Your input exceeds the context window of this model.",
    "prompt too long; exceeded max context length by 1200 tokens",
]
NO_OVERFLOWS = [
    "",
    "context window size must be positive",
    "Request Entity Too Large",
    "request_too_large Request exceeds the maximum size",
    "max_tokens is too large: 9000. This model supports at most 4096 completion tokens.",
    "Too many tokens, please wait before trying again.",
]
THROTTLES = [
    "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 9000, "
    "please reduce the length of the messages or completion",
    "Quota exceeded for quota metric 'Generate requests' and limit 'requests per minute'",
    "GenerateRequestsPerMinutePerProjectPerModel quota exceeded, prompt is too long: 5 > 4",
    "insufficient_quota: 100 requests per second allowed",
    "balance exhausted: 10 RPM",
]
QUOTAS = [
    "insufficient_quota You exceeded your current quota, please check your plan",
    "Insufficient Balance",
    "credits depleted",
    "Key is out of budget",
    "usage limit reached",
]


def test_every_provider_of_the_table_has_an_example() -> None:
    assert OVERFLOWS.keys() == OVERFLOW_WORDINGS.keys()


@pytest.mark.parametrize("provider", OVERFLOWS)
def test_overflow_in_the_words_of_each_provider(provider: str) -> None:
    for text in OVERFLOWS[provider]:
        assert overflow_provider(text) == provider, text
        assert is_context_window_exceeded(f"x {text}")
        assert http_error_code(400, text) == Code.CONTEXT_WINDOW_EXCEEDED
        assert not is_quota_exceeded(text)


@pytest.mark.parametrize("text", SHARED_OVERFLOWS)
def test_overflow_in_shared_words(text: str) -> None:
    assert overflow_provider(text) is None
    assert is_context_window_exceeded(text)


@pytest.mark.parametrize("text", NO_OVERFLOWS)
def test_what_is_no_overflow(text: str) -> None:
    assert not is_context_window_exceeded(text)


@pytest.mark.parametrize("text", THROTTLES)
def test_throttling_is_neither_overflow_nor_quota(text: str) -> None:
    assert not is_context_window_exceeded(text)
    assert not is_quota_exceeded(text)
    assert has_reset_signal(text)
    for status in (400, 413, 429, 503):
        assert http_error_code(status, text) == Code.RATE_LIMIT
    assert in_band_error_code(text) == Code.RATE_LIMIT
    assert http_error_code(404, text) in {Code.RATE_LIMIT, "HTTP_404"}


@pytest.mark.parametrize("text", QUOTAS)
def test_an_account_that_is_used_up(text: str) -> None:
    assert is_quota_exceeded(text)
    for status in (400, 402, 404, 429, 500):
        assert http_error_code(status, text) == Code.QUOTA
    assert in_band_error_code(text) == Code.QUOTA


def test_a_reset_signal_makes_a_quota_a_rate_limit_unless_the_account_is_empty() -> None:
    worded = "You exceeded your current quota. Please retry in 12.5s."
    assert not is_quota_exceeded(worded)
    assert http_error_code(429, worded) == Code.RATE_LIMIT
    assert not is_quota_exceeded("You exceeded your current quota", will_reset=True)
    assert is_quota_exceeded("insufficient_quota quota exceeded", will_reset=True)
    assert is_quota_exceeded("insufficient balance", will_reset=True)


@pytest.mark.parametrize(
    ("status", "detail", "will_reset", "code"),
    [
        (429, "quota exceeded", True, Code.RATE_LIMIT),
        (429, "quota exceeded", False, Code.QUOTA),
        (429, "insufficient_quota", True, Code.QUOTA),
        (402, "quota exceeded", True, Code.QUOTA),
        (402, "insufficient balance, retry in 5s", True, Code.QUOTA),
        (404, "quota exceeded", True, Code.QUOTA),
        (404, "quota exceeded, retry in 5s", False, Code.RATE_LIMIT),
        (400, "quota exceeded, retry in 5s", False, Code.RATE_LIMIT),
        (500, "quota exceeded", True, Code.QUOTA),
        (500, "balance exhausted, retry in 5s", True, Code.QUOTA),
        (402, "", True, "HTTP_402"),
    ],
)
def test_quota_wording_under_a_status(
    status: int,
    detail: str,
    will_reset: bool,
    code: str,
) -> None:
    assert http_error_code(status, detail, will_reset=will_reset) == code


@pytest.mark.parametrize(
    ("status", "detail", "code"),
    [
        (401, "insufficient_quota", Code.AUTH),
        (403, "context_length_exceeded", Code.AUTH),
        (400, "", Code.INVALID_REQUEST),
        (413, "prompt is too long for this model", Code.INVALID_REQUEST),
        (413, "insufficient_quota", Code.INVALID_REQUEST),
        (429, "context_length_exceeded", Code.RATE_LIMIT),
        (500, "maximum context length is 10 tokens", Code.SERVER),
        (500, "Context size has been exceeded.", Code.CONTEXT_WINDOW_EXCEEDED),
        (503, "Context size has been exceeded.", Code.SERVER),
        (529, "", Code.SERVER),
        (422, "context_length_exceeded", "HTTP_422"),
        (302, "", "HTTP_302"),
    ],
)
def test_status_and_text_together(status: int, detail: str, code: str) -> None:
    assert http_error_code(status, detail) == code


@pytest.mark.parametrize(
    ("detail", "names", "code"),
    [
        ("rate_limit_exceeded slow down", (), Code.RATE_LIMIT),
        ("Too many requests", (), Code.RATE_LIMIT),
        ("ThrottlingException", (), Code.RATE_LIMIT),
        ("context_length_exceeded", ("invalid_request_error",), Code.CONTEXT_WINDOW_EXCEEDED),
        ("bad", ("x", "invalid_request_error"), Code.INVALID_REQUEST),
        ("no", ("authentication_error",), Code.AUTH),
        ("Overloaded", ("overloaded_error",), Code.SERVER),
        ("", (), Code.SERVER),
    ],
)
def test_errors_inside_a_stream(detail: str, names: tuple[str, ...], code: str) -> None:
    assert in_band_error_code(detail, *names) == code


def test_texts_are_joined_in_order_without_the_empty_ones() -> None:
    assert error_detail("a", None, "", 5, "b") == "a 5 b"


def test_a_long_text_is_read_in_a_moment() -> None:
    text = "input exceeds " * 20_000
    assert not is_context_window_exceeded(text)
    assert not is_quota_exceeded("insufficient " * 20_000 + "_ " * 20_000)
