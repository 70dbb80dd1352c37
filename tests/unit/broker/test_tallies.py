"""Totals from what the core tells."""

from __future__ import annotations

from collections import Counter
from typing import Any

from trunkline_broker.core.effects import NoteLoad
from trunkline_broker.measured.tallies import (
    BUCKETS_S,
    MAX_CODES,
    MAX_LABELS,
    OTHER,
    OTHER_CODE,
    Histogram,
    Tallies,
)
from trunkline_protocol.ids import Epoch, Generation, PoolName
from trunkline_workers.core.load import BUCKETS_MS, LoadMeter

from tests.support.attempts import an_attempt

BINS = len(BUCKETS_S) + 1


def note(routes: Any, number: int = 1) -> NoteLoad:
    return NoteLoad(PoolName("w"), 0, Generation(Epoch(1), number), {"routes": routes})


def test_the_buckets_are_those_of_the_workers() -> None:
    """The packages do not import each other, so this must be looked at."""
    assert [bound * 1000 for bound in BUCKETS_S] == list(BUCKETS_MS)
    meter = LoadMeter()
    meter.open("p", 0.0).on_chunks(1, 0.25)
    (load,) = meter.to_dict().values()
    assert len(load["ttft"]) == BINS


def test_attempts_failures_and_tokens() -> None:
    tallies = Tallies()
    tallies.on_attempt(an_attempt())
    usage = {"inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 3, "reasoningTokens": 1}
    tallies.on_attempt(an_attempt(outcome="retried", kind="error", code="SERVER", usage=usage))
    tallies.on_attempt(an_attempt(outcome="failed", kind="error", code="OVERLOADED", pool="",
                                  usage=None, lasted_s=None))  # fmt: skip
    assert tallies.attempts == Counter(
        {("p", "m", "ended"): 1, ("p", "m", "retried"): 1, ("p", "m", "failed"): 1}
    )
    assert tallies.failures == Counter({("p", "SERVER"): 1, ("p", "OVERLOADED"): 1})
    assert tallies.tokens["p", "m", "input"] == 11
    assert tallies.wasted == Counter(
        {
            ("p", "m", "input"): 1,
            ("p", "m", "output"): 2,
            ("p", "m", "cache_read"): 3,
            ("p", "m", "reasoning"): 1,
        }
    )
    assert sum(tallies.waits["p"].bins) == 2  # what never ran waited for nothing
    assert tallies.durations["p"].sum_s == 4.0


def test_a_provider_s_last_failure_is_known_until_it_answers() -> None:
    """What was cancelled, or never reached a worker, tells nothing of the provider."""
    tallies = Tallies()
    tallies.on_attempt(an_attempt(outcome="retried", kind="error", code="AUTH"))
    tallies.on_attempt(an_attempt(outcome="cancelled", kind="aborted", code="ABORTED"))
    tallies.on_attempt(an_attempt(outcome="failed", kind="error", code="OVERLOADED", pool=""))
    assert tallies.last_codes == {"p": "AUTH"}
    tallies.on_attempt(an_attempt())
    assert tallies.last_codes == {}


def test_wrong_counts_are_left_out() -> None:
    tallies = Tallies()
    tallies.on_attempt(an_attempt(usage={"inputTokens": -1, "outputTokens": "x", "other": 3}))
    tallies.on_attempt(an_attempt(usage={"inputTokens": True, "outputTokens": 1.5}))
    assert not tallies.tokens


def test_names_are_bounded() -> None:
    """Agents may name any model and providers any code; the page does not grow with them."""
    tallies = Tallies()
    for number in range(MAX_LABELS + 5):
        tallies.on_attempt(an_attempt(model=f"m{number}", kind="error", code=f"C{number}"))
    assert len(tallies.attempts) == MAX_LABELS + 1
    assert tallies.attempts[OTHER, OTHER, "ended"] == 5
    assert tallies.failures["p", OTHER_CODE] == MAX_LABELS - MAX_CODES
    assert len(tallies.failures) == MAX_CODES + 1 + 5
    assert sum(tallies.failures.values()) == MAX_LABELS + 5


def test_reports_of_workers_add_up_over_processes() -> None:
    """Each report is a total since the process began; a new process begins at nothing."""
    tallies = Tallies()
    first = {"p": {"calls": 2, "chunks": 10, "ttft": [1] * BINS, "ttftS": 1.5}}
    more = {"p": {"calls": 3, "chunks": 15, "ttft": [2] * BINS, "ttftS": 2.0}}
    tallies.on_load(note(first))
    tallies.on_load(note(more))
    tallies.on_load(note(more))
    tallies.on_load(note(first, number=2))
    totals = tallies.routes["w", "p"]
    assert (totals.calls, totals.chunks) == (5, 25)
    assert totals.ttft.bins == [3] * BINS
    assert totals.ttft.sum_s == 3.5
    assert sum(totals.gaps.bins) == 0


def test_wrong_reports_add_nothing() -> None:
    tallies = Tallies()
    for routes in (None, [], {"p": 3}, {"p": {"calls": "x", "ttft": [1], "ttftS": "y"}}):
        tallies.on_load(note(routes))
    tallies.on_load(note({"p": {"calls": 5, "chunks": 5}}))
    tallies.on_load(note({"p": {"calls": 1, "chunks": 5}}))  # fewer than before
    assert tallies.routes["w", "p"].calls == 5


def test_reports_are_bounded() -> None:
    tallies = Tallies()
    for number in range(MAX_LABELS + 50):
        tallies.on_load(note({f"p{number}": {"chunks": 1}}, number))
    assert len(tallies.routes) == MAX_LABELS + 1
    assert tallies.routes["w", OTHER].chunks == 50


def test_a_histogram_counts_at_its_bounds() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.001, 0.0011, 30.0, 31.0):
        histogram.observe(seconds)
    assert (histogram.bins[0], histogram.bins[1], histogram.bins[-2], histogram.bins[-1]) == (
        2, 1, 1, 1,
    )  # fmt: skip
