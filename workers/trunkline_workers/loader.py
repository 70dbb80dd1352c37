"""Finding an adapter by name: built in, by entry point, by `module:Class`, by `path/file.py:Class`.

What is found is a subclass of `LlmAdapter`, or a plugin: `async def setup(runtime, context)`, which
registers what it likes and may return a coroutine function that is called at the end.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, cast

from trunkline_workers.adapter import AdapterContext, LlmAdapter
from trunkline_workers.runtime import WorkerRuntime

BUILTIN: Final = {
    "scripted": "trunkline_workers.adapters.scripted.adapter:ScriptedAdapter",
    "local": "trunkline_workers.adapters.local.adapter:LocalAdapter",
    "chat_completions": (
        "trunkline_workers.adapters.chat_completions.adapter:ChatCompletionsAdapter"
    ),
    "pydantic_ai": "trunkline_workers.adapters.pydantic_ai.adapter:PydanticAiAdapter",
}
ENTRY_POINT_GROUP: Final = "trunkline.adapters"

Close = Callable[[], Awaitable[None]]
Setup = Callable[[WorkerRuntime, AdapterContext], Awaitable[Close | None]]


@dataclass(frozen=True, slots=True)
class Entry:
    """What was found: exactly one of the two is set."""

    adapter: type[LlmAdapter] | None = None
    setup: Setup | None = None


class AdapterNotFoundError(ValueError):
    """The name leads to no adapter; the text says how far it led."""


def load_entry(name: str) -> Entry:
    """Return the adapter class or the plugin of that name.

    Args:
        name: a built-in name, the name of an entry point of `trunkline.adapters`, `module:Class`,
            or `path/file.py:Class` (absolute, or relative to the working directory).

    Raises:
        AdapterNotFoundError: nothing is there, or it is neither an adapter nor a plugin.
        Exception: what importing the module raises.
    """
    where, attribute = target_of(name)
    module = import_file(Path(where)) if where.endswith(".py") else _module(where, name)
    found: Any = getattr(module, attribute, None)
    if inspect.iscoroutinefunction(found):
        return Entry(setup=cast("Setup", found))
    if isinstance(found, type) and issubclass(found, LlmAdapter):
        return Entry(adapter=found)
    raise AdapterNotFoundError(
        f"{where}:{attribute}: not a subclass of LlmAdapter and not an async function"
        if found is not None
        else f"{where} has no {attribute!r}"
    )


def target_of(name: str) -> tuple[str, str]:
    """Return the module, or the path of the file, and the name in it; nothing is imported.

    Raises:
        AdapterNotFoundError: no adapter has that name.
    """
    installed = {} if name in BUILTIN or ":" in name else entry_point_targets()
    target = BUILTIN.get(name) or installed.get(name) or name
    where, _, attribute = target.rpartition(":")
    if not where or not attribute:
        known = ", ".join(sorted({*BUILTIN, *installed}))
        raise AdapterNotFoundError(
            f"no adapter {name!r}; known: {known}; or module:Class, or path/file.py:Class"
        )
    return where, attribute


def entry_point_targets() -> dict[str, str]:
    """Return what installed packages offer: name to `module:attribute`."""
    return {each.name: each.value for each in entry_points(group=ENTRY_POINT_GROUP)}


def _module(where: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as exc:
        # Only the module itself or a package around it: a missing dependency shows as it is.
        if exc.name is not None and (where == exc.name or where.startswith(f"{exc.name}.")):
            raise AdapterNotFoundError(f"adapter {name!r}: no module {exc.name!r}") from exc
        raise


class _Beside(MetaPathFinder):
    """Finds one top-level module or package in one directory, and nothing else there."""

    def __init__(self, name: str, directory: Path) -> None:
        self._name = name
        self._directory = directory

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the one module; `None` for every other name."""
        if path is not None or fullname != self._name:
            return None
        return PathFinder.find_spec(fullname, [str(self._directory)], target)


def look_beside(name: str, directory: Path) -> None:
    """Let the module of an adapter be in a directory, such as that of its configuration.

    Only the module or package that is named is taken from there, and only if nothing installed has
    its name: another file there, as a `json.py`, stays out of every import.

    Args:
        name: as for `load_entry`, or of a module; built-in names and paths of files need nothing.
        directory: where it may be.
    """
    where = name.rpartition(":")[0] or name
    top = where.partition(".")[0]
    if name not in BUILTIN and not where.endswith(".py") and top.isidentifier():
        sys.meta_path.append(_Beside(top, directory))


class _FreshLoader(SourceFileLoader):
    """Compiles a file whenever it is imported.

    Bytecode that was kept of it is told from that of another text by size and second alone, so an
    adapter that is saved twice in a second could be started as it was at first.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Return what the file says now."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def import_file(path: Path) -> ModuleType:
    """Import a file: as a module of its package, if it is in one, else under a name of its own.

    Only the directory around a package is put on the path, behind everything else.

    Raises:
        AdapterNotFoundError: there is no such file.
        Exception: what importing it raises.
    """
    if not path.is_file():
        raise AdapterNotFoundError(f"no file {path}")
    root, name = path.absolute().parent, path.stem
    while (root / "__init__.py").is_file():
        root, name = root.parent, f"{root.name}.{name}"
    if "." in name:
        sys.path.append(str(root))
        return importlib.import_module(name)
    module_name = f"trunkline_adapter_{path.stem}"
    loader = _FreshLoader(module_name, str(path))
    spec = importlib.util.spec_from_file_location(module_name, path, loader=loader)
    if spec is None:
        raise AssertionError("a loader is given")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickles of it look themselves up here
    loader.exec_module(module)
    return module
