"""Retry policies: resolving a configuration, and the rule that decides and delays one retry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class NormalRetryPolicy:
    """Retry some failures a limited number of times.

    Attributes:
        max_retries: retries after the first attempt.
        retryable_codes: failure codes that may be retried.
        initial_delay_ms: delay before the first retry.
        max_delay_ms: bound of the growing delay.
        jitter_ratio: 0 to 1, share of the delay that is random.
        mode: always `normal`.
    """

    max_retries: int
    retryable_codes: tuple[str, ...]
    initial_delay_ms: float
    max_delay_ms: float
    jitter_ratio: float
    mode: Literal["normal"] = "normal"


@dataclass(frozen=True, slots=True)
class AlwaysRetryPolicy:
    """Retry every failure without a limit."""

    initial_delay_ms: float
    max_delay_ms: float
    jitter_ratio: float
    mode: Literal["always"] = "always"


ResolvedRetryPolicy = NormalRetryPolicy | AlwaysRetryPolicy
