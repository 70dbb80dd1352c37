"""What the attachment store holds, and what leaves it."""

from __future__ import annotations

import pytest
from trunkline_broker.core.attachments import AttachmentIndex
from trunkline_protocol.limits import MIN_ATTACHMENT_COST_BYTES as BLOCK

NOBODY: frozenset[str] = frozenset()


def an_index(*stored: tuple[str, int], blocks: int = 4) -> AttachmentIndex:
    """Return an index with stored attachments of so many blocks, the longest unused first."""
    index = AttachmentIndex(blocks * BLOCK)
    for name, size in stored:
        index.restore(name, size * BLOCK, is_stored=True)
    return index


def test_the_longest_unused_leave_until_there_is_room() -> None:
    """No more than needed, and not what was used since."""
    index = an_index(("a", 1), ("b", 1), ("c", 2))
    assert index.touch("a")
    assert index.announce("d", BLOCK, NOBODY) == ["b"]
    assert index.announce("e", 2 * BLOCK, NOBODY) == ["c"]
    assert index.names() == ["a", "d", "e"]
    assert index.used_bytes == index.bound_bytes


def test_small_ones_count_a_block() -> None:
    """So the number of files has a bound too."""
    index = an_index()
    for name in "abcd":
        assert index.announce(name, 1, NOBODY) == []
    assert index.announce("e", 1, NOBODY) == ["a"]


def test_what_calls_name_and_what_is_written_stays() -> None:
    """With nothing else to remove there is no room, and nothing has changed."""
    index = an_index(("a", 2), ("b", 1))
    index.announce("up", BLOCK, NOBODY)
    index.write("up")
    assert index.announce("c", 2 * BLOCK, {"a"}) is None
    assert index.names() == ["a", "b", "up"]
    assert index.announce("c", BLOCK, {"a"}) == ["b"]
    assert index.announce("huge", 5 * BLOCK, NOBODY) is None


def test_an_upload_goes_on_or_begins_anew() -> None:
    """Of the same total it keeps what it has; of another one, nothing."""
    index = an_index(blocks=8)
    index.announce("a", 3 * BLOCK, NOBODY)
    index.write("a")
    index.written("a", BLOCK, is_stored=False)
    assert index.announce("a", 3 * BLOCK, NOBODY) == []
    assert (index.get("a") or pytest.fail("lost")).received == BLOCK
    assert index.announce("a", 4 * BLOCK, NOBODY) == []
    assert (index.get("a") or pytest.fail("lost")).received == 0
    assert index.used_bytes == 4 * BLOCK


@pytest.mark.parametrize(("total", "received"), [(3, 2), (2, 2), (1, 0)])
def test_an_upload_found_at_the_start_goes_on(total: int, received: int) -> None:
    """Its total is whatever is said first, unless it has more than that."""
    index = an_index()
    index.restore("a", 2 * BLOCK, is_stored=False)
    assert (len(index), index.upload_count) == (1, 1)
    assert index.announce("a", total * BLOCK, NOBODY) == []
    assert (index.get("a") or pytest.fail("lost")).received == received * BLOCK
    assert index.used_bytes == total * BLOCK


def test_it_grows_only_if_others_leave_room() -> None:
    """It is never removed for itself."""
    index = an_index(("a", 2), blocks=3)
    index.restore("up", BLOCK, is_stored=False)
    assert index.announce("up", 3 * BLOCK, {"a"}) is None
    assert index.announce("up", 3 * BLOCK, NOBODY) == ["a"]


def test_shrinking_stops_at_the_bound_or_at_what_is_named() -> None:
    """For a store that was found larger than it may be."""
    index = an_index(("a", 2), ("b", 2), ("c", 2), ("d", 1))
    assert index.shrink({"a"}) == ["b", "c"]
    assert index.shrink(NOBODY) == []
    index.restore("e", 9 * BLOCK, is_stored=True)
    assert index.shrink({"a", "e"}) == ["d"]


def test_forgetting_and_touching_what_is_not_there() -> None:
    """Changes nothing."""
    index = an_index(("a", 1))
    index.drop("b")
    assert not index.touch("b")
    assert index.get("b") is None
    assert index.names() == ["a"]


@pytest.mark.parametrize("is_stored", [True, False])
def test_only_an_upload_at_rest_is_announced(is_stored: bool) -> None:
    """Anything else is a defect of the caller."""
    index = an_index()
    index.announce("a", 1, NOBODY)
    index.write("a")
    if is_stored:
        index.written("a", 1, is_stored=True)
    with pytest.raises(AssertionError):
        index.announce("a", 1, NOBODY)
