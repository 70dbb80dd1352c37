"""Runs a directory of reference vectors: `python -m tests.conformance.runner DIR`.

Every `NAME.json` holds cases `{id, why, input, expected}`. The handler for NAME is looked up in the
modules of `tests/conformance/handlers/`, each of which exports `HANDLERS`, a map of names to
functions from input to result. For deviations that cover a kind of case rather than one id, a
module may export `PREDICATES`, functions from the input to a truth value, and `RESULTS`, functions
from our result to a truth value: what a case of that kind must come to instead.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import pkgutil
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.conformance import handlers
from tests.conformance.values import decoded, same, without_messages

Handler = Callable[[Any], object]
Predicate = Callable[[Any], bool]
Opener = Callable[[], contextlib.AbstractContextManager[Handler]]

DEVIATIONS: Final = Path(__file__).with_name("deviations.toml")
INFORMATIONAL: Final = ("[js-specific]", "[off-contract]")
_PREDICATE: Final = "predicate:"


@dataclass(frozen=True)
class Deviation:
    """One declared difference.

    Attributes:
        file: name of the vectors.
        match: an id or `predicate:NAME`.
        rule: what it follows instead.
        result: name of a check of our result; empty: any result.
    """

    file: str
    match: str
    rule: str
    result: str = ""


@dataclass
class FileReport:
    """What became of one file."""

    name: str
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    deviating: list[str] = field(default_factory=list)
    informational: int = 0
    agreeing: int = 0  # informational cases that match all the same

    def line(self) -> str:
        counts = f"{self.passed:5} passed {len(self.failures):4} failed"
        more = f" {len(self.deviating):4} deviating {self.informational:4} informational"
        return f"{self.name:15}{counts}{more} ({self.agreeing} of them agree)"


def load_modules() -> tuple[dict[str, Opener], dict[str, Predicate], dict[str, Predicate]]:
    """Collect handlers, predicates and result checks of all handler modules."""
    found: dict[str, Opener] = {}
    predicates: dict[str, Predicate] = {}
    results: dict[str, Predicate] = {}
    for info in pkgutil.iter_modules(handlers.__path__):
        module = importlib.import_module(f"{handlers.__name__}.{info.name}")
        openers = dict(getattr(module, "OPENERS", {}))
        for name, handler in getattr(module, "HANDLERS", {}).items():
            openers[name] = _always(handler)
        for name, opener in openers.items():
            if name in found:
                raise SystemExit(f"two handlers for {name}")
            found[name] = opener
        predicates.update(getattr(module, "PREDICATES", {}))
        results.update(getattr(module, "RESULTS", {}))
    return found, predicates, results


def _always(handler: Handler) -> Opener:
    """Return what opens a handler that needs nothing."""

    @contextlib.contextmanager
    def opened() -> Iterator[Handler]:
        yield handler

    return opened


def load_deviations(path: Path = DEVIATIONS) -> list[Deviation]:
    entries = tomllib.loads(path.read_text("utf-8")).get("deviation", [])
    return [Deviation(**entry) for entry in entries]


class Runner:
    """Runs files; knows handlers, predicates and declared deviations."""

    def __init__(self) -> None:
        self.handlers, self.predicates, self.results = load_modules()
        self.deviations = load_deviations()

    def run_file(self, path: Path) -> FileReport:
        report = FileReport(path.stem)
        declared = [each for each in self.deviations if each.file == path.stem]
        with self.handlers[report.name]() as handler:
            for case in json.loads(path.read_text("utf-8")):
                self._run_case(case, handler, declared, report)
        return report

    def _run_case(
        self,
        case: dict[str, Any],
        handler: Handler,
        declared: Sequence[Deviation],
        report: FileReport,
    ) -> None:
        given, expected = decoded(case["input"]), decoded(case["expected"])
        try:
            actual: object = without_messages(handler(given))
        # A handler that raises is a failed case, whatever it raises; the report shows it.
        except Exception as exc:  # noqa: BLE001
            actual = f"raised {exc!r}"
        agrees = same(actual, without_messages(expected))
        if case["why"].startswith(INFORMATIONAL):
            report.informational += 1
            report.agreeing += agrees
        elif agrees:
            report.passed += 1
        elif any(self._covers(each, case["id"], given, actual) for each in declared):
            report.deviating.append(f"{case['id']}: {case['why']}")
        else:
            report.failures.append(
                f"{case['id']}: {case['why']}\n    got      {_short(actual)}\n"
                f"    expected {_short(expected)}"
            )

    def _covers(self, deviation: Deviation, case_id: str, given: object, actual: object) -> bool:
        if deviation.result and not self.results[deviation.result](actual):
            return False
        if deviation.match.startswith(_PREDICATE):
            return self.predicates[deviation.match.removeprefix(_PREDICATE)](given)
        return deviation.match == case_id


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True, default=repr)
    return text if len(text) <= 1_000 else text[:1_000] + " …"


def run(directory: Path, required: Iterable[str], out: Callable[[str], None]) -> int:
    """Run a directory; returns the exit status."""
    runner = Runner()
    paths = sorted(directory.glob("*.json"))
    status = 0
    for path in paths:
        if path.stem not in runner.handlers:
            out(f"{path.stem:15} not run: no handler")
            status = 1 if path.stem in required else status
            continue
        report = runner.run_file(path)
        out(report.line())
        for failure in report.failures:
            status = 1
            out(f"  FAILED {failure}")
    for missing in sorted(set(required) - {path.stem for path in paths}):
        out(f"{missing:15} required, but there is no such file")
        status = 1
    if not paths:
        out(f"no vectors in {directory}")
        status = 1
    return status


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.runner")
    parser.add_argument("directory", type=Path, help="holds NAME.json files")
    parser.add_argument("--require", default="", help="names that must be run, with commas")
    options = parser.parse_args(arguments)
    required = [name for name in options.require.split(",") if name]
    return run(options.directory, required, print)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
