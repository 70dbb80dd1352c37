"""Reads the load that a worker reports with its heartbeat, and leaves out what has not its form.

A worker may report anything; the status document, the metrics page and the counters read what is
left. It does not know which figures there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, cast

from trunkline_protocol.counts import is_figure
from trunkline_protocol.printable import one_line

_MAX_ENTRIES: Final = 512  # of one map or list; a worker reports at most 256 routes
_MAX_DEPTH: Final = 3  # load → routes → one route → its histogram
_GONE: Final = object()


def read_load(load: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the figures, flags, names and histograms of a load.

    Args:
        load: a decoded map with text keys.

    Returns:
        Maps and lists of at most 512 entries, nested at most three deep. Numbers are finite, from
        0 to `MAX_COUNT`; texts are printable. Entries of another form are missing.
    """
    return cast("Mapping[str, Any]", _read(load, _MAX_DEPTH))


def _read(value: object, depth: int) -> object:
    if isinstance(value, bool) or is_figure(value):
        return value
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, Mapping) and depth >= 0:
        items = islice(cast("Mapping[str, object]", value).items(), _MAX_ENTRIES)
        read = ((one_line(key), _read(item, depth - 1)) for key, item in items)
        return {key: item for key, item in read if item is not _GONE}
    if isinstance(value, list | tuple) and depth >= 0:
        entries = [_read(item, depth - 1) for item in cast("list[object]", value)[:_MAX_ENTRIES]]
        return _GONE if any(entry is _GONE for entry in entries) else entries
    return _GONE
