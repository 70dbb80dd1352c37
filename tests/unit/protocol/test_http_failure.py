"""Responses that are not 2xx, and errors inside a stream, as failures."""

from __future__ import annotations

import json

import pytest
from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.http_failure import http_failure, in_band_failure, request_id

NOW_MS = 1_800_000_000_000.0


def failed(status: int, body: object = "", **headers: str) -> LlmFailure:
    text = body if isinstance(body, str) else json.dumps(body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http_failure(status, named, text, NOW_MS)


def test_all_facts_of_a_response() -> None:
    failure = failed(429, {"error": {"message": "slow down"}}, Retry_After="2", X_Request_Id="r1")
    assert failure == LlmFailure("slow down", Code.RATE_LIMIT, 429, 2_000, "r1")


def test_a_body_that_can_not_be_read_never_hides_the_status() -> None:
    assert failed(503, "upstream connect error").code == Code.SERVER
    assert failed(401) == LlmFailure("the provider answered HTTP 401", Code.AUTH, 401)
    assert failed(999).status is None


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"detail": "model x does not exist"}, Code.INVALID_REQUEST),
        ({"detail": [{"loc": ["body"], "msg": "field required"}]}, Code.INVALID_REQUEST),
        ({"error": {"message": "slow down"}}, "HTTP_422"),
    ],
)
def test_a_refused_validation_is_an_invalid_request(body: object, code: str) -> None:
    assert failed(422, body).code == code


@pytest.mark.parametrize(
    ("headers", "delay_ms"),
    [
        ({"retry_after": "30"}, 30_000),
        ({"retry_after_ms": "10"}, 10),
        ({"x_ratelimit_reset": "7"}, 7_000),
        ({}, None),
    ],
)
def test_a_delay_from_the_headers(headers: dict[str, str], delay_ms: float | None) -> None:
    failure = failed(429, {"error": {"message": "limit"}}, **headers)
    assert failure.provider_retry_after_ms == delay_ms


def test_a_delay_from_the_body_makes_an_exceeded_quota_a_rate_limit() -> None:
    body = {
        "error": {
            "code": 429,
            "message": "You exceeded your current quota.",
            "status": "RESOURCE_EXHAUSTED",
            "details": [{"@type": "x/google.rpc.RetryInfo", "retryDelay": "12.5s"}],
        }
    }
    for wrapped in (body, [body]):
        failure = failed(429, wrapped)
        assert (failure.code, failure.provider_retry_after_ms) == (Code.RATE_LIMIT, 12_500)


def test_a_reset_header_counts_for_rate_limits_only() -> None:
    assert failed(500, "", x_ratelimit_reset="7").provider_retry_after_ms is None


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, None),
        ({"x-request-id": "a", "request-id": "b"}, "a"),
        ({"x-request-id": "", "x-deepseek-request-id": "b"}, None),
        ({"x-deepseek-request-id": "b"}, "b"),
        ({"request-id": "c"}, "c"),
        ({"x-amzn-requestid": "d"}, "d"),
        ({"apim-request-id": "e"}, "e"),
    ],
)
def test_request_ids(headers: dict[str, str], found: str | None) -> None:
    assert request_id(headers) == found


@pytest.mark.parametrize(
    ("payload", "code", "status"),
    [
        ({"error": {"code": 400, "message": "prompt is too long: 2 > 1"}}, "overflow", 400),
        ({"error": {"code": 400, "type": "exceed_context_size_error"}}, "overflow", 400),
        ({"error": {"code": 500, "message": "Context size has been exceeded."}}, "overflow", 500),
        ({"error": {"code": 400, "message": "Blocked by policy"}}, Code.INVALID_REQUEST, 400),
        ({"error": {"code": 502, "message": "bad gateway"}}, Code.SERVER, 502),
        ({"error": {"code": "429", "message": "quota exceeded, retry in 2s"}}, "rate", 429),
        ({"error": {"type": "overloaded_error", "message": "Overloaded"}}, Code.SERVER, None),
        ({"error": "rate limit reached"}, "rate", None),
        ({"error": {}}, Code.SERVER, None),
    ],
)
def test_errors_inside_a_stream(payload: object, code: str, status: int | None) -> None:
    named = {"overflow": Code.CONTEXT_WINDOW_EXCEEDED, "rate": Code.RATE_LIMIT}
    failure = in_band_failure(payload, "r")
    assert (failure.code, failure.status) == (named.get(code, code), status)
    assert failure.message
    assert failure.request_id == "r"


def test_an_error_inside_a_stream_may_name_a_delay() -> None:
    failure = in_band_failure({"error": {"message": "rate limit, try again in 3s"}}, "")
    assert (failure.provider_retry_after_ms, failure.request_id) == (3_000, None)


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "3", "Date": "Fri, 15 Jan 2027 09:00:00 GMT"},
        {"Retry-After": "Fri, 15 Jan 2027 09:00:03 GMT", "Date": "Fri, 15 Jan 2027 09:00:00 GMT"},
        {"Retry-After": "Fri, 15 Jan 2027 08:00:03 GMT"},
        {
            "anthropic-ratelimit-tokens-remaining": "0",
            "anthropic-ratelimit-tokens-reset": "2027-01-15T07:00:03Z",
            "Date": "Fri, 15 Jan 2027 07:00:00 GMT",
        },
    ],
    ids=["seconds", "date", "date-by-our-clock", "reset"],
)
def test_a_clock_that_differs_from_ours_changes_no_delay(headers: dict[str, str]) -> None:
    """Three seconds, though the provider's clock is an hour before ours or behind it."""
    assert failed(429, {}, **headers).provider_retry_after_ms == 3_000


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Retry-After": "10000000000000000000"}, {}),
        ({"Retry-After": "31536000"}, {}),
        ({"Retry-After": "9" * 300}, {}),
        ({"retry-after-ms": "9" * 300}, {}),
        ({"Retry-After": "Fri, 15 Jan 9999 08:00:00 GMT"}, {}),
        ({"Retry-After": "9999-12-31T23:59:59+00:00"}, {}),
        ({"x-ratelimit-reset": "9" * 300}, {}),
        ({"x-ratelimit-reset": "9" * 300 + "h"}, {}),
        ({}, {"error": {"message": f"Please retry in {'9' * 300} seconds"}}),
        ({}, {"error": {"details": [{"retryDelay": "9" * 300 + "s"}]}}),
    ],
)
def test_nobody_waits_longer_than_an_hour(headers: dict[str, str], body: object) -> None:
    """What a provider asked for beyond that stands in the message."""
    failure = failed(429, body, **headers)
    assert failure.provider_retry_after_ms == 3_600_000
    assert "asked to wait" in failure.message
    assert "3600 count" in failure.message
    assert len(failure.message) < 2_200


def test_an_hour_itself_is_no_news() -> None:
    failure = failed(429, {}, **{"Retry-After": "3600"})
    assert failure.provider_retry_after_ms == 3_600_000
    assert "asked" not in failure.message
    stream = in_band_failure({"error": {"message": "try again in 9000 minutes"}})
    assert stream.provider_retry_after_ms == 3_600_000
    assert "540000 s" in stream.message
