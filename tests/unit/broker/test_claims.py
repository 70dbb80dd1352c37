"""Keys, their owners and holders, and the order of registration."""

from __future__ import annotations

from trunkline_broker.core.claims import Claims, Entry
from trunkline_protocol.ids import Epoch, Generation, PoolName

P, Q = PoolName("p"), PoolName("q")


def gen(number: int) -> Generation:
    return Generation(Epoch(1), number)


def entries(text: str, mark: int = 0) -> list[Entry[str]]:
    return [Entry(key, mark, key.upper()) for key in text]


def keys(claims: Claims[str]) -> str:
    return "".join(key for key, _ in claims)


def test_keys_have_one_owner_and_an_order() -> None:
    """Another pool may not claim a key; a replica may."""
    claims: Claims[str] = Claims()
    assert claims.put(P, gen(1), entries("ab"))
    assert claims.put(Q, gen(2), entries("c"))
    assert keys(claims) == "abc"
    assert claims.conflict(Q, "ca") == "a"
    assert claims.conflict(P, "ab") is None
    assert claims.conflict(P, "x") is None
    claim = claims.get("a")
    assert claim is not None
    assert (claim.owner, claim.value, dict(claim.holders)) == (P, "A", {gen(1): "A"})


def test_a_replica_changes_nothing_to_see() -> None:
    """Keys that another worker of the pool holds keep place and owner."""
    claims: Claims[str] = Claims()
    claims.put(P, gen(1), entries("ab"))
    assert not claims.put(P, gen(2), entries("ab"))
    claims.drop(gen(1))
    assert keys(claims) == "ab"
    assert claims.drop(gen(2))
    assert keys(claims) == ""
    assert not claims.drop(gen(2))


def test_replaced_registrations_go_to_the_end() -> None:
    """What stayed in order keeps its place; a moved or new mark goes to the end."""
    claims: Claims[str] = Claims()
    claims.put(P, gen(1), [*entries("ab", 1), *entries("c", 2)])
    claims.put(Q, gen(2), entries("z"))
    assert claims.put(P, gen(1), [*entries("c", 2), *entries("ba", 3)])
    assert keys(claims) == "czba"
    assert not claims.put(P, gen(1), [*entries("c", 2), *entries("ba", 3)])


def test_a_replacement_that_only_turns_its_routes_around_goes_to_the_end() -> None:
    """Its mark is another one, so that none of its keys counts as having stayed."""
    claims: Claims[str] = Claims()
    claims.put(P, gen(1), entries("ab", 1))
    claims.put(Q, gen(2), entries("c"))
    assert claims.put(P, gen(1), entries("ba", 2))
    assert keys(claims) == "cba"


def test_the_marks_of_a_process_that_was_taken_over_mean_nothing() -> None:
    claims: Claims[str] = Claims()
    claims.put(P, gen(1), entries("ab", 7))
    claims.put(Q, gen(2), entries("c"))
    claims.put(P, gen(3), entries("ab", 1), instead_of=gen(1))
    assert keys(claims) == "abc"


def test_a_takeover_exchanges_everything_in_one_step() -> None:
    """Keys the new worker lacks go, the others keep their place with the new value."""
    claims: Claims[str] = Claims()
    claims.put(P, gen(1), entries("ab"))
    claims.put(Q, gen(2), entries("z"))
    new = [Entry("a", 0, "new"), Entry("d", 0, "D")]
    assert claims.put(P, gen(3), new, instead_of=gen(1))
    assert keys(claims) == "azd"
    claim = claims.get("a")
    assert claim is not None
    assert dict(claim.holders) == {gen(3): "new"}
    assert claims.keys_of(gen(1)) == []
    assert claims.keys_of(gen(3)) == ["a", "d"]


def test_suspended_keys_wait_for_the_next_worker() -> None:
    """They stay owned without a holder, until they are taken over or dropped."""
    claims: Claims[str] = Claims()
    claims.put(P, gen(1), entries("ab"))
    claims.suspend(gen(1))
    claim = claims.get("a")
    assert claim is not None
    assert not claim.holders
    assert claims.conflict(Q, "a") == "a"
    claims.put(P, gen(2), entries("b"), instead_of=gen(1))
    assert keys(claims) == "b"
    claims.suspend(gen(9))


def test_of_two_suspended_replicas_one_may_give_up_a_key() -> None:
    """The other one's hold on it is gone then, without an error."""
    claims: Claims[str] = Claims()
    claims.put(P, gen(1), entries("a"))
    claims.put(P, gen(2), entries("a"))
    claims.suspend(gen(1))
    claims.suspend(gen(2))
    claims.put(P, gen(3), entries("b"), instead_of=gen(1))
    assert keys(claims) == "b"
    assert not claims.drop(gen(2))
