"""Refuses values that no key of a configuration may have, before any key is looked at.

A file is data from outside. Depth, integers and texts are bounded here for all tables, also for the
options of adapters. Nothing else in the broker reads those. This file does not know any key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

MAX_DEPTH: Final = 32  # of tables and lists; what a worker gets must fit through a JSON parser
MAX_TEXT_CHARS: Final = 256 * 1024
_MOST_INTEGER: Final = 2**63 - 1  # as TOML has it

Path = tuple[str, ...]


def unfit_value(tree: Mapping[str, Any]) -> tuple[Path, str] | None:
    """Return the first value that cannot be used, as its path and what is wrong; `None`: all can.

    Args:
        tree: a whole configuration, as parsed.
    """
    for path, value in _values(tree):
        if wrong := _wrong_with(path, value):
            return path, wrong
    return None


def _values(tree: Mapping[str, Any]) -> Iterator[tuple[Path, object]]:
    """Yield every value and every key (under its own path), without recursion."""
    waiting: list[tuple[Path, object]] = [((), tree)]
    while waiting:
        path, value = waiting.pop()
        yield path, value
        if len(path) > MAX_DEPTH:
            continue
        if isinstance(value, dict):
            for key, item in cast("dict[str, object]", value).items():
                waiting.append(((*path, key), item))
        elif isinstance(value, list):
            items = cast("list[object]", value)
            waiting += [((*path, str(at)), item) for at, item in enumerate(items)]


def _wrong_with(path: Path, value: object) -> str:
    if len(path) > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels; make it flatter"
    if path and not _is_text(path[-1]):
        return "is not a key: it has a character that cannot be written as UTF-8"
    if isinstance(value, int) and not -_MOST_INTEGER - 1 <= value <= _MOST_INTEGER:
        return "is outside of the integers of 64 bits; write a smaller number"
    if not isinstance(value, str):
        return ""
    if len(value) > MAX_TEXT_CHARS:
        return f"has {len(value)} characters; at most {MAX_TEXT_CHARS} are allowed"
    if not _is_text(value):
        return "has a character that cannot be written as UTF-8; correct its encoding"
    is_option = "options" in path[:3]
    if not is_option and any(ord(char) < ord(" ") or ord(char) == _DELETE for char in value):
        return "has a control character; take it out"
    return ""


_DELETE: Final = 127


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from a variable that is not UTF-8
        return False
    return True
