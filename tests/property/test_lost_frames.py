"""Each kind of frame lost once, and for ever: every state has an exit that needs no one frame."""

from __future__ import annotations

import pytest
from hypothesis import settings
from trunkline_protocol.failure import Code
from trunkline_protocol.limits import DETACHED_S

from tests.support.joined.losses import KINDS, Kind, Loss, Scenario

# Calls of a client that does not come back wait for it as long as its process lives (SPEC 5.8).
_END_S = 900.0
# A frame that is lost takes its connection with it, so 30 s of retention are the longest wait.
_SOON_S = 60.0
_BROKER_DIES_S = 1.4
# When the loss begins: every call is under way; by hand also before them, and after the handovers.
_IS_BY_HAND = settings().max_examples > 100
_FROM_S = (0.0, 0.65, 1.2) if _IS_BY_HAND else (0.65,)
_CREDIT = ("broker to worker", "Credit")


def _undisturbed(broker_dies_s: float | None) -> tuple[dict[str, str], Loss]:
    loss = Loss()
    scenario = Scenario(loss, broker_dies_s)
    assert scenario.play(_SOON_S) == []
    return scenario.outcome(), loss


_OUTCOME, _SENT = _undisturbed(None)
_OUTCOME_OF_TWO_BROKERS, _SENT_TO_TWO_BROKERS = _undisturbed(_BROKER_DIES_S)


def _name(kind: object) -> str:
    return " ".join(kind).replace(" ", "-") if isinstance(kind, tuple) else str(kind)


def test_the_scenario_has_every_frame_that_a_call_or_a_query_needs() -> None:
    """What is left are ends of a process, refusals, and what follows a cancelled query."""
    sent = {name for _, name in {**_SENT.seen, **_SENT_TO_TWO_BROKERS.seen}}
    rare = {"Bye", "Who", "Refused", "Stopping", "Lost", "QueryCancel"}
    assert {name for _, name in KINDS} - sent <= rare
    assert set(_OUTCOME.values()) == {"stop whole", "aborted "}
    assert _OUTCOME == _OUTCOME_OF_TWO_BROKERS


@pytest.mark.parametrize("kind", sorted(_SENT.seen), ids=_name)
def test_a_frame_lost_once_with_its_connection_changes_no_end(kind: Kind) -> None:
    scenario = Scenario(Loss(kind, at=0))
    assert scenario.play(_SOON_S) == []
    assert scenario.outcome() == _OUTCOME


@pytest.mark.parametrize("kind", sorted(_SENT_TO_TWO_BROKERS.seen), ids=_name)
def test_nor_does_the_last_one_under_a_broker_that_dies(kind: Kind) -> None:
    """The last frame of its kind in the scenario, most of them to or from the second broker."""
    last = _SENT_TO_TWO_BROKERS.seen[kind] - 1
    scenario = Scenario(Loss(kind, at=last), _BROKER_DIES_S)
    assert scenario.play(_SOON_S) == []
    assert scenario.outcome() == _OUTCOME


def test_a_handover_that_the_worker_missed_survives_the_broker() -> None:
    """The first owner was told that its call is another client's; it does not cancel it later."""
    scenario = Scenario(Loss(("broker to worker", "Attach"), at=0), _BROKER_DIES_S)
    assert scenario.play(_SOON_S) == []
    assert scenario.outcome() == _OUTCOME


@pytest.mark.parametrize("from_s", _FROM_S)
@pytest.mark.parametrize("kind", sorted(set(_SENT.seen) - {_CREDIT}), ids=_name)
def test_a_kind_that_is_lost_for_ever_keeps_nothing(kind: Kind, from_s: float) -> None:
    """Every stream and query ends, well or in a failure, and no party holds anything."""
    assert Scenario(Loss(kind, from_s=from_s)).play(_END_S) == []


def test_without_any_credit_the_worker_ends_what_nobody_names() -> None:
    """Until then nothing tells it from a call whose reader takes its time."""
    scenario = Scenario(Loss(_CREDIT, from_s=0.65))
    assert any("slow reader" in problem for problem in scenario.play(60.0))
    (worker,) = (one for one in scenario.world.workers if one.core.calls.running_count)
    now_s = scenario.world.clock.now_s + DETACHED_S
    worker.perform(worker.core.on_tick(now_s, 0.0, {}))
    assert scenario.play(120.0) == []
    reason = scenario.readers["slow reader"].finishes[0].reason
    assert reason.failure is not None
    assert reason.failure.code == Code.TRANSPORT
