"""Every file of the reference vectors that has a handler passes; one test per file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance.runner import Runner, load_deviations, main

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("TRUNKLINE_SHARED", ROOT.parent / "shared"))
VECTORS = SHARED / "vectors"
RUNNER = Runner()

needs_vectors = pytest.mark.skipif(
    not VECTORS.is_dir(), reason=f"no reference vectors in {VECTORS}; set TRUNKLINE_SHARED"
)


@needs_vectors
@pytest.mark.parametrize("name", sorted(RUNNER.handlers))
def test_file_has_no_undeclared_difference(name: str) -> None:
    path = VECTORS / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"{path.name} is not among the vectors")
    report = RUNNER.run_file(path)
    assert not report.failures, "\n".join([report.line(), *report.failures])
    assert report.passed > 0


@needs_vectors
def test_every_deviation_quotes_a_rule_of_the_vectors() -> None:
    rules = " ".join((VECTORS / "README.md").read_text("utf-8").split())
    for deviation in load_deviations():
        assert " ".join(deviation.rule.split()) in rules


def test_every_predicate_of_a_deviation_exists() -> None:
    for deviation in load_deviations():
        if deviation.match.startswith("predicate:"):
            assert deviation.match.removeprefix("predicate:") in RUNNER.predicates


def test_every_result_check_of_a_deviation_exists() -> None:
    named = {deviation.result for deviation in load_deviations()} - {""}
    assert named <= RUNNER.results.keys()


def test_an_undeclared_difference_fails_the_run(tmp_path: Path) -> None:
    case = '[{"id": "x", "why": "wrong", "input": {"op": "userAgent"}, "expected": "nobody"}]'
    (tmp_path / "attribution.json").write_text(case, "utf-8")
    assert main([str(tmp_path)]) == 1


def test_an_informational_difference_passes(tmp_path: Path) -> None:
    case = '[{"id": "x", "why": "[js-specific] w", "input": {"op": "userAgent"}, "expected": 1}]'
    (tmp_path / "attribution.json").write_text(case, "utf-8")
    assert main([str(tmp_path)]) == 0


def test_a_file_without_handler_fails_only_if_required(tmp_path: Path) -> None:
    (tmp_path / "nobody.json").write_text("[]", "utf-8")
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path), "--require", "nobody"]) == 1
    assert main([str(tmp_path), "--require", "absent"]) == 1


def test_an_empty_directory_is_no_success(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 1
