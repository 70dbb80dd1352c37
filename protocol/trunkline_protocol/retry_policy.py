"""Retry policies: resolving a configuration, and the rule that decides and delays one retry.

Pure: the random sample is passed in. Who retries, and when a failure is final anyway, is decided
elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Final, Literal, cast

from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmFailure, is_delay_ms
from trunkline_protocol.printable import is_name
from trunkline_protocol.record import record

DEFAULT_MAX_RETRIES: Final = 5
DEFAULT_RETRYABLE_CODES: Final = (
    Code.EMPTY_RESPONSE,
    Code.RATE_LIMIT,
    Code.SERVER,
    Code.TIMEOUT,
    Code.TRANSPORT,
)
DEFAULT_INITIAL_DELAY_MS: Final = 500
DEFAULT_MAX_DELAY_MS: Final = 10_000
DEFAULT_JITTER_RATIO: Final = 0.1
MAX_TIMER_DELAY_MS: Final = 2_147_483_647  # the longest timer of every runtime we know of
# A client gets the policy with each confirmation, and its key, a text for people, with each retry.
MAX_RETRYABLE_CODES: Final = 100
_MAX_CODE_CHARS: Final = 64  # as of every failure code
_MAX_SAFE_INTEGER: Final = 9_007_199_254_740_991
_MAX_EXPONENT: Final = 1024  # 2.0**1024 is infinite


@record
class NormalRetryPolicy:
    """Retry some failures a limited number of times.

    Attributes:
        max_retries: retries after the first attempt, 0 or more.
        retryable_codes: failure codes that may be retried.
        initial_delay_ms: delay before the first retry, above 0.
        max_delay_ms: bound of the growing delay.
        jitter_ratio: 0 to 1, how far the delay is scattered to both sides.
        mode: always `normal`.
    """

    max_retries: int = DEFAULT_MAX_RETRIES
    retryable_codes: tuple[str, ...] = DEFAULT_RETRYABLE_CODES
    initial_delay_ms: float = DEFAULT_INITIAL_DELAY_MS
    max_delay_ms: float = DEFAULT_MAX_DELAY_MS
    jitter_ratio: float = DEFAULT_JITTER_RATIO
    mode: Literal["normal"] = "normal"

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map."""
        return {
            "mode": self.mode,
            "maxRetries": self.max_retries,
            "retryableCodes": list(self.retryable_codes),
            **_backoff_dict(self),
        }


@record
class AlwaysRetryPolicy:
    """Retry every failure without a limit; the delays are as in `NormalRetryPolicy`."""

    initial_delay_ms: float = DEFAULT_INITIAL_DELAY_MS
    max_delay_ms: float = DEFAULT_MAX_DELAY_MS
    jitter_ratio: float = DEFAULT_JITTER_RATIO
    mode: Literal["always"] = "always"

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map."""
        return {"mode": self.mode, **_backoff_dict(self)}


ResolvedRetryPolicy = NormalRetryPolicy | AlwaysRetryPolicy
DEFAULT_RETRY_POLICY: Final = NormalRetryPolicy()


def _backoff_dict(policy: ResolvedRetryPolicy) -> dict[str, object]:
    return {
        "initialDelayMs": policy.initial_delay_ms,
        "maxDelayMs": policy.max_delay_ms,
        "jitterRatio": policy.jitter_ratio,
    }


_POLICY_KEYS: Final = ("mode", "maxRetries", "retryableCodes", "backoff")
_BACKOFF_KEYS: Final = ("initialDelayMs", "maxDelayMs", "jitterRatio")


def resolve_retry_policy(
    config: Mapping[str, object] | None, path: str = "retryPolicy"
) -> ResolvedRetryPolicy:
    """Validate and complete a configured policy.

    Args:
        config: `mode`, `maxRetries`, `retryableCodes`, `backoff`; `None` is the normal default. In
            mode `always` the two keys of the normal mode are ignored, whatever they hold.
        path: where the configuration stands, for the error.

    Raises:
        ValueError: the text starts with the path of the wrong value and says what is allowed.
    """
    if config is None:
        return DEFAULT_RETRY_POLICY
    mode = config.get("mode")
    if not isinstance(mode, str) or mode not in {"normal", "always"}:
        raise ValueError(f'{path}.mode: "normal" or "always" is required')
    _check_keys(config, _POLICY_KEYS, path)
    if mode == "always":
        return AlwaysRetryPolicy(*_backoff(config.get("backoff"), f"{path}.backoff"))
    max_retries = _max_retries(config.get("maxRetries"), f"{path}.maxRetries")
    codes = _codes(config.get("retryableCodes"), f"{path}.retryableCodes")
    return NormalRetryPolicy(
        max_retries, codes, *_backoff(config.get("backoff"), f"{path}.backoff")
    )


def policy_from_dict(data: Mapping[str, object]) -> ResolvedRetryPolicy:
    """Read the camelCase map of a resolved policy.

    Raises:
        ValueError: a field is missing or wrong; the text names it.
    """
    flat = {key: data.get(key) for key in _POLICY_KEYS if key in data}
    return resolve_retry_policy(
        {**flat, "backoff": {key: data.get(key) for key in _BACKOFF_KEYS}}, "policy"
    )


def _check_keys(config: Mapping[str, object], allowed: tuple[str, ...], path: str) -> None:
    for key in config:
        if key not in allowed:
            raise ValueError(f'{path}: unknown key "{key}"; allowed are {", ".join(allowed)}')


def _max_retries(value: object, path: str) -> int:
    if value is None:
        return DEFAULT_MAX_RETRIES
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= _MAX_SAFE_INTEGER:
        raise ValueError(f"{path}: a whole number, 0 or more, is required")
    return value


def _codes(value: object, path: str) -> tuple[str, ...]:
    if value is None:
        return DEFAULT_RETRYABLE_CODES
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{path}: a list with at least one code is required")
    codes = tuple(cast("list[object]", value))
    if len(codes) > MAX_RETRYABLE_CODES:
        raise ValueError(f"{path}: at most {MAX_RETRYABLE_CODES} codes are allowed")
    if not all(isinstance(code, str) and code for code in codes):
        raise ValueError(f"{path}: every code must be text and not empty")
    if not all(is_name(code) and len(code) <= _MAX_CODE_CHARS for code in codes):
        raise ValueError(f"{path}: every code must be printable, at most {_MAX_CODE_CHARS} letters")
    if len(set(codes)) != len(codes):
        raise ValueError(f"{path}: every code may stand there once")
    return cast("tuple[str, ...]", codes)


def _backoff(value: object, path: str) -> tuple[float, float, float]:
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: a table is required")  # noqa: TRY004
    config = cast("Mapping[str, object]", value)
    _check_keys(config, _BACKOFF_KEYS, path)
    initial_ms = _delay(config, "initialDelayMs", DEFAULT_INITIAL_DELAY_MS, path)
    max_ms = _delay(config, "maxDelayMs", DEFAULT_MAX_DELAY_MS, path)
    if initial_ms > max_ms:
        raise ValueError(f"{path}.initialDelayMs: must not exceed maxDelayMs")
    jitter = config.get("jitterRatio")
    jitter = DEFAULT_JITTER_RATIO if jitter is None else jitter
    if type(jitter) not in {int, float} or not 0 <= cast("float", jitter) <= 1:
        raise ValueError(f"{path}.jitterRatio: a number from 0 to 1 is required")
    return initial_ms, max_ms, cast("float", jitter)


def _delay(config: Mapping[str, object], key: str, default: float, path: str) -> float:
    value = config.get(key)
    value = default if value is None else value
    if not is_delay_ms(value) or value > MAX_TIMER_DELAY_MS:
        raise ValueError(
            f"{path}.{key}: a number above 0, at most {MAX_TIMER_DELAY_MS}, is required"
        )
    return value


@record
class RetryDecision:
    """One retry that shall be made.

    Attributes:
        delay_ms: wait this long before it.
        retry: its number, from 1.
        max_retries: of the policy; `None` without a limit.
    """

    delay_ms: float
    retry: int
    max_retries: int | None


def decide_retry(
    policy: ResolvedRetryPolicy, failure: LlmFailure, retry: int, random: float
) -> RetryDecision | None:
    """Decide about one retry.

    Args:
        policy: the one captured with the failed attempt.
        failure: of that attempt.
        retry: number of the retry, from 1.
        random: sample from 0 to 1, for the jitter.

    Returns:
        The retry, or `None`: the policy does not want it, somebody else may.
    """
    wished_ms = failure.provider_retry_after_ms
    if isinstance(policy, NormalRetryPolicy):
        if failure.code not in policy.retryable_codes or retry > policy.max_retries:
            return None
        # Asked to wait longer than allowed: retrying earlier than told hammers the provider.
        if wished_ms is not None and wished_ms > policy.max_delay_ms:
            return None
    if wished_ms is None or wished_ms > policy.max_delay_ms:
        wished_ms = backoff_ms(policy, retry, random)
    limit = policy.max_retries if isinstance(policy, NormalRetryPolicy) else None
    return RetryDecision(wished_ms, retry, limit)


def backoff_ms(policy: ResolvedRetryPolicy, retry: int, random: float) -> float:
    """Return the delay of a retry where the provider wished for none.

    Doubles from the initial delay up to the bound, scattered by the jitter, never above the bound.
    """
    exponent = min(retry - 1, _MAX_EXPONENT)
    factor = math.inf if exponent == _MAX_EXPONENT else 2.0**exponent
    base_ms = min(policy.initial_delay_ms * factor, policy.max_delay_ms)
    # In this order of operations the last bits of the pinned values come out.
    scattered = base_ms * (1 - policy.jitter_ratio + random * 2 * policy.jitter_ratio)
    return min(scattered, policy.max_delay_ms)


def policy_key(policy: ResolvedRetryPolicy) -> str:
    """Return a text that is equal for policies that behave alike, in any process.

    JSON with the numbers of ECMAScript and the codes sorted by UTF-16 units, as pinned.
    """
    tail = ",".join(
        _number(value)
        for value in (policy.initial_delay_ms, policy.max_delay_ms, policy.jitter_ratio)
    )
    if isinstance(policy, AlwaysRetryPolicy):
        return f'["always",{tail}]'
    codes = sorted(
        policy.retryable_codes, key=lambda code: code.encode("utf-16-be", "surrogatepass")
    )
    text = json.dumps(codes, ensure_ascii=False, separators=(",", ":"))
    return f'["normal",{policy.max_retries},{text},{tail}]'


def _number(value: float) -> str:
    """Print a number from 0 to 2**31 as ECMAScript does."""
    if value == int(value):
        return str(int(value))
    if value >= 1e-6:
        return format(Decimal(repr(value)), "f")
    mantissa, exponent = repr(value).split("e")
    return f"{mantissa}e{int(exponent)}"
