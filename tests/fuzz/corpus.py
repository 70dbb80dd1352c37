"""The smallest hostile frame for each thing that the decoder says, kept in `corpus.json`.

A new shape of refusal replaces nothing and a smaller frame replaces a larger one, so the corpus
grows only as far as the decoder has something new to say.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from trunkline_protocol.codec import Direction, decode
from trunkline_protocol.failure import RemoteProtocolError

from tests.fuzz.mutate import Parts

FILE: Final = Path(__file__).parent / "corpus.json"
_DETAIL: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
Key = tuple[str, str]


def verdict(parts: Parts, direction: Direction) -> str:
    """Return what the decoder makes of a frame: its class, or a refusal without its details."""
    try:
        frame = decode(parts, direction)
    except RemoteProtocolError as exc:
        return f"{exc.code}: {_DETAIL.sub('…', str(exc))}"
    return type(frame).__name__


class Corpus:
    """Frames by direction and verdict."""

    def __init__(self) -> None:
        self.entries: dict[Key, Parts] = {}
        if FILE.exists():
            for way, said, parts in json.loads(FILE.read_text()):
                self.entries[way, said] = [bytes.fromhex(part) for part in parts]

    def add(self, parts: Parts, direction: Direction) -> str:
        """Keep a frame if it is new or smaller; return its verdict."""
        said = verdict(parts, direction)
        key = (direction.name, said)
        known = self.entries.get(key)
        if known is None or _size(parts) < _size(known):
            self.entries[key] = list(parts)
        return said

    def minimize(self) -> None:
        """Make every frame as small as it can be with the same verdict."""
        for (way, said), parts in self.entries.items():
            self.entries[way, said] = _minimal(parts, Direction[way], said)

    def save(self) -> None:
        """Write the file."""
        rows = [
            [way, said, [part.hex() for part in parts]]
            for (way, said), parts in sorted(self.entries.items())
        ]
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        FILE.write_text(f"[\n{lines}\n]\n")


def _minimal(parts: Parts, direction: Direction, said: str) -> Parts:
    """Drop parts and bytes, the largest pieces first, as long as the verdict stays."""
    size = max((len(part) for part in parts), default=1)
    while size:
        for at in range(len(parts)):
            start = 0
            while start < len(parts[at]):
                shorter = parts[at][:start] + parts[at][start + size :]
                trial = [*parts[:at], shorter, *parts[at + 1 :]]
                if verdict(trial, direction) == said:
                    parts = trial
                else:
                    start += size
        size //= 2
    return parts


def _size(parts: Parts) -> int:
    return sum(map(len, parts)) + len(parts)
