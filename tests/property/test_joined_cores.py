"""The worker, broker and client cores joined: no stream hangs, none is wrong, nothing is kept.

Many more histories by hand: `python -m tests.support.joined FIRST COUNT`.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chaos.breaks import ForgetfulCalls
from tests.support.joined.history import played

# A history has dozens of streams and thousands of chunks.
_EXAMPLES = max(1, settings().max_examples // 20)


@settings(max_examples=_EXAMPLES)
@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_every_stream_ends_whole_and_nothing_is_held(seed: int) -> None:
    """Single links break, brokers and clients die, windows rise and fall, calls change hands."""
    assert played(seed).problems == []


@settings(max_examples=_EXAMPLES)
@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_without_faults_too(seed: int) -> None:
    assert played(seed, has_faults=False).problems == []


def test_the_histories_hold_what_they_promise() -> None:
    """Streams are handed over, and long ones stop at their window."""
    outcomes = [played(seed) for seed in range(5)]
    assert sum(outcome.attached for outcome in outcomes) > 2
    assert sum(outcome.chunks for outcome in outcomes) > 5000


def test_a_worker_that_loses_wake_ups_is_noticed() -> None:
    """A sixth of all histories find it; this looks until the first one."""
    assert any(_sleeps(seed) for seed in range(60))


def _sleeps(seed: int) -> bool:
    return any("sleeps on room" in one for one in played(seed, ForgetfulCalls).problems)
