"""What a client may ask for."""

from __future__ import annotations

from trunkline_broker.core.access import FULL, REMOTE, access_of, refusal
from trunkline_broker.core.specs import AccessSpec

NARROW = AccessSpec(frozenset({"a"}))
TABLE = {"narrow": NARROW}


def test_a_local_client_may_do_everything() -> None:
    assert access_of(TABLE, None) is FULL
    assert FULL.is_admin


def test_a_remote_client_has_what_its_table_says() -> None:
    assert access_of(TABLE, "narrow") is NARROW
    assert access_of(TABLE, "other") is REMOTE
    assert access_of({"": FULL}, "") is REMOTE
    assert not REMOTE.is_admin


def test_a_route_outside_the_table_is_refused_by_code() -> None:
    assert refusal(NARROW, "a") is None
    assert refusal(REMOTE, "b") is None
    refused = refusal(NARROW, "b")
    assert refused is not None
    assert refused.code == "FORBIDDEN"
