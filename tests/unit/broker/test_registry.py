"""Reading `REGISTRATIONS`, and putting them in force whole or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_broker.core.refusal import Refusal
from trunkline_broker.core.registry import Registry, read_offer
from trunkline_protocol.frames import Registrations
from trunkline_protocol.ids import Epoch, Generation, PoolName
from trunkline_protocol.retry_policy import DEFAULT_RETRY_POLICY

from tests.support.broker_rig import NORMAL, adapters

P, Q = PoolName("p"), PoolName("q")
ONE, TWO = Generation(Epoch(1), 1), Generation(Epoch(1), 2)
ENTRY = {"provider": "x", "displayName": "X", "settingsNs": "ns", "settingsPath": []}


def rows(**route: Any) -> Any:
    return ({"adapter": 1, "routes": [route]},)


def test_routes_capture_their_information_and_policy() -> None:
    """An absent policy is the normal default; an adapter may have no routes."""
    frame = Registrations(1, (*adapters("a", policy=NORMAL), *adapters("b", number=2)))
    offer = read_offer(frame)
    assert [(entry.key, entry.mark) for entry in offer.routes] == [("a", 1), ("b", 2)]
    first, second = (entry.value for entry in offer.routes)
    assert (first.id, first.name, first.policy_map) == ("a", "A", NORMAL)
    assert second.policy == DEFAULT_RETRY_POLICY
    assert second.policy_map == DEFAULT_RETRY_POLICY.to_dict()
    assert read_offer(Registrations(1, adapters())).routes == ()


@pytest.mark.parametrize(
    ("adapter_rows", "code"),
    [
        (({"routes": []},), "INVALID_ADAPTER"),
        (({"adapter": 1},), "INVALID_ADAPTER"),
        (({"adapter": 1, "routes": "x"},), "INVALID_ADAPTER"),
        (({"adapter": 1, "routes": [5]},), "INVALID_ADAPTER"),
        (rows(info=None), "INVALID_ADAPTER"),
        (rows(info={"id": "", "name": "N"}), "INVALID_ADAPTER"),
        (rows(info={"id": 1, "name": "N"}), "INVALID_ADAPTER"),
        (rows(info={"id": "x" * 300, "name": "N"}), "INVALID_ADAPTER"),
        (rows(info={"id": "x", "name": ""}), "INVALID_ADAPTER"),
        (rows(info={"id": "x"}), "INVALID_ADAPTER"),
        (rows(info={"id": "x", "name": "N"}, policy=5), "INVALID_ADAPTER"),
        (rows(info={"id": "x", "name": "N"}, policy={"mode": "no"}), "INVALID_ADAPTER"),
        (adapters("a", "a"), "DUPLICATE_ADAPTER"),
        ((*adapters("a"), *adapters("a", number=2)), "DUPLICATE_ADAPTER"),
    ],
)
def test_bad_registrations_are_refused(adapter_rows: Any, code: str) -> None:
    """With the code of the reference."""
    with pytest.raises(Refusal) as refused:
        read_offer(Registrations(1, adapter_rows))
    assert refused.value.code == code


def test_conflicts_between_pools() -> None:
    """Each kind of claim has its own code; a pool never conflicts with itself."""
    registry = Registry()
    full = read_offer(Registrations(1, adapters("a"), ({"entries": [ENTRY]},), ("ns",)))
    registry.check(P, full)
    assert registry.commit(P, ONE, full)
    registry.check(P, full)
    for frame, code in (
        (Registrations(1, adapters("b", "a")), "DUPLICATE_ADAPTER"),
        (Registrations(1, (), ({"entries": [ENTRY]},)), "DUPLICATE_DIRECTORY"),
        (Registrations(1, (), (), ("ns",)), "DUPLICATE_DISCOVERY"),
    ):
        with pytest.raises(Refusal) as refused:
            registry.check(Q, read_offer(frame))
        assert refused.value.code == code
    assert [key for key, _ in registry.routes] == ["a"]


def test_everything_of_a_worker_goes_together() -> None:
    """Suspended, taken over, dropped."""
    registry = Registry()
    full = read_offer(Registrations(1, adapters("a"), ({"entries": [ENTRY]},), ("ns",)))
    registry.commit(P, ONE, full)
    registry.suspend(ONE)
    assert all(not claim.holders for claim in (registry.routes.get("a"),) if claim)
    assert not registry.commit(P, TWO, full, instead_of=ONE)
    assert registry.drop(TWO)
    assert [*registry.routes, *registry.directory, *registry.discovery] == []
