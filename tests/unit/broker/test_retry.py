"""What a failure leads to: a retry, a pause of the route, or neither."""

from __future__ import annotations

import math

import pytest
from trunkline_broker.core.retry import (
    Backoff,
    ReOffer,
    RoutePause,
    failure_of,
    plan_retry,
    read_re_offer,
    resume_backoff,
    route_pause,
)
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.retry_policy import AlwaysRetryPolicy, NormalRetryPolicy, policy_key

NORMAL = NormalRetryPolicy(max_retries=2, jitter_ratio=0)


def test_only_an_error_finish_has_a_failure() -> None:
    """An unreadable failure still counts as one."""
    assert failure_of({"kind": "stop"}) is None
    assert failure_of({"kind": "aborted", "failure": {"message": "", "code": "ABORTED"}}) is None
    found = failure_of({"kind": "error", "failure": {"message": "m", "code": "SERVER"}})
    assert found == LlmFailure("m", "SERVER")
    for broken in ({"kind": "error"}, {"kind": "error", "failure": {"code": 1}}):
        failure = failure_of(broken)
        assert failure is not None
        assert failure.code == "UNKNOWN"


def test_a_retry_is_planned_by_the_policy() -> None:
    """Delay and budget are those of the captured policy."""
    failure = LlmFailure("m", "SERVER")
    planned = plan_retry(NORMAL, failure, 1, 0.5, "id")
    expected = Backoff("id", "normal", policy_key(NORMAL), 2, 2, 1000.0, failure.to_dict())
    assert planned == expected
    assert plan_retry(NORMAL, failure, 2, 0.5, "id") is None
    always = plan_retry(AlwaysRetryPolicy(), failure, 50, 0.5, "id")
    assert always is not None
    assert always.max_retries is None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            {"retryId": "i", "policyKey": "k", "retry": 2, "delayMs": 7},
            ReOffer("i", "k", 2, 7.0),
        ),
        ({"retryId": "i", "policyKey": "k", "retry": 2}, ReOffer("i", "k", 2, 0.0)),
        (
            {"retryId": "i", "policyKey": "k", "retry": 2, "delayMs": math.nan},
            ReOffer("i", "k", 2, 0.0),
        ),
        ({"retryId": 1, "policyKey": "k", "retry": 2}, None),
        ({"retryId": "i", "retry": 2}, None),
        ({"retryId": "i", "policyKey": "k", "retry": 0}, None),
        ({"retryId": "i", "policyKey": "k", "retry": True}, None),
        ({"retryId": "i", "policyKey": "k", "retry": 1, "delayMs": "x"}, None),
    ],
)
def test_a_re_offer_is_read_or_ignored(raw: dict[str, object], expected: ReOffer | None) -> None:
    """A client's map is never trusted to be whole."""
    assert read_re_offer(raw) == expected


def test_a_re_offered_retry_goes_on_where_it_was() -> None:
    """With its count, its key and at most the delay that the policy allows."""
    offer = ReOffer("i", "k", 2, 1e9)
    backoff = resume_backoff(offer, NORMAL)
    assert (backoff.retry, backoff.policy_key, backoff.max_retries) == (2, "k", 2)
    assert backoff.delay_ms == NORMAL.max_delay_ms
    assert resume_backoff(offer, AlwaysRetryPolicy()).max_retries is None


def test_retry_after_pauses_a_route() -> None:
    """Up to the policy's bound callers wait; beyond it they are sent away."""
    short = LlmFailure("", "RATE_LIMIT", provider_retry_after_ms=10_000)
    assert route_pause(NORMAL, short) == RoutePause(10.0, is_closed=False)
    long = LlmFailure("", "SERVER", provider_retry_after_ms=10_001)
    assert route_pause(NORMAL, long) == RoutePause(10.001, is_closed=True)
    assert route_pause(NORMAL, LlmFailure("", "RATE_LIMIT")) is None
    quota = LlmFailure("", "QUOTA", provider_retry_after_ms=10)
    assert route_pause(NORMAL, quota) is None
