"""Every test that the page of guarantees names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(
    set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/guarantees.md").read_text()))
)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_guarantee_names_a_test_that_exists(file: str, name: str) -> None:
    """A renamed test takes its row along."""
    tree = ast.parse((ROOT / file).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, functions)}


def test_the_page_names_tests() -> None:
    """An expression that finds nothing proves nothing."""
    assert len(NAMED) > 25
