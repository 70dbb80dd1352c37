"""JSON values that cannot be changed: deep-frozen maps and lists that still are `dict` and `list`.

Subclasses instead of `MappingProxyType` and `tuple`, because they compare equal to the plain value
and pass `msgpack` and `json` as they are. They guard against mistakes, not against `dict.update`
called on the base class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn, cast

from trunkline_protocol.limits import MAX_BODY_DEPTH

_TOO_DEEP: Final = f"nested deeper than {MAX_BODY_DEPTH} levels"


def _refuse(*_args: object, **_kwargs: object) -> NoReturn:
    """Refuse every change."""
    raise TypeError("this value is frozen")


class FrozenDict(dict[str, object]):
    """A `dict` that refuses changes."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, object]]]:
        return FrozenDict, (dict(self),)


class FrozenList(list[object]):
    """A `list` that refuses changes."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse  # type: ignore[assignment]
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[FrozenList], tuple[list[object]]]:
        return FrozenList, (list(self),)


def freeze(value: object) -> object:
    """Return a deep-frozen copy of a JSON value; scalars pass as they are.

    Raises:
        ValueError: nested deeper than `MAX_BODY_DEPTH`, or it contains itself.
    """
    return _copied(value, FrozenDict, FrozenList, MAX_BODY_DEPTH)


def thaw(value: object) -> object:
    """Return a deep copy made of plain `dict` and `list`; tuples become lists.

    Raises:
        ValueError: nested deeper than `MAX_BODY_DEPTH`, or it contains itself.
    """
    return _copied(value, dict, list, MAX_BODY_DEPTH)


def _copied(
    value: object, map_type: type[dict[str, object]], list_type: type[list[object]], depth: int
) -> object:
    if isinstance(value, Mapping):
        if depth == 0:
            raise ValueError(_TOO_DEEP)
        items = cast("Mapping[str, object]", value).items()
        return map_type({key: _copied(item, map_type, list_type, depth - 1) for key, item in items})
    if isinstance(value, list | tuple):
        if depth == 0:
            raise ValueError(_TOO_DEEP)
        entries = cast("list[object]", value)
        return list_type([_copied(item, map_type, list_type, depth - 1) for item in entries])
    return value


def nests_deeper(value: object, levels: int) -> bool:
    """Tell whether maps and lists contain each other more than `levels` deep; a scalar is 0 deep.

    Level by level, so that nothing recurses here; a value that contains itself is too deep.
    """
    containers = _containers([value])
    for _ in range(levels):
        if not containers:
            return False
        containers = _containers(
            [
                entry
                for item in containers
                for entry in (item.values() if isinstance(item, dict) else item)
            ]
        )
    return bool(containers)


def _containers(values: list[object]) -> list[dict[object, object] | list[object]]:
    return [
        cast("dict[object, object] | list[object]", item)
        for item in values
        if isinstance(item, dict | list | tuple)
    ]
