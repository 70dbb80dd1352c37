"""The metrics page from a status document; a real parser reads it."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from trunkline_broker.measured.metrics import Snapshot
from trunkline_broker.measured.tallies import Tallies

from tests.support.attempts import an_attempt
from tests.support.broker_rig import Rig, status_of

QUEUES = {
    "keptBytes": 10, "keptHighWater": 20, "keptBound": 30,
    "waitingItems": 1, "waitingHighWater": 2, "waitingBound": 3,
}  # fmt: skip

Found = dict[str, dict[tuple[str, ...], float]]


def a_status(load: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    rig = Rig()
    worker = rig.a_worker()
    if load is not None:
        worker.beat(load=load)
    return {**status_of(rig), "uptimeS": 1.0, **fields}


def page(status: dict[str, Any], tallies: Tallies | None = None) -> Found:
    """Return the values of every metric by those of its labels, in the order of their names."""
    text = Snapshot(tallies or Tallies(), status).page("").body.decode()
    found: Found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_what_waits_in_a_worker_is_told_with_its_bound() -> None:
    found = page(a_status({"queues": QUEUES}))
    assert found["trunkline_worker_queue_depth"] == {
        ("p", "kept bytes", "0"): 10,
        ("p", "waiting items", "0"): 1,
    }
    assert found["trunkline_worker_queue_high_water"]["p", "kept bytes", "0"] == 20
    assert found["trunkline_worker_queue_bound"]["p", "waiting items", "0"] == 3


def test_a_worker_that_tells_nothing_or_nonsense_costs_its_own_figures() -> None:
    """An older one, one that has just begun, and one that is wrong."""
    for load in (None, {}, {"queues": 3}, {"queues": {"keptBytes": "x"}, "rss": 5}):
        found = page(a_status(load))
        assert "trunkline_worker_queue_depth" not in found
        assert found["trunkline_worker_up"] == {("p", "0"): 1}


def test_what_a_worker_counts_is_told_within_a_bound() -> None:
    many = {f"made up {at}": at for at in range(1000)}
    found = page(a_status({"counters": {"frames_resent": 3, "wrong": "x", **many}}))
    events = found["trunkline_worker_events_total"]
    assert events["frames_resent", "p", "0"] == 3
    assert len(events) == 64


def test_a_worker_that_writes_prompts_is_one() -> None:
    name = "trunkline_worker_writes_prompts"
    assert page(a_status({"debugPrompts": True}))[name] == {("p", "0"): 1}
    assert page(a_status({"debugPrompts": "yes"}))[name] == {("p", "0"): 0}


def test_queues_that_are_named_by_a_process_are_no_series() -> None:
    """Each start would make a new one for ever."""
    rows = [
        {"name": name, "depth": 1, "highWater": 2, "bound": 3}
        for name in ("queries", "worker p/0 pid 7 kept bytes")
    ]
    found = page(a_status(queues=rows))
    assert found["trunkline_queue_depth"] == {("queries",): 1}


def test_failures_that_alert_begin_at_nothing() -> None:
    """Prometheus sees no rise in a series that begins at 1."""
    tallies = Tallies()
    tallies.on_attempt(an_attempt(outcome="failed", kind="error", code="AUTH"))
    failures = page(a_status(), tallies)["trunkline_failures_total"]
    assert failures["QUOTA", "p"] == 0
    assert failures["AUTH", "p"] == 1


def test_buckets_are_cumulative() -> None:
    tallies = Tallies()
    for lasted_s in (0.0015, 0.003, 3.0, 99.0):
        tallies.on_attempt(an_attempt(lasted_s=lasted_s))
    found = page(a_status(), tallies)
    buckets = list(found["trunkline_attempt_seconds_bucket"].values())
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["trunkline_attempt_seconds_count"]["p",] == 4


def test_without_a_ledger_there_are_no_figures_of_one() -> None:
    assert "trunkline_ledger_waiting" not in page(a_status())
    with_one = a_status(measures={"ledger": {"lost": 1, "waiting": 2}})
    assert page(with_one)["trunkline_ledger_lost_total"] == {(): 1}
