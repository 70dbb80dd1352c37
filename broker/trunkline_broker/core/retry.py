"""What a failed attempt leads to: another attempt, a pause of its route, or neither (SPEC 6).

Facts are in the failure, the rule is in the policy captured with the attempt. It does not know
calls or queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from trunkline_protocol.codes import Code
from trunkline_protocol.counts import is_count
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.limits import MAX_PAUSE_S
from trunkline_protocol.printable import is_name
from trunkline_protocol.retry_policy import (
    ResolvedRetryPolicy,
    decide_retry,
    policy_key,
)

# Only these say something about everybody's next request; a Retry-After beside an exhausted quota
# or a refused request says nothing about the other models of the route.
_PAUSING_CODES: Final = frozenset({Code.RATE_LIMIT, Code.SERVER})
ABORTED_FINISH: Final[Mapping[str, Any]] = {
    "kind": "aborted",
    "failure": LlmFailure("cancelled", Code.ABORTED).to_dict(),
}


@dataclass(frozen=True, slots=True)
class Backoff:
    """A retry that was decided and waits for its delay.

    Attributes:
        retry_id: names this retry in both of its events.
        retry: its number, from 1, over the whole call.
        delay_ms: at least 0.
    """

    retry_id: str
    mode: str
    policy_key: str
    retry: int
    max_retries: int | None
    delay_ms: float
    failure: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReOffer:
    """What a client tells a new broker of a retry that the old one had decided.

    Attributes:
        delay_ms: what is left of the delay; 0: it is over, run the attempt.
    """

    retry_id: str
    policy_key: str
    retry: int
    delay_ms: float


@dataclass(frozen=True, slots=True)
class RoutePause:
    """What a `Retry-After` means for the whole route.

    Attributes:
        is_closed: longer than the policy waits: new calls end at once instead of waiting.
    """

    seconds: float
    is_closed: bool


def failure_of(finish: Mapping[str, Any]) -> LlmFailure | None:
    """Return the failure of an `error` finish; `None` for every other one.

    A failure that can't be read counts as one with the code `UNKNOWN`.
    """
    if finish.get("kind") != "error":
        return None
    raw = finish.get("failure")
    if isinstance(raw, dict):
        try:
            return LlmFailure.from_dict(cast("dict[str, object]", raw))
        except ValueError:  # a newer or broken worker; the client gets the finish as it came
            pass
    return LlmFailure("the worker reported no readable failure", Code.UNKNOWN)


def plan_retry(
    policy: ResolvedRetryPolicy, failure: LlmFailure, retries: int, jitter: float, retry_id: str
) -> Backoff | None:
    """Decide whether an attempt that failed is followed by another one.

    Args:
        policy: captured with the failed attempt.
        failure: of that attempt.
        retries: retries of the call so far; a budget never starts over.
        jitter: sample in [0, 1).
        retry_id: name for the retry, if there is one.
    """
    decision = decide_retry(policy, failure, retries + 1, jitter)
    if decision is None:
        return None
    return Backoff(
        retry_id,
        policy.mode,
        policy_key(policy),
        decision.retry,
        decision.max_retries,
        decision.delay_ms,
        failure.to_dict(),
    )


def read_re_offer(raw: Mapping[str, Any]) -> ReOffer | None:
    """Read `OPEN.retryOffer`; `None` if it is not usable, and the call then starts as usual."""
    retry_id, key, retry = raw.get("retryId"), raw.get("policyKey"), raw.get("retry")
    delay = raw.get("delayMs", 0)
    if not (is_name(retry_id) and isinstance(key, str)):
        return None
    if not is_count(retry) or retry < 1 or type(delay) not in {int, float}:
        return None
    # NaN fails the comparison and becomes 0.
    return ReOffer(retry_id, key, retry, float(delay) if delay > 0 else 0.0)


def resume_backoff(offer: ReOffer, policy: ResolvedRetryPolicy) -> Backoff:
    """Put a re-offered retry back to where it was, under the policy that serves now."""
    limit = policy.max_retries if policy.mode == "normal" else None
    failure = LlmFailure("the attempt failed before the broker was restarted", Code.UNKNOWN)
    delay_ms = min(offer.delay_ms, policy.max_delay_ms)
    return Backoff(
        offer.retry_id,
        policy.mode,
        offer.policy_key,
        offer.retry,
        limit,
        delay_ms,
        failure.to_dict(),
    )


def route_pause(policy: ResolvedRetryPolicy, failure: LlmFailure) -> RoutePause | None:
    """Return what a failure means for other calls of its route; `None`: nothing.

    A route waits for an hour at most, whatever its provider wishes; the failure carries the wish.
    """
    wished_ms = failure.provider_retry_after_ms
    if wished_ms is None or failure.code not in _PAUSING_CODES:
        return None
    seconds = min(wished_ms / 1000, MAX_PAUSE_S)
    return RoutePause(seconds, is_closed=wished_ms > policy.max_delay_ms)
