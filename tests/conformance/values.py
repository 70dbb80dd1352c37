"""JSON of the vectors ↔ Python values, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNDEFINED: Final = object()
_NUMBERS: Final = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
    "-0": -0.0,
}


def decoded(value: object) -> object:
    """Put in what JSON lacks; keys that hold undefined go, as ECMAScript's JSON drops them."""
    if isinstance(value, Mapping):
        if set(value) == {"$num"}:
            return _NUMBERS[value["$num"]]
        if set(value) == {"$undefined"}:
            return UNDEFINED
        items = ((key, decoded(item)) for key, item in value.items())
        return {key: item for key, item in items if item is not UNDEFINED}
    if isinstance(value, list):
        return [decoded(item) for item in value]
    return value


def same(a: object, b: object) -> bool:
    """Compare JSON values: 1 equals 1.0, but no truth value equals a number."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    return type(a) is type(b) or {type(a), type(b)} <= {int, float} if a == b else False


def without_messages(value: object) -> object:
    """Drop the wording of failures, which the vectors leave free."""
    if isinstance(value, Mapping):
        return {
            key: _bare_failure(item) if key == "failure" else without_messages(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_messages(item) for item in value]
    return value


def _bare_failure(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: item for key, item in value.items() if key != "message"}
    return value
