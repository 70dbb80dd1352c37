"""JSON values that cannot be changed: deep-frozen maps and lists that still are `dict` and `list`.

Subclasses instead of `MappingProxyType` and `tuple`, because they compare equal to the plain value
and pass `msgpack` and `json` as they are. They guard against mistakes, not against `dict.update`
called on the base class.
"""

from __future__ import annotations

from typing import NoReturn


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
    """Return a deep-frozen copy of a JSON value; other values pass as they are."""
    if isinstance(value, FrozenDict | FrozenList):
        return value
    if isinstance(value, dict):
        return FrozenDict({key: freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList([freeze(item) for item in value])
    return value


def thaw(value: object) -> object:
    """Return a deep copy made of plain `dict` and `list`."""
    if isinstance(value, dict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    return value
