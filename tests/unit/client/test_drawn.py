"""Ids from one seed."""

from __future__ import annotations

from trunkline.core.drawn import SEED_BYTES, DrawnIds


def test_ids_have_their_sizes_and_never_repeat() -> None:
    """Whatever kind is drawn, in whatever order."""
    drawn = DrawnIds(bytes(SEED_BYTES))
    seen: set[object] = set()
    for _ in range(200):
        call, query, key, nonce = (
            drawn.call_id(),
            drawn.query_id(),
            drawn.stream_key(),
            drawn.nonce(),
        )
        assert (len(call), len(query), len(key)) == (16, 16, 8)
        assert 0 <= nonce < 2**62
        seen |= {call, query, key, nonce}
    assert len(seen) == 800


def test_another_seed_gives_other_ids() -> None:
    """And the same one the same: the core draws nothing itself."""
    one, same, other = DrawnIds(bytes(32)), DrawnIds(bytes(32)), DrawnIds(b"x" * 32)
    first = one.call_id()
    assert first == same.call_id()
    assert first != other.call_id()
