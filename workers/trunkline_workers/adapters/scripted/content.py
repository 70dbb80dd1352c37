"""Deterministic text: the reader can compute what must arrive, to the character.

Every piece begins with its number, so one that is lost, doubled or out of place changes the whole.
"""

from __future__ import annotations

import hashlib
from typing import Final

_WORDS: Final = (
    "a stream of small pieces runs through one long line and every piece bears its own number so "
    "that whoever reads them at the far end can tell that none is missing and none came twice "
)
_FILLER: Final = _WORDS * 400


def piece(number: int, chars: int, seed: int = 0) -> str:
    """Return piece `number`: exactly `chars` characters, the number first as far as it fits."""
    head = f"{number} "
    start = (seed * 31 + number * 7) % len(_WORDS)
    body = chars - len(head)
    if body <= 0:
        return head[:chars]
    if body <= len(_FILLER) - len(_WORDS):
        return head + _FILLER[start : start + body]
    return (head + _WORDS[start:] + _WORDS * (body // len(_WORDS) + 1))[:chars]


def whole(count: int, chars: int, seed: int = 0) -> str:
    """Return the pieces 0 to `count - 1` as one text."""
    return "".join(piece(number, chars, seed) for number in range(count))


def sha256(text: str) -> str:
    """Return the hexadecimal SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()
