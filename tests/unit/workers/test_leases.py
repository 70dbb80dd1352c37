"""Leases of prepared calls."""

from __future__ import annotations

import pytest
from trunkline_protocol.frames import HeldLease
from trunkline_protocol.ids import ClientId, LeaseId, QueryId
from trunkline_workers.core import leases as leases_module
from trunkline_workers.core.leases import LEASE_FOR_S, Leases

ONE, TWO = LeaseId(b"1" * 16), LeaseId(b"2" * 16)


def test_a_lease_gives_its_value_once() -> None:
    leases: Leases[str] = Leases()
    assert leases.grant(ONE, "call", 0.0)
    assert leases.ids() == (ONE,)
    assert leases.take(ONE, 1.0) == "call"
    assert leases.take(ONE, 1.0) is None
    assert leases.ids() == ()


def test_a_lease_runs_out() -> None:
    leases: Leases[str] = Leases()
    leases.grant(ONE, "call", 0.0)
    leases.grant(TWO, "other", 10.0)
    assert leases.take(ONE, LEASE_FOR_S) is None
    leases.grant(ONE, "call", 20.0)
    leases.on_tick(LEASE_FOR_S + 10.0)
    assert leases.ids() == (ONE,)


def test_how_long_a_lease_lasts_is_chosen() -> None:
    leases: Leases[str] = Leases(0.5)
    leases.grant(ONE, "call", 0.0)
    leases.grant(TWO, "other", 0.0)
    assert leases.renew(TWO, 0.4)
    assert leases.take(ONE, 0.5) is None
    assert leases.take(TWO, 0.8) == "other"


def test_a_released_lease_gives_nothing() -> None:
    leases: Leases[str] = Leases()
    leases.grant(ONE, "call", 0.0)
    leases.release(ONE)
    leases.release(ONE)
    assert leases.take(ONE, 0.0) is None
    leases.on_tick(1e6)


def test_leases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "MAX_LEASES", 1)
    leases: Leases[str] = Leases()
    assert leases.grant(ONE, "call", 0.0)
    assert not leases.grant(TWO, "call", 0.0)
    assert leases.ids() == (ONE,)


def test_a_lease_is_renewed_while_it_is_held() -> None:
    leases: Leases[str] = Leases()
    leases.grant(ONE, "call", 0.0)
    leases.grant(TWO, "other", 1.0)
    assert leases.renew(ONE, 30.0)
    leases.on_tick(LEASE_FOR_S + 1.0)
    assert leases.ids() == (ONE,)
    assert not leases.renew(TWO, LEASE_FOR_S + 1.0)
    assert not leases.renew(ONE, 30.0 + LEASE_FOR_S)
    assert leases.ids() == ()


def test_it_is_known_whose_a_lease_is() -> None:
    """As far as a broker has said; also after it was renewed."""
    client, leases = ClientId(b"c" * 16), Leases[str]()
    leases.grant(ONE, "call", 0.0, client)
    leases.grant(TWO, "other", 0.0)
    assert leases.renew(ONE, 1.0)
    assert leases.holders() == (HeldLease(ONE, client),)
    leases.release(ONE)
    assert leases.holders() == ()


def test_what_an_answer_granted_is_given_back() -> None:
    """And nothing else."""
    leases: Leases[str] = Leases()
    query, other = QueryId(b"q" * 16), QueryId(b"o" * 16)
    leases.grant(ONE, "call", 0.0, None, other)
    leases.grant(TWO, "call", 0.0, None, query)
    leases.release_of(query)
    leases.release_of(query)
    assert leases.ids() == (ONE,)


def test_the_processes_of_holders_are_known_as_far_as_they_were_said() -> None:
    leases, client, other = Leases[str](), ClientId(b"c" * 16), ClientId(b"o" * 16)
    leases.grant(ONE, "call", 0.0, client, None, 4242)
    leases.grant(TWO, "call", 0.0, other)
    assert leases.clients() == {client: 4242}
