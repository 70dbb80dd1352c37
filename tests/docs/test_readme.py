"""The README's example and configuration work as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from trunkline_broker.config import load

from tests.support.broker import running_broker
from tests.support.timing import SLOW

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.integration
def test_the_agent_runs(tmp_path: Path) -> None:
    """Twenty lines hold a conversation of two turns."""
    code = block("python")
    body = code.split("async def main() -> None:\n")[1].split("\n\n\nasyncio.run")[0]
    assert len([line for line in body.splitlines() if line.strip()]) <= 20
    program = tmp_path / "agent.py"
    program.write_text(code)
    with running_broker() as broker:
        broker.until_ready("scripted")
        done = subprocess.run(  # noqa: S603  # our own program
            [sys.executable, str(program)],
            env={**os.environ, "TRUNKLINE_ENDPOINT": broker.endpoint},
            capture_output=True,
            text=True,
            timeout=30 * SLOW,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[stop, TokenUsage(") == 2


def test_the_configuration_is_one(tmp_path: Path) -> None:
    """The example passes the checks of `trunkline up`."""
    path = tmp_path / "trunkline.toml"
    path.write_text(block("toml"))
    settings = load(path, {"HOME": str(tmp_path)})
    assert list(settings.workers) == list(tomllib.loads(block("toml"))["worker"])


def test_links_lead_somewhere() -> None:
    """Every relative link of the README and ARCHITECTURE names a file of the repository."""
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (ROOT / link).exists(), f"{name}: {link}"


def test_no_name_of_a_registry_or_of_this_machine() -> None:
    """Neither may stand in what is committed."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    command = [git, "ls-files", "-z"]
    listed = subprocess.run(  # noqa: S603  # a fixed command line
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    hosts = ("pypi" + ".org", "pythonhosted" + ".org", "/wor" + "k/main", "/wor" + "k/shared")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not [host for host in hosts if host in text], name
