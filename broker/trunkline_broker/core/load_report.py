"""Reads the load that a worker reports with its heartbeat, and leaves out what has not its form.

A worker may report anything; the status document, the metrics page, the counters and `top` read
what is left. Figures that are not known here pass if they are numbers or flags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, cast

from trunkline_protocol.counts import is_count, is_figure
from trunkline_protocol.printable import one_line

_MAX_ENTRIES: Final = 512  # of one map; a worker reports at most 256 routes
_BINS: Final = 15  # of a histogram: the workers' 14 bounds and what is above the last
_HISTOGRAMS: Final = frozenset({"ttft", "gaps"})
_FLAGS: Final = frozenset({"debugPrompts"})
_GONE: Final = object()


def read_load(load: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the figures, flags and tables of a load.

    Args:
        load: a decoded map with text keys.

    Returns:
        Numbers are finite, from 0 to `MAX_COUNT`; `debugPrompts` is a flag. `counters` and `queues`
        are maps of numbers, `routes` a map of maps of numbers and of histograms (`ttft`, `gaps`).
        Maps have at most 512 entries and printable keys. Entries of another form are missing.
    """
    return _map(load, _entry)


def _map(given: Mapping[str, Any], read: Callable[[str, object], object]) -> dict[str, Any]:
    entries = islice(given.items(), _MAX_ENTRIES)
    found = ((one_line(key), read(key, value)) for key, value in entries)
    return {key: value for key, value in found if value is not _GONE}


def _entry(key: str, value: object) -> object:
    if key in _TABLES:
        return _map(cast("Any", value), _TABLES[key]) if isinstance(value, Mapping) else _GONE
    if key in _FLAGS:
        return value if isinstance(value, bool) else _GONE
    return _number(key, value)


def _number(_key: str, value: object) -> object:
    return value if is_figure(value) else _GONE


def _route(_key: str, value: object) -> object:
    return _map(cast("Any", value), _of_route) if isinstance(value, Mapping) else _GONE


def _of_route(key: str, value: object) -> object:
    if key not in _HISTOGRAMS:
        return _number(key, value)
    bins = list(cast("list[object]", value)) if isinstance(value, list | tuple) else []
    return bins if len(bins) == _BINS and all(map(is_count, bins)) else _GONE


_TABLES: Final[Mapping[str, Callable[[str, object], object]]] = {
    "counters": _number,
    "queues": _number,
    "routes": _route,
}
