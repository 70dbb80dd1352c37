"""Bodies cut anywhere: whole frames of AWS's event stream."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trunkline_workers.adapters.pydantic_ai.frames import Frames
from trunkline_workers.sse import MAX_EVENT_BYTES

from tests.support.event_stream import event

WHOLE = [event("messageStart", role="assistant"), event("x"), event("metadata", usage={})]
BODY = b"".join(WHOLE)
STREAM = b"data: 1\n\ndata: 22\r\n\r\n: c\r\revent: e\ndata: 333"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(data)]
    return [data[a:b] for a, b in pairwise(edges) if a < b]


@given(st.lists(st.integers(0, len(BODY)), max_size=12))
def test_frames_come_whole(places: list[int]) -> None:
    frames = Frames()
    assert [each for data in cut(BODY, places) for each in frames.feed(data)] == WHOLE


def test_a_large_frame_costs_what_it_weighs() -> None:
    """Sixteen thousand reads of one frame are joined once."""
    large = event("x", text="y" * (8 * 1024 * 1024))
    frames = Frames()
    reads = [large[at : at + 512] for at in range(0, len(large), 512)]
    assert [each for data in reads for each in frames.feed(data)] == [large]


@pytest.mark.parametrize("length", [0, 15, MAX_EVENT_BYTES + 1, 2**32 - 1])
def test_what_is_no_length_is_refused(length: int) -> None:
    """Before anything is kept for it."""
    with pytest.raises(ValueError, match="a frame of"):
        list(Frames().feed(length.to_bytes(4, "big")))
