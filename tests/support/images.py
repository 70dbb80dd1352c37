"""Small images of every type that is known."""

from __future__ import annotations

import struct
import zlib


def a_png(width: int, height: int, padding: int = 0) -> bytes:
    """Return a black picture, with so many bytes of incompressible text if wanted."""
    head = _png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    rows = b"".join(b"\x00" + bytes(3 * width) for _ in range(height)) if width < 10_000 else b""
    text = _png_chunk(b"tEXt", b"Comment\x00" + _noise(padding)) if padding else b""
    pixels = _png_chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + head + text + pixels + _png_chunk(b"IEND", b"")


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    crc = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def _noise(count: int) -> bytes:
    """Return bytes in which every part differs from every other."""
    return b"".join(struct.pack(">I", number) for number in range(count // 4 + 1))[:count]


def a_gif(width: int, height: int) -> bytes:
    """Return the beginning of a GIF."""
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(20)


def a_jpeg(width: int, height: int) -> bytes:
    """Return the beginning of a JPEG: an APP0 segment, a table and the frame."""
    app0 = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\x00" + bytes(9)
    table = b"\xff\xc4" + struct.pack(">H", 4) + bytes(2)
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + app0 + table + frame


def a_webp(kind: str, width: int, height: int) -> bytes:
    """Return the beginning of a WebP whose first chunk is of the given kind."""
    bodies = {
        "VP8 ": b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", width, height),
        "VP8L": b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14),
        "VP8X": bytes(4) + _u24(width - 1) + _u24(height - 1),
    }
    body = bodies.get(kind, bytes(10)) + bytes(8)
    chunk = kind.encode() + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


def _u24(value: int) -> bytes:
    return struct.pack("<I", value)[:3]
