"""What the runbook tells one to do is what tests do; its checks are run by `test_monitoring`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "deploy" / "RUNBOOK.md").read_text(encoding="utf-8")
# Every command that changes something, and where it is shown to do what the runbook says of it.
SHOWN = {
    "trunkline up --detach": "tests/integration/test_cli.py::test_up_detached_and_down",
    "trunkline down": "tests/integration/test_cli.py::test_up_detached_and_down",
    "trunkline reload": "tests/integration/test_cli.py"
    "::test_reload_adds_changes_removes_and_leaves_alone",
    "trunkline restart": "tests/integration/test_cli.py"
    "::test_restart_exchanges_the_broker_and_keeps_the_workers",
    "trunkline swap NAME": "tests/integration/test_cli.py::test_swap_shows_both_processes",
    "trunkline swap": "tests/integration/test_cli.py::test_swap_shows_both_processes",
    "trunkline drain NAME": "tests/integration/test_cli.py::test_drain_and_swap_back",
    "trunkline keys worker NAME": "tests/integration/test_security.py"
    "::test_the_command_makes_keys_that_nobody_else_can_read",
    "kill -9": "tests/integration/test_streams_survive.py::test_a_killed_broker_costs_no_chunk",
    "systemctl --user start trunkline": "tests/docs/test_deploy.py::test_systemd_takes_the_units",
}
LOOKS = ("trunkline doctor", "trunkline status", "trunkline top", "trunkline logs")


def test_every_action_of_the_runbook_is_one_that_a_test_takes() -> None:
    """A command that is added here is added there."""
    told = set(re.findall(r"`((?:trunkline|kill|systemctl) [^`]+)`", RUNBOOK))
    actions = {line for line in told if not line.startswith(LOOKS)}
    assert actions == SHOWN.keys()


@pytest.mark.parametrize("place", sorted(set(SHOWN.values())))
def test_the_test_of_an_action_exists(place: str) -> None:
    file, _, name = place.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, functions)}
