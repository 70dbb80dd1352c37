"""Frames of `vnd.amazon.eventstream`, written by hand from AWS's description of the format."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

_STRING = 7  # type of a header whose value is text


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return one frame: prelude and its checksum, headers, payload, checksum of all."""
    packed = b"".join(_header(name, value) for name, value in headers.items())
    prelude = struct.pack(">II", 16 + len(packed) + len(payload), len(packed))
    checked = prelude + struct.pack(">I", zlib.crc32(prelude)) + packed + payload
    return checked + struct.pack(">I", zlib.crc32(checked))


def event(kind: str, **fields: Any) -> bytes:
    """Return an event of a stream."""
    return _json("event", {":event-type": kind}, fields)


def exception(kind: str, message: str) -> bytes:
    """Return an exception, which ends a stream."""
    return _json("exception", {":exception-type": kind}, {"message": message})


def _json(message_type: str, headers: Mapping[str, str], fields: Mapping[str, Any]) -> bytes:
    named = {**headers, ":content-type": "application/json", ":message-type": message_type}
    return frame(named, json.dumps(fields).encode())


def _header(name: str, value: str) -> bytes:
    key, text = name.encode(), value.encode()
    return bytes([len(key)]) + key + bytes([_STRING]) + struct.pack(">H", len(text)) + text
