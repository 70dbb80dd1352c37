"""Frames that no honest peer sends: random bytes, and examples of real frames made wrong; pure."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgpack
from trunkline_protocol.codec import Direction, encode

from tests.support.golden import EXAMPLES, KEY, directions

Parts = list[bytes]
MAX_PART_BYTES: Final = 4096
_ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    0,
    2**53,
    2**63,
    2**64 - 1,
    -(2**63),
    float("nan"),
    float("inf"),
    "",
    "\0",
    "x" * 300,
    "\U0001f600",
    b"",
    b"\0" * 16,
    b"\xff" * 17,
    [],
    {},
    [[]],
    {"": {}},
    [1] * 40,
)


def seeds(direction: Direction) -> list[Parts]:
    """Return the examples of every kind that a side may send, encoded."""
    return [encode(frame) for frame in EXAMPLES if direction in directions(frame)]


def all_seeds() -> list[Parts]:
    """Return the examples of every kind."""
    return [encode(frame) for frame in EXAMPLES]


def hostile(rng: random.Random, mine: Sequence[Parts], others: Sequence[Parts]) -> Parts:
    """Return one multipart.

    Args:
        rng: what decides.
        mine: frames of the side that is played.
        others: frames of any side.
    """
    roll = rng.random()
    if roll < 0.15:
        return [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(1, 5))]
    base = rng.choice(others if roll < 0.25 else mine)
    parts = list(base)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        parts = rng.choice(_CHANGES)(rng, parts, mine)
    return [part[:MAX_PART_BYTES] for part in parts] or [b""]


def lane_frame(rng: random.Random) -> bytes:
    """Return what a hostile worker may send down the lane."""
    key = KEY if rng.random() < 0.3 else rng.randbytes(8)
    header = struct.pack(">QI", rng.choice((0, 1, 2**32, 2**64 - 1)), rng.randrange(2**32))
    body = cast("bytes", msgpack.packb([rng.choice(_ODD) for _ in range(rng.randrange(4))]))
    return rng.choice((key + header + body, key, rng.randbytes(rng.randrange(100)), b""))


def _flip(rng: random.Random, parts: Parts, _: Sequence[Parts]) -> Parts:
    at = rng.randrange(len(parts))
    changed = bytearray(parts[at])
    for _ in range(rng.choice((1, 1, 2, 8))):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    parts[at] = bytes(changed)
    return parts


def _cut(rng: random.Random, parts: Parts, _: Sequence[Parts]) -> Parts:
    at = rng.randrange(len(parts))
    parts[at] = parts[at][: rng.randrange(len(parts[at]) + 1)]
    return parts


def _drop(rng: random.Random, parts: Parts, _: Sequence[Parts]) -> Parts:
    if len(parts) > 1:
        del parts[rng.randrange(len(parts))]
    return parts


def _double(rng: random.Random, parts: Parts, _: Sequence[Parts]) -> Parts:
    at = rng.randrange(len(parts))
    return [*parts[:at], *[parts[at]] * rng.choice((2, 3, 40)), *parts[at + 1 :]]


def _splice(rng: random.Random, parts: Parts, mine: Sequence[Parts]) -> Parts:
    other = rng.choice(mine)
    return [parts[0], *other[1:]] if len(other) > 1 else [other[0], *parts[1:]]


def _value(rng: random.Random, parts: Parts, _: Sequence[Parts]) -> Parts:
    """Replace one value, or add one, inside a map of the frame."""
    at = rng.randrange(len(parts))
    try:
        value = msgpack.unpackb(parts[at], strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return _flip(rng, parts, ())
    if not isinstance(value, dict) or not value:
        return parts
    fields = cast("dict[Any, Any]", value)
    key = rng.choice([*fields, *fields, "unknown", 7])
    fields[key] = _nested(rng) if rng.random() < 0.1 else rng.choice(_ODD)
    if rng.random() < 0.1:
        del fields[rng.choice(list(fields))]
    parts[at] = cast("bytes", msgpack.packb(fields))
    return parts


def _nested(rng: random.Random) -> Any:
    value: Any = rng.choice(_ODD)
    for _ in range(rng.choice((3, 30, 100))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


_CHANGES: Final[tuple[Callable[[random.Random, Parts, Sequence[Parts]], Parts], ...]] = (
    _flip,
    _cut,
    _drop,
    _double,
    _splice,
    _value,
    _value,
    _value,
)
