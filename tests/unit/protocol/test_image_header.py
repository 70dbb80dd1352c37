"""Sizes of images from their first bytes."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trunkline_protocol.image_header import ImageFacts, read_image_header, sniff_media_type

from tests.support.images import a_gif, a_jpeg, a_png, a_webp


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (a_png(300, 7), "image/png"),
        (a_gif(300, 7), "image/gif"),
        (a_jpeg(300, 7), "image/jpeg"),
        (a_webp("VP8 ", 300, 7), "image/webp"),
        (a_webp("VP8L", 300, 7), "image/webp"),
        (a_webp("VP8X", 300, 7), "image/webp"),
    ],
)
def test_type_and_size(data: bytes, media_type: str) -> None:
    """Each kind gives its own type and width before height; cut short it is an error, no guess."""
    assert read_image_header(data) == ImageFacts(media_type, 300, 7)
    assert sniff_media_type(data[:32]) == media_type
    with pytest.raises(ValueError, match=media_type):
        read_image_header(data[:9] if media_type == "image/gif" else data[:17])


def test_a_png_that_others_decode() -> None:
    """The factory makes real images: the pixels of this one can be unpacked."""
    data = a_png(2, 3)
    packed = data[data.index(b"IDAT") + 4 :]
    assert len(zlib.decompressobj().decompress(packed)) == 3 * (1 + 2 * 3)


def test_a_jpeg_says_its_size_late() -> None:
    """Metadata, fill bytes and markers without a length come before the frame."""
    plain = a_jpeg(640, 480)
    metadata = b"\xff\xe1" + struct.pack(">H", 60_000) + bytes(59_998)
    assert read_image_header(plain[:2] + metadata + b"\xff\xff\xff\x01" + plain[2:]) == ImageFacts(
        "image/jpeg", 640, 480
    )


@pytest.mark.parametrize(
    "data",
    [
        a_png(0, 7),
        a_png(2**31, 7),
        a_png(3, 7).replace(b"IHDR", b"IDAT"),
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8\xff\xe0\x00\x01",
        b"\xff\xd8\xff\xe0\x00\x02\x00",
        a_webp("VP8L", 3, 7).replace(b"\x2f", b"\x00"),
        a_webp("VP8 ", 3, 7).replace(b"\x9d\x01\x2a", b"\x00\x00\x00"),
        a_webp("ALPH", 3, 7),
    ],
)
def test_a_damaged_header_is_an_error(data: bytes) -> None:
    """A known type with an impossible header is never given a size."""
    with pytest.raises(ValueError, match=r"image/(png|jpeg|webp)"):
        read_image_header(data)


def test_other_files_are_none_of_them() -> None:
    """What is unknown is said to be unknown."""
    for data in (b"", b"%PDF-1.7", b"<svg/>", b"RIFF\x00\x00\x00\x00WAVE"):
        assert read_image_header(data) is None


@given(
    st.sampled_from(
        [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\0\0\0\0WEBPVP8 "]
    ),
    st.binary(max_size=64),
)
def test_any_bytes_give_facts_or_an_error(head: bytes, rest: bytes) -> None:
    """Nothing but `ValueError` is raised, and a size is never below 1."""
    try:
        facts = read_image_header(head + rest)
    except ValueError:
        return
    assert facts is None or min(facts.width, facts.height) >= 1
