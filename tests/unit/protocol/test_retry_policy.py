"""Retry policies: resolution, decision, delay, key."""

from __future__ import annotations

import pytest
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.retry_policy import (
    DEFAULT_RETRY_POLICY,
    MAX_TIMER_DELAY_MS,
    AlwaysRetryPolicy,
    NormalRetryPolicy,
    ResolvedRetryPolicy,
    RetryDecision,
    backoff_ms,
    decide_retry,
    policy_from_dict,
    policy_key,
    resolve_retry_policy,
)

ALWAYS = AlwaysRetryPolicy(500, 10_000, 0.5)


def test_no_configuration_is_the_normal_default() -> None:
    assert resolve_retry_policy(None) is DEFAULT_RETRY_POLICY
    assert resolve_retry_policy({"mode": "normal"}) == DEFAULT_RETRY_POLICY
    assert resolve_retry_policy({"mode": "always"}) == AlwaysRetryPolicy()


def test_every_field_is_resolved() -> None:
    config = {
        "mode": "normal",
        "maxRetries": 2.0,
        "retryableCodes": ["Z", "A"],
        "backoff": {"initialDelayMs": 0.5, "maxDelayMs": 2, "jitterRatio": 1},
    }
    policy = resolve_retry_policy(config)
    assert policy == NormalRetryPolicy(2, ("Z", "A"), 0.5, 2, 1)
    always = resolve_retry_policy({**config, "mode": "always", "maxRetries": -1})
    assert always == AlwaysRetryPolicy(0.5, 2, 1)
    for each in (policy, always):
        assert policy_from_dict(each.to_dict()) == each


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({}, "c.mode"),
        ({"mode": "sometimes"}, "c.mode"),
        ({"mode": "normal", "retries": 1}, 'c: unknown key "retries"'),
        ({"mode": "normal", "maxRetries": -1}, "c.maxRetries"),
        ({"mode": "normal", "maxRetries": 1.5}, "c.maxRetries"),
        ({"mode": "normal", "maxRetries": True}, "c.maxRetries"),
        ({"mode": "normal", "retryableCodes": []}, "c.retryableCodes"),
        ({"mode": "normal", "retryableCodes": "SERVER"}, "c.retryableCodes"),
        ({"mode": "normal", "retryableCodes": ["A", ""]}, "c.retryableCodes"),
        ({"mode": "normal", "retryableCodes": ["A", "A"]}, "c.retryableCodes"),
        ({"mode": "always", "backoff": 5}, "c.backoff"),
        ({"mode": "always", "backoff": {"factor": 2}}, "c.backoff: unknown key"),
        ({"mode": "always", "backoff": {"initialDelayMs": 0}}, "c.backoff.initialDelayMs"),
        ({"mode": "always", "backoff": {"initialDelayMs": "1"}}, "c.backoff.initialDelayMs"),
        (
            {"mode": "always", "backoff": {"maxDelayMs": MAX_TIMER_DELAY_MS + 1}},
            "c.backoff.maxDelayMs",
        ),
        ({"mode": "always", "backoff": {"maxDelayMs": 1}}, "c.backoff.initialDelayMs"),
        ({"mode": "always", "backoff": {"jitterRatio": 1.1}}, "c.backoff.jitterRatio"),
        ({"mode": "always", "backoff": {"jitterRatio": False}}, "c.backoff.jitterRatio"),
    ],
)
def test_a_wrong_configuration_names_its_path(config: dict[str, object], path: str) -> None:
    with pytest.raises(ValueError, match=path.replace(".", r"\.")):
        resolve_retry_policy(config, "c")


@pytest.mark.parametrize(
    ("policy", "retry", "code", "wished_ms", "decision"),
    [
        (DEFAULT_RETRY_POLICY, 1, "SERVER", None, RetryDecision(500, 1, 5)),
        (DEFAULT_RETRY_POLICY, 5, "SERVER", None, RetryDecision(8_000, 5, 5)),
        (DEFAULT_RETRY_POLICY, 6, "SERVER", None, None),
        (DEFAULT_RETRY_POLICY, 1, "AUTH", None, None),
        (DEFAULT_RETRY_POLICY, 1, "SERVER", 10_000, RetryDecision(10_000, 1, 5)),
        (DEFAULT_RETRY_POLICY, 1, "SERVER", 10_001, None),
        (ALWAYS, 3, "AUTH", 7, RetryDecision(7, 3, None)),
        (ALWAYS, 3, "AUTH", 10_001, RetryDecision(2_000, 3, None)),
    ],
)
def test_decisions(
    policy: ResolvedRetryPolicy,
    retry: int,
    code: str,
    wished_ms: float | None,
    decision: RetryDecision | None,
) -> None:
    failure = LlmFailure("m", code, provider_retry_after_ms=wished_ms)
    assert decide_retry(policy, failure, retry, 0.5) == decision


def test_delays_double_up_to_the_bound_and_are_scattered() -> None:
    assert [backoff_ms(ALWAYS, retry, 0.5) for retry in (1, 2, 5, 6, 2_000)] == [
        500,
        1_000,
        8_000,
        10_000,
        10_000,
    ]
    assert backoff_ms(ALWAYS, 1, 0) == 250
    assert backoff_ms(ALWAYS, 1, 1) == 750
    assert backoff_ms(ALWAYS, 9, 1) == 10_000


@pytest.mark.parametrize(
    ("policy", "key"),
    [
        (AlwaysRetryPolicy(500, 10_000, 0.1), '["always",500,10000,0.1]'),
        (AlwaysRetryPolicy(500.0, 1e4, 1.0), '["always",500,10000,1]'),
        (AlwaysRetryPolicy(1e-7, 0.00001, 0), '["always",1e-7,0.00001,0]'),
        (NormalRetryPolicy(2, ("B", "A"), 1, 2, 0), '["normal",2,["A","B"],1,2,0]'),
        (
            NormalRetryPolicy(0, ("\ufb01", "\U0001d518"), 1, 2, 0),
            '["normal",0,["\U0001d518","\ufb01"],1,2,0]',
        ),
    ],
)
def test_keys(policy: ResolvedRetryPolicy, key: str) -> None:
    assert policy_key(policy) == key
