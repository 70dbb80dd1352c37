"""Read the `[worker.NAME.options]` table of an adapter: typed values, and errors that help.

Every error names the key, what is wrong with it and, for an unknown one, the keys there are. Pure.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from typing import cast

from trunkline_protocol.secret import SecretStr


class OptionsReader:
    """Take options one by one; `finish` refuses what nobody took."""

    def __init__(self, options: Mapping[str, object], prefix: str = "") -> None:
        self._options = options
        self._prefix = prefix
        self._known: list[str] = []

    def finish(self) -> None:
        """Refuse unknown keys.

        Raises:
            ValueError: there is a key that no option has; the text names the allowed ones.
        """
        for key in self._options:
            if key not in self._known:
                close = difflib.get_close_matches(key, self._known, 1)
                hint = f"; did you mean {close[0]}?" if close else ""
                allowed = ", ".join(sorted(self._known))
                raise ValueError(f"{self._prefix}{key}: unknown option{hint}; allowed: {allowed}")

    def raw(self, key: str) -> object:
        """Return a value as it is, `None` if it is absent."""
        self._known.append(key)
        return self._options.get(key)

    def fail(self, key: str, what: str) -> ValueError:
        """Return the error for a key."""
        return ValueError(f"{self._prefix}{key}: {what}")

    def text(self, key: str, default: str | None = None) -> str | None:
        """Return a text that is not empty."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, str) or not value:
            raise self.fail(key, "a text that is not empty is required")
        return value

    def choice(self, key: str, allowed: Collection[str], default: str | None = None) -> str | None:
        """Return one of some texts."""
        value = self.text(key, default)
        if value is not None and value not in allowed:
            raise self.fail(key, f"one of {', '.join(allowed)} is required, not {value}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, "true or false is required")
        return value

    def count(self, key: str, default: int | None = None) -> int | None:
        """Return a whole number above 0."""
        value = self.raw(key)
        if value is None:
            return default
        if type(value) is not int or value <= 0:
            raise self.fail(key, "a whole number above 0 is required")
        return value

    def seconds(self, key: str, default_s: float | None = None) -> float | None:
        """Return a number of milliseconds, finite and above 0, as seconds."""
        value = self.raw(key)
        if value is None:
            return default_s
        if type(value) not in {int, float} or not math.isfinite(cast("float", value)):
            raise self.fail(key, "a finite number of milliseconds is required")
        if cast("float", value) <= 0:
            raise self.fail(key, "a number of milliseconds above 0 is required")
        return cast("float", value) / 1000

    def table(self, key: str) -> dict[str, object]:
        """Return a table, an empty one if it is absent."""
        value = self.raw(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.fail(key, "a table is required")
        return dict(cast("Mapping[str, object]", value))

    def tables(self, key: str) -> list[dict[str, object]]:
        """Return a list of tables, an empty one if it is absent."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise self.fail(key, "a list of tables is required")
        items = cast("list[object]", value)
        if not all(isinstance(item, Mapping) for item in items):
            raise self.fail(key, "a list of tables is required")
        return [dict(cast("Mapping[str, object]", item)) for item in items]

    def secrets(self, key: str) -> dict[str, SecretStr]:
        """Return a table of texts that may be secrets, an empty one if it is absent."""
        table = self.table(key)
        if not all(isinstance(item, str) for item in table.values()):
            raise self.fail(key, "a table of texts is required")
        return {name: SecretStr(cast("str", item)) for name, item in table.items()}
