"""Checks that turn one decoded MessagePack value into a field, or say what is wrong with it.

A check raises `ValueError` with text that names what was expected, never what was received
(a peer's bytes may be a secret). It knows nothing of frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Final, Generic, TypeVar, cast

from trunkline_protocol import ids, limits
from trunkline_protocol.printable import is_printable, one_line, readable

T = TypeVar("T")
MAX_UINT: Final = 2**63 - 1
RECOVERIES: Final = frozenset({"none", "policy"})
ROLES: Final = frozenset({"starting", "standby", "serving", "draining"})


def uint(value: object) -> int:
    """Accept an integer from 0 to 2^63 - 1."""
    if type(value) is int and 0 <= value <= MAX_UINT:
        return value
    raise ValueError("an integer from 0 to 2^63 - 1")


def number(value: object) -> float:
    """Accept a finite number of at least 0."""
    if type(value) in (int, float):
        as_float = float(cast("float", value))
        if math.isfinite(as_float) and as_float >= 0:
            return as_float
    raise ValueError("a finite number of at least 0")


def boolean(value: object) -> bool:
    """Accept true or false."""
    if isinstance(value, bool):
        return value
    raise ValueError("true or false")


def name(value: object) -> str:
    """Accept a short printable text; it may be empty."""
    if type(value) is str and len(value) <= limits.MAX_NAME_BYTES and is_printable(value):
        return value
    raise ValueError(f"a printable text of at most {limits.MAX_NAME_BYTES} characters")


def label(value: object) -> str:
    """Accept a short text for people; what could steer a terminal is replaced."""
    if type(value) is str and len(value) <= limits.MAX_NAME_BYTES:
        return one_line(value)
    raise ValueError(f"a text of at most {limits.MAX_NAME_BYTES} characters")


def text(value: object) -> str:
    """Accept a text for people; what could steer a terminal is replaced."""
    return readable(place(value))


def place(value: object) -> str:
    """Accept a path or an address, unchanged: a path need not be UTF-8."""
    if type(value) is str and len(value) <= limits.MAX_TEXT_BYTES:
        return value
    raise ValueError(f"a text of at most {limits.MAX_TEXT_BYTES} characters")


def binary(value: object) -> bytes:
    """Accept at most 64 bytes."""
    if type(value) is bytes and len(value) <= 64:
        return value
    raise ValueError("at most 64 bytes")


def _fixed(length: int) -> Callable[[object], bytes]:
    def check(value: object) -> bytes:
        if type(value) is bytes and len(value) == length:
            return value
        raise ValueError(f"exactly {length} bytes")

    return check


client_id = cast("Callable[[object], ids.ClientId]", _fixed(ids.CLIENT_ID_BYTES))
call_id = cast("Callable[[object], ids.CallId]", _fixed(ids.CALL_ID_BYTES))
stream_key = cast("Callable[[object], ids.StreamKey]", _fixed(ids.STREAM_KEY_BYTES))
query_id = cast("Callable[[object], ids.QueryId]", _fixed(ids.QUERY_ID_BYTES))
lease_id = cast("Callable[[object], ids.LeaseId]", _fixed(ids.LEASE_ID_BYTES))
route_name = cast("Callable[[object], ids.RouteName]", name)
pool_name = cast("Callable[[object], ids.PoolName]", name)
epoch = cast("Callable[[object], ids.Epoch]", uint)


def _choice(allowed: frozenset[str]) -> Callable[[object], str]:
    expected = "one of " + ", ".join(sorted(allowed))

    def check(value: object) -> str:
        if type(value) is str and value in allowed:
            return value
        raise ValueError(expected)

    return check


recovery = _choice(RECOVERIES)
role = _choice(ROLES)


def _items(value: object) -> list[Any] | tuple[Any, ...]:
    if isinstance(value, list | tuple):
        items = cast("list[Any] | tuple[Any, ...]", value)
        if len(items) <= limits.MAX_LIST_ENTRIES:
            return items
    raise ValueError(f"a list of at most {limits.MAX_LIST_ENTRIES} entries")


def _pair(value: object) -> tuple[int, int]:
    items = _items(value)
    if len(items) < 2:
        raise ValueError("a list of two integers")
    return uint(items[0]), uint(items[1])


def version(value: object) -> tuple[int, int]:
    """Accept [major, minor]."""
    return _pair(value)


def generation(value: object) -> ids.Generation:
    """Accept [epoch, number]."""
    first, second = _pair(value)
    return ids.Generation(ids.Epoch(first), second)


def names(value: object) -> tuple[str, ...]:
    """Accept a list of short texts."""
    return tuple(name(item) for item in _items(value))


def lease_ids(value: object) -> tuple[ids.LeaseId, ...]:
    """Accept a list of lease ids."""
    return tuple(lease_id(item) for item in _items(value))


_SCALARS: Final = frozenset({str, int, float, bool, bytes, type(None)})


def _plain(value: object, left: int) -> None:
    """Refuse what JSON readers downstream would stumble over: depth, keys, extension types."""
    if left < 0:
        raise ValueError(f"nested at most {limits.MAX_DEPTH} deep")
    if isinstance(value, dict):
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str:
                raise ValueError("a map with text keys")
            if type(item) not in _SCALARS or not left:
                _plain(item, left - 1)
    elif type(value) in (list, tuple):
        for item in cast("list[object]", value):
            _plain(item, left - 1)
    elif type(value) not in _SCALARS:
        raise ValueError("a map of plain values")


def mapping(value: object) -> Mapping[str, Any]:
    """Accept a map with text keys and plain values, nested at most `MAX_DEPTH` deep."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        _plain(items, limits.MAX_DEPTH)
        return items
    raise ValueError("a map with text keys")


def mappings(value: object) -> tuple[Mapping[str, Any], ...]:
    """Accept a list of maps."""
    return tuple(mapping(item) for item in _items(value))


_BY_TYPE: Final[dict[str, Callable[[object], Any]]] = {
    "int": uint,
    "str": name,
    "bool": boolean,
    "bytes": binary,
    "CallId": call_id,
    "ClientId": client_id,
    "LeaseId": lease_id,
    "StreamKey": stream_key,
    "RouteName": route_name,
}


class list_of(Generic[T]):  # noqa: N801  it reads as a function where it is used
    """A check for a list of positional entries of one dataclass; more fields may follow.

    Fields with a default came later; entries of older peers end before them.
    """

    def __init__(self, entry: Callable[..., T]) -> None:
        declared = fields(cast("Any", entry))
        self._entry = entry
        self._checks = tuple(_BY_TYPE[str(item.type)] for item in declared)
        self._required = sum(item.default is MISSING for item in declared)

    def __call__(self, value: object) -> tuple[T, ...]:
        """Accept a list of lists.

        Raises:
            ValueError: too many entries, an entry too short or with a wrong field.
        """
        return tuple(self._made(_items(item)) for item in _items(value))

    def _made(self, values: Sequence[object]) -> T:
        if len(values) < self._required:
            raise ValueError(f"a list of entries with {self._required} fields")
        # Longer entries are cut: the checks end the walk.
        return self._entry(*[test(part) for test, part in zip(self._checks, values, strict=False)])
