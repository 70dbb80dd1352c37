"""Keys that the environment sets instead of the file: of `[broker]` and of each `[worker.NAME]`.

Values are read as TOML; what is none (a word, a path) is text as it stands. It knows no models, so
a wrong value is found where all values are checked.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

BROKER_PREFIX: Final = "TRUNKLINE_BROKER_"  # TRUNKLINE_BROKER_DRAIN_S=5 sets [broker] drain_s
WORKER_PREFIX: Final = (
    "TRUNKLINE_WORKER_"  # TRUNKLINE_WORKER_MY_POOL_REPLICAS=2: of [worker.my-pool]
)

Path = tuple[str, ...]
"""Of a key: `("broker", "drain_s")`, `("worker", "local", "replicas")`."""


@dataclass(frozen=True, slots=True)
class Variables:
    """What can be set, by variable.

    Attributes:
        paths: the key that each possible variable sets; of two workers whose names differ only in
            `-` and `_` both.
    """

    paths: Mapping[str, tuple[Path, ...]]

    def set_by(self, environ: Mapping[str, str]) -> dict[Path, str]:
        """Return the keys that an environment sets, with the variable of each."""
        found = ((name, self.paths[name]) for name in self.paths if name in environ)
        return {path: name for name, paths in found for path in paths}

    def unknown(self, environ: Mapping[str, str]) -> Iterator[str]:
        """Yield in words each variable that looks like one of these and is none."""
        for name in environ:
            if name.startswith((BROKER_PREFIX, WORKER_PREFIX)) and name not in self.paths:
                near = difflib.get_close_matches(name, self.paths, 1)
                hint = f" (did you mean {near[0]}?)" if near else ""
                where = "[broker]" if name.startswith(BROKER_PREFIX) else "a [worker.NAME]"
                yield f"{name} is set and names no key of {where}{hint}"


def variables(
    broker_keys: Collection[str], worker_keys: Collection[str], workers: Collection[str]
) -> Variables:
    """Return the variables of a configuration with these workers."""
    paths: dict[str, tuple[Path, ...]] = {
        BROKER_PREFIX + key.upper(): (("broker", key),) for key in broker_keys
    }
    for worker in workers:
        prefix = f"{WORKER_PREFIX}{worker.replace('-', '_')}_".upper()
        for key in worker_keys:
            name = prefix + key.upper()
            paths[name] = (*paths.get(name, ()), ("worker", worker, key))
    return Variables(paths)


def with_overrides(
    tree: Mapping[str, Any], found: Mapping[Path, str], environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return a configuration with the keys that the environment sets.

    Args:
        tree: the file; tables of a wrong type stay as they are, for the check to find.
        found: from `Variables.set_by`.
        environ: where the values are.
    """
    whole = dict(tree)
    for path, variable in found.items():
        table: Any = whole
        for part in path[:-1]:
            inner = table.get(part, {})
            if not isinstance(inner, dict):
                break
            table[part] = dict(cast("dict[str, Any]", inner))
            table = table[part]
        else:
            table[path[-1]] = _value(environ[variable])
    return whole


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # not a number, boolean, list or quoted text: the text itself
