"""Which environment variables a worker gets: a basic few, and those its pool names.

An allow-list, so that a key in the broker's environment reaches only the worker that needs it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trunkline_broker.core.specs import PoolSpec
from trunkline_broker.regular_files import UnfitFileError, read_regular

MAX_FILE_BYTES: Final = 256 * 1024  # more than the kernel hands to a process

BASIC_NAMES: Final = (
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "VIRTUAL_ENV"),
    "TRUNKLINE_STRICT_LIVENESS",  # set by the tests of this project: a stalled stream is fatal
)

_OPTIONAL: Final = re.compile(r"(?i)_proxy$|^(SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE)$")


class EnvironmentFileError(Exception):
    """The file of variables of a pool can't be used; the text never holds a value."""


def worker_environment(spec: PoolSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a worker; names that are not set are left out.

    Raises:
        EnvironmentFileError: the pool's file can't be read or has a line without `=`.
    """
    chosen = {name: environ[name] for name in (*BASIC_NAMES, *spec.environment) if name in environ}
    if spec.env_file:
        chosen.update(read_environment_file(Path(spec.env_file)))
    chosen.setdefault("PYTHONUNBUFFERED", "1")  # so that last words are in the file when it dies
    return chosen


def missing_names(spec: PoolSpec, environ: Mapping[str, str]) -> list[str]:
    """Return the variables that a pool names and that are empty; those of proxies may well be."""
    return [
        name
        for name in spec.environment
        if not environ.get(name, "").strip() and not _OPTIONAL.search(name)
    ]


def read_environment_file(path: Path) -> dict[str, str]:
    """Read `NAME=value` lines; empty ones and those that begin with `#` are skipped.

    Raises:
        EnvironmentFileError: as above.
    """
    try:
        text = read_regular(path, MAX_FILE_BYTES).decode()
    except UnfitFileError as exc:
        raise EnvironmentFileError(f"{path} {exc.strerror}") from exc
    except (OSError, ValueError) as exc:  # ValueError: not UTF-8, or a name with NUL
        raise EnvironmentFileError(f"can't read {path}") from exc
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        name, separator, value = entry.partition("=")
        if not separator or not name.strip():
            raise EnvironmentFileError(f"{path}, line {number}: expected NAME=value")
        values[name.strip()] = _unquoted(value.strip())
        if "\0" in entry:
            raise EnvironmentFileError(f"{path}, line {number}: has a NUL character")
    return values


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value
