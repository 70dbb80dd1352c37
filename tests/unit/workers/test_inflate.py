"""Compressed bodies come in pieces of bounded size."""

from __future__ import annotations

import gzip
import zlib

import pytest
from trunkline_workers.inflate import PIECE_BYTES, InflateError, Inflater

TEXT = b"data: {}\n\n" * 50_000


def _raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(TEXT)),
        ("x-gzip", gzip.compress(TEXT)),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", _raw(TEXT)),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_the_body_comes_back_in_small_pieces(encoding: str, packed: bytes, step: int) -> None:
    """However it was cut, and however much a read stands for."""
    inflater = Inflater(encoding)
    pieces = [
        piece
        for at in range(0, len(packed), step)
        for piece in inflater.feed(packed[at : at + step])
    ]
    assert b"".join(pieces) == TEXT
    assert max(map(len, pieces)) <= PIECE_BYTES


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_not_compressed_is_refused(encoding: str) -> None:
    """Never a raw exception of the decompressor."""
    with pytest.raises(InflateError):
        list(Inflater(encoding).feed(b"\xff\xffplain text that is neither"))


def test_bytes_behind_the_end_are_dropped() -> None:
    """They belong to nobody."""
    inflater = Inflater("gzip")
    assert b"".join(inflater.feed(gzip.compress(b"x") + b"trailer")) == b"x"
    assert list(inflater.feed(b"more")) == []
