"""`python -m trunkline_workers.check TARGET`: run the adapter contract and print a verdict.

The target leads to a subject: an async context manager named `contract_subject` in the module that
is named, in the module of the adapter that is named, or in a `contract` module beside it. With
`--load` the adapter is only found and imported, with `--worker` also made with the name and options
of a worker, as JSON on stdin: so `trunkline doctor` asks an interpreter whether it could serve.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from trunkline_workers.adapter import AdapterContext
from trunkline_workers.loader import (
    BUILTIN,
    AdapterNotFoundError,
    Entry,
    import_file,
    load_entry,
    look_beside,
)
from trunkline_workers.testing.checks import (
    BROKEN,
    HOLDS,
    NOT_SHOWN,
    Subject,
    Verdict,
    obligation,
    run_contract,
)

SUBJECT: Final = "contract_subject"
EXIT_HOLDS: Final = 0
EXIT_BROKEN: Final = 1
EXIT_NOTHING: Final = 2  # no adapter or no subject: nothing was checked
EXIT_OPTIONS: Final = 3  # the adapter is there and refuses the options of its worker
_MARKS: Final = {HOLDS: "holds", BROKEN: "BROKEN", NOT_SHOWN: "not shown"}

SubjectFactory = Callable[[], AbstractAsyncContextManager[Subject]]


class NoSubjectError(ValueError):
    """The target leads to nothing that could be checked; the text says how far it led."""


def find_subject(target: str) -> SubjectFactory:
    """Return the subject's factory for a target.

    Args:
        target: a module, `module:Class`, `path/file.py`, `path/file.py:Class`, or the name of an
            installed adapter.

    Raises:
        NoSubjectError: there is none.
        Exception: what importing the target raises.
    """
    looked: list[str] = []
    for module in _modules(target):
        looked.append(module.__name__)
        factory: Any = getattr(module, SUBJECT, None)
        if factory is not None:
            return factory
    where = ", ".join(looked) or target
    raise NoSubjectError(
        f"no {SUBJECT} in {where}; write one that yields a Subject (docs/adapters.md), or name the"
        " module that has it"
    )


def _modules(target: str) -> list[ModuleType]:
    """Return the modules that may hold the subject, the likeliest first."""
    if ":" not in target and target.endswith(".py"):
        return [_from_file(Path(target))]
    if ":" not in target and target not in BUILTIN:
        module = _module(target)
        if module is not None:
            return [module, *_beside(module)]
    entry = load_entry(target)
    found = _module_of(entry)
    return [found, *_beside(found)]


def _module_of(entry: Entry) -> ModuleType:
    thing: Any = entry.adapter or entry.setup
    return sys.modules[thing.__module__]


def _module(name: str) -> ModuleType | None:
    """Import a module; `None` if there is none of that name, though it may name an adapter."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            return None
        raise


def _beside(module: ModuleType) -> list[ModuleType]:
    """Return the `contract` module next to another one, if there is one."""
    package = module.__package__
    if package:
        found = _module(f"{package}.contract")
        return [] if found is None else [found]
    file = Path(module.__file__ or "")
    return [_from_file(path) for path in (file.with_name("contract.py"),) if path.is_file()]


def _from_file(path: Path) -> ModuleType:
    sys.path.append(str(path.parent.absolute()))  # what stands beside it, behind everything else
    return import_file(path)


async def judge(factory: SubjectFactory) -> list[Verdict]:
    """Open a subject and run every check on it."""
    async with factory() as subject:
        return await run_contract(subject)


def report(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts for people: a line for each obligation, and what they come to."""
    lines: list[str] = []
    for verdict in verdicts:
        lines.append(
            f"{verdict.number:>3}  {_MARKS[verdict.outcome]:<9}  {obligation(verdict.number)}"
        )
        if verdict.detail:
            lines.append(f"{'':16}{verdict.detail}")
    counts = {mark: sum(v.outcome == mark for v in verdicts) for mark in _MARKS}
    lines += [
        "",
        f"{counts[HOLDS]} of {len(verdicts)} obligations hold, {counts[BROKEN]} are broken,"
        f" {counts[NOT_SHOWN]} were not shown.",
    ]
    if counts[NOT_SHOWN] and not counts[BROKEN]:
        lines.append("What was not shown is not proven: give the subject a scenario for it.")
    return "\n".join(lines)


def load(target: str, worker: Mapping[str, Any]) -> None:
    """Find an adapter and make it, without opening it.

    Args:
        target: as in a worker's section.
        worker: `name` and `options` of the worker; empty: it is only found.

    Raises:
        AdapterNotFoundError: there is none.
        _OptionsError: it refuses the options.
        ImportError: a package that it needs is missing.
        Exception: what importing it raises.
    """
    adapter = load_entry(target).adapter
    if adapter is None or not worker:
        return
    context = AdapterContext(worker["name"], options=worker["options"], environ=os.environ)
    try:
        adapter.create(context)
    except ValueError as exc:
        raise _OptionsError(str(exc)) from exc


class _OptionsError(Exception):
    """The options of a worker are wrong; the text names the key and what is allowed."""


def main(arguments: Sequence[str]) -> int:
    """Check one target; returns 0 if nothing is broken, 1 if something is, 2 if nothing ran.

    With `--load --worker` 3 if the options are refused.
    """
    parser = argparse.ArgumentParser(prog="trunkline adapter check")
    parser.add_argument("target")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--beside", type=Path, metavar="DIR", help="where its module may be")
    given = parser.parse_args(arguments)
    if given.beside is not None:
        look_beside(given.target, given.beside)
    try:
        if given.load:
            load(given.target, json.load(sys.stdin) if given.worker else {})
            return EXIT_HOLDS
        verdicts = asyncio.run(judge(find_subject(given.target)))
    except _OptionsError as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_OPTIONS
    except (NoSubjectError, AdapterNotFoundError, ImportError) as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_NOTHING
    if given.json:
        rows = [{"number": v.number, "outcome": v.outcome, "detail": v.detail} for v in verdicts]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        sys.stdout.write(report(verdicts) + "\n")
    return EXIT_BROKEN if any(v.outcome == BROKEN for v in verdicts) else EXIT_HOLDS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
