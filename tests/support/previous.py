"""Peers as they were before fields were appended to frames: they neither send nor know them.

`python -m tests.support.previous ARGUMENT…` is such a worker process; `previous_codec` makes such a
client of this process for a while.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Final

from trunkline_protocol import codec, frames

APPENDED: Final[dict[type, tuple[str, ...]]] = {
    frames.Open: ("attachments", "traceparent"),
    frames.Start: ("attachments", "traceparent", "client_pid"),
    frames.Register: ("attachments", "lease_holders", "clients"),
    frames.Restate: ("queues",),
    frames.Query: ("client", "client_pid"),
}
_ENTRY_LENGTHS: Final = {frames.Restated: 7, frames.HeldCall: 7}
_whole_entry = codec._entry


@contextlib.contextmanager
def previous_codec() -> Iterator[None]:
    """Encode and decode in this process as the previous version did."""
    specs, directions = (
        dict(codec._SPECS),
        {way: dict(codec.DIRECTIONS[way]) for way in codec.Direction},
    )
    for kind, names in APPENDED.items():
        spec = codec._SPECS[kind]
        kept = tuple(field for field in spec.fields if field[0] not in names)
        assert len(kept) == len(spec.fields) - len(names)
        codec._SPECS[kind] = codec._FrameSpec(spec.frame, kept, spec.has_body)
    for way in codec.Direction:
        for name, spec in directions[way].items():
            codec.DIRECTIONS[way][name] = codec._SPECS[spec.frame]
    codec._entry = _short_entry
    try:
        yield
    finally:
        codec._entry = _whole_entry
        codec._SPECS.update(specs)
        for way in codec.Direction:
            codec.DIRECTIONS[way].update(directions[way])


def _short_entry(item: Any) -> list[Any]:
    return _whole_entry(item)[: _ENTRY_LENGTHS.get(type(item))]


if __name__ == "__main__":
    from trunkline_workers.__main__ import main

    with previous_codec():
        sys.exit(main(sys.argv[1:]))
