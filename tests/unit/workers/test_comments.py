"""Comments taken out of an event stream, wherever its reads are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trunkline_workers.adapters.pydantic_ai.comments import CommentFilter

STREAM = b'data: {"a": ":"}\n\n: keep\n\ndata: :x\r\n:\r\n: last\n'


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_cuts_change_nothing(cuts: list[int]) -> None:
    """Colons inside a line are none of its business."""
    places = [0, *sorted(cuts), len(STREAM)]
    take = CommentFilter()
    kept = b"".join(take(STREAM[a:b]) for a, b in pairwise(places) if a < b)
    # A line end that is cut in two may leave its second half, an empty line.
    assert kept.replace(b"\r", b"").replace(b"\n\n\n", b"\n\n").rstrip(b"\n") == (
        b'data: {"a": ":"}\n\ndata: :x'
    )


@pytest.mark.parametrize("data", [b"data: 1\n\n", b"", b"x" * 9, b"a:b\r\n"])
def test_what_holds_no_comment_is_passed_on_as_it_is(data: bytes) -> None:
    assert CommentFilter()(data) is data
