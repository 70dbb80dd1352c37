"""`python -m trunkline_workers.sources NAME`: which files an adapter is made of, for `--watch`.

Asked of the interpreter of the worker, which alone knows where its modules are. Nothing of the
adapter is imported, so it answers for one that is broken too.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from trunkline_workers.loader import AdapterNotFoundError, look_beside, target_of

EXIT_FOUND: Final = 0
EXIT_NOTHING: Final = 2
_OUR_ADAPTERS: Final = "trunkline_workers.adapters."
_PACKAGE_FILE: Final = "__init__.py"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the code of an adapter is: single files, and folders with all Python files below."""

    files: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()


def adapter_sources(name: str) -> Sources:
    """Return the sources of an adapter, absolute; a file need not exist (yet).

    A module stands for its whole top-level package, and so does a file in a package: what an
    adapter imports from there changes it too.

    Args:
        name: as for `loader.load_entry`.

    Raises:
        AdapterNotFoundError: no adapter has that name, or its module is nowhere.
    """
    where, _ = target_of(name)
    if where.endswith(".py"):
        return _around(Path(where).absolute())
    if where.startswith(_OUR_ADAPTERS):
        folder = where.removeprefix(_OUR_ADAPTERS).partition(".")[0]
        return Sources(folders=(Path(__file__).parent / "adapters" / folder,))
    return _of_module(where, name)


def _around(file: Path) -> Sources:
    if not (file.parent / _PACKAGE_FILE).is_file():
        return Sources(files=(file,))
    root = file.parent
    while (root.parent / _PACKAGE_FILE).is_file():
        root = root.parent
    return Sources(folders=(root,))


def _of_module(module: str, name: str) -> Sources:
    name_so_far = ""
    for part in module.split("."):
        # Below the top only namespaces are looked into, and importing those runs no code.
        name_so_far = f"{name_so_far}.{part}".lstrip(".")
        spec = find_spec(name_so_far)
        if spec is None:
            break
        if spec.origin is not None:
            origin = Path(spec.origin).absolute()
            is_package = spec.submodule_search_locations is not None
            return Sources(folders=(origin.parent,)) if is_package else Sources(files=(origin,))
    raise AdapterNotFoundError(f"adapter {name!r}: no module {name_so_far!r}")


def main(arguments: Sequence[str]) -> int:
    """Write `{"files": [...], "folders": [...]}`; returns 2 if there is no such adapter."""
    parser = argparse.ArgumentParser(prog="python -m trunkline_workers.sources")
    parser.add_argument("name")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="where its module may be")
    given = parser.parse_args(arguments)
    name: str = given.name
    if given.beside is not None:
        look_beside(name, given.beside)
    try:
        found = adapter_sources(name)
    except (AdapterNotFoundError, ValueError) as exc:  # ValueError: a module without a spec
        sys.stderr.write(f"{exc}\n")
        return EXIT_NOTHING
    sys.stdout.write(
        json.dumps(
            {"files": [str(path) for path in found.files], "folders": [*map(str, found.folders)]}
        )
    )
    return EXIT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
