"""`chaos.jsonl`: every process appends what it saw, one line a fact; the checker reads only that.

One short write to a file opened for appending: lines of several processes do not mix. Times are of
the monotonic clock, which all processes of one machine share.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Book:
    """Appends facts, and reads what others have appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._reader = path.open("rb")
        self._rest = b""

    def note(self, kind: str, **fields: Any) -> None:
        """Append one fact; `t` is now if it is not given."""
        line = {"k": kind, "t": time.monotonic(), **fields}
        self._file.write(json.dumps(line).encode() + b"\n")

    def news(self) -> list[dict[str, Any]]:
        """Return what was appended since the last time, by anybody."""
        parts = (self._rest + self._reader.read()).split(b"\n")
        self._rest = parts.pop()
        return [json.loads(part) for part in parts]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._reader.close()
