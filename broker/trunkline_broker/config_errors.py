"""What is wrong with a configuration file, and in which line; values are never shown.

`tomllib` keeps no positions. The line of a key is found by parsing ever longer beginnings of the
file until the key appears, which needs no second TOML parser and is exact; it costs a moment, and
only where there is an error.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast, get_args

from pydantic import BaseModel, ValidationError

_MOST_MISTAKES: Final = 20  # that are told at once
_MOST_KEY_CHARS: Final = 120
_MOST_PARSED_CHARS: Final = 4 * 1024 * 1024  # to find lines; some seconds

_POSITION: Final = re.compile(r"\(at line (\d+), column (\d+)\)")


class ConfigError(Exception):
    """A configuration that can't be used; its text has one line per mistake.

    Attributes:
        file: the file, `None` for the built-in configuration or the environment.
        line: line of the first mistake, counted from 1; `None` if it has none.
        key: dotted key of the first mistake, empty if it has none.
    """

    def __init__(
        self, message: str, file: Path | None = None, line: int | None = None, key: str = ""
    ) -> None:
        self.file = file
        self.line = line
        self.key = key
        self.message = message
        super().__init__(_placed(message, file, line))


def syntax_error(exc: tomllib.TOMLDecodeError, file: Path, text: str) -> ConfigError:
    """Return what the parser says, with its line.

    What was opened and never closed is found by the parser at the end of the file only; the line
    is then that where it began.
    """
    found = _POSITION.search(str(exc))
    if found is not None:
        return ConfigError(str(exc), file, int(found[1]))
    message = str(exc).replace("(at end of document)", "(it begins here and has no end)")
    return ConfigError(message, file, _whole_lines(text) + 1)


def validation_error(
    exc: ValidationError,
    model: type[BaseModel],
    text: str,
    file: Path | None,
    overridden: Mapping[tuple[str, ...], str],
) -> ConfigError:
    """Return all mistakes, those of the file in its order.

    Args:
        exc: what pydantic found.
        model: what was checked.
        text: content of the file.
        file: the file; `None` for the built-in configuration.
        overridden: keys that came from the environment, with the variable of each.
    """
    mistakes: list[tuple[int, str, str]] = []
    errors = exc.errors(include_url=False, include_context=True, include_input=False)
    for error in errors[:_MOST_MISTAKES]:
        path = tuple(str(part) for part in error["loc"] if part != "[key]")
        key = shown_key(path)
        variable = _variable_of(path, overridden)
        line = None if variable else line_of(text, path)
        message = _said(error["type"], error["msg"], path, model)
        place = f" (from {variable})" if variable else ""
        mistakes.append((line or 0, key, message + place))
    mistakes.sort()
    first_line, first_key, _ = mistakes[0]
    texts = [_placed(message, file, line) for line, _, message in mistakes[1:]]
    if len(errors) > _MOST_MISTAKES:
        texts.append(f"and {len(errors) - _MOST_MISTAKES} more mistakes")
    return ConfigError("\n".join([mistakes[0][2], *texts]), file, first_line or None, first_key)


def shown_key(path: Sequence[str]) -> str:
    """Return a dotted key for people: bounded, and without what moves the cursor of a terminal."""
    key = ".".join(path)
    if len(key) > _MOST_KEY_CHARS:
        key = f"{key[:_MOST_KEY_CHARS]}…"
    return key if key.isprintable() else ascii(key)[1:-1]


def _variable_of(path: tuple[str, ...], overridden: Mapping[tuple[str, ...], str]) -> str:
    """Return the variable that set a key or what is around it; empty if none did."""
    beginnings = (path[:length] for length in range(len(path), 0, -1))
    return next((overridden[each] for each in beginnings if each in overridden), "")


def line_of(text: str, path: Sequence[str]) -> int | None:
    """Return the line in which a key begins, or the nearest table above it; `None` if neither."""
    for length in range(len(path), 0, -1):
        if (line := _line_of_exactly(text, path[:length])) is not None:
            return line
    return None


def _whole_lines(text: str) -> int:
    """Return how many lines the longest beginning has that is TOML; 0 if that takes too long."""
    lines = _Lines(text)
    return lines.whole_below(len(lines))


def _line_of_exactly(text: str, path: Sequence[str]) -> int | None:
    lines = _Lines(text)
    low, high = 0, len(lines)  # the key is not in the first `low` lines, and in the first `high`
    if not lines.has(high, path):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if lines.has(middle, path):
            high = middle
        else:
            low = middle
    return None if lines.is_exhausted else lines.whole_below(high - 1) + 1


class _Lines:
    """Beginnings of a text, parsed within a budget; beyond it nothing is found."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._left = _MOST_PARSED_CHARS

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def is_exhausted(self) -> bool:
        """Whether the budget is spent, so that answers cannot be believed."""
        return self._left <= 0

    def has(self, count: int, path: Sequence[str]) -> bool:
        """Return whether a key is in the longest beginning of so many lines that is TOML."""
        tree, _ = self._longest(count)
        return _has(tree, path)

    def whole_below(self, count: int) -> int:
        """Return how many of so many lines the longest beginning has that is TOML."""
        return self._longest(count)[1]

    def _longest(self, count: int) -> tuple[dict[str, Any], int]:
        for whole in range(count, 0, -1):
            beginning = "\n".join(self._lines[:whole])
            self._left -= len(beginning)
            if self.is_exhausted:
                break
            try:
                return tomllib.loads(beginning), whole
            except (ValueError, RecursionError):
                continue  # in the middle of a value
        return {}, 0


def _has(tree: Any, path: Sequence[str]) -> bool:
    here = tree
    for part in path:
        entries = _entries(here)
        if part not in entries:
            return False
        here = entries[part]
    return True


def _entries(value: Any) -> Mapping[str, Any]:
    """Return what is inside of a table or list by key or position."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    if isinstance(value, list):
        return {str(at): item for at, item in enumerate(cast("list[Any]", value))}
    return {}


def _said(kind: str, message: str, path: Sequence[str], model: type[BaseModel]) -> str:
    key = shown_key(path)
    if kind == "missing":
        return f"{key} is missing"
    if kind != "extra_forbidden":
        said = message.replace("valid tuple", "list").replace("valid dictionary", "table")
        return f"{key}: {said[:1].lower()}{said[1:]}"
    allowed = _keys_at(model, path[:-1])
    near = difflib.get_close_matches(path[-1][:_MOST_KEY_CHARS], allowed, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"unknown key {key}{hint}; allowed here: {', '.join(sorted(allowed))}"


def _keys_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Return the keys that a table may have, following the types of the models."""
    here: Any = model
    for part in path:
        section = _section(here)
        # Not a section: a dict of them, whose second type argument is the section.
        here = section.model_fields[part].annotation if section else get_args(here)[1]
    section = _section(here)
    return list(section.model_fields) if section else []


def _section(hint: Any) -> type[BaseModel] | None:
    return hint if isinstance(hint, type) and issubclass(hint, BaseModel) else None


def _placed(message: str, file: Path | None, line: int | None) -> str:
    place = str(file) if file is not None else "configuration"
    return f"{place}, line {line}: {message}" if line else f"{place}: {message}"
