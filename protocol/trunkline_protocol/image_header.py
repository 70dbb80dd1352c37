"""Media type and pixel size of an image, read from its first bytes.

PNG, JPEG, GIF and WebP, which is what the providers take. It decodes no pixels and trusts no name:
only the bytes count. A rotation in the metadata of a JPEG changes nothing here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

HEAD_BYTES: Final = 32  # enough for `sniff_media_type`

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_SIZES: Final = range(1, 2**31)


class ImageFacts(NamedTuple):
    """What the bytes of an image say of it; width and height in pixels, 1 or more."""

    media_type: str
    width: int
    height: int


def sniff_media_type(head: bytes) -> str | None:
    """Return the media type that the first `HEAD_BYTES` bytes show; `None`: none of the four."""
    if head.startswith(_PNG):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return None


def read_image_header(data: bytes) -> ImageFacts | None:
    """Return media type and size of an image; `None` if the bytes are none of the four types.

    Args:
        data: the whole file, or so much of it that the size is in it (a JPEG may have it late).

    Raises:
        ValueError: the type is known, but its header is damaged, cut short, or says 0 pixels.
    """
    media_type = sniff_media_type(data[:HEAD_BYTES])
    if media_type is None:
        return None
    try:
        width, height = _READERS[media_type](data)
    except (struct.error, IndexError):
        raise ValueError(f"the header of this {media_type} is cut short") from None
    if width not in _SIZES or height not in _SIZES:
        raise ValueError(f"this {media_type} has a size of {width} x {height} pixels")
    return ImageFacts(media_type, width, height)


def _png(data: bytes) -> tuple[int, int]:
    """PNG, third edition, 11.2.1: the first chunk is IHDR."""
    length, kind, width, height = struct.unpack_from(">I4sII", data, len(_PNG))
    if kind != b"IHDR" or length != 13:
        raise ValueError("this image/png does not begin with its header")
    return width, height


def _gif(data: bytes) -> tuple[int, int]:
    """GIF89a, 18: the logical screen follows the signature."""
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


# ITU-T T.81, table B.1: start of frame, all of SOF0 to SOF15 but DHT, JPG and DAC.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length
_FILL: Final = 0xFF
_ENDS: Final = frozenset({0xD9, 0xDA})  # pixels or the end, and no frame before them


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        if data[at] != _FILL:
            raise ValueError("this image/jpeg is damaged: a marker is missing")
        while data[at] == _FILL:
            at += 1
        marker = data[at]
        at += 1
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 3)
            return width, height
        if marker in _ENDS:
            raise ValueError("this image/jpeg is damaged: it has no frame")
        if marker not in _ALONE:
            (length,) = struct.unpack_from(">H", data, at)
            if length < 2:
                raise ValueError("this image/jpeg is damaged: a segment without its length")
            at += length


def _webp(data: bytes) -> tuple[int, int]:
    """RFC 9649, 2.5 to 2.7: one of three kinds of first chunk."""
    kind = data[12:16]
    if kind == b"VP8X":
        return _u24(data, 24) + 1, _u24(data, 27) + 1
    if kind == b"VP8L":
        signature, bits = struct.unpack_from("<BI", data, 20)
        if signature != 0x2F:
            raise ValueError("this image/webp is damaged: its signature is missing")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        start, width, height = struct.unpack_from("<3sHH", data, 23)
        if start != b"\x9d\x01\x2a":
            raise ValueError("this image/webp is damaged: its start code is missing")
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError("this image/webp begins with an unknown chunk")


def _u24(data: bytes, at: int) -> int:
    low, high = struct.unpack_from("<HB", data, at)
    return high << 16 | low


_READERS: Final[dict[str, Callable[[bytes], tuple[int, int]]]] = {
    "image/png": _png,
    "image/gif": _gif,
    "image/jpeg": _jpeg,
    "image/webp": _webp,
}
IMAGE_TYPES: Final = frozenset(_READERS)
"""The media types that the bytes tell."""
