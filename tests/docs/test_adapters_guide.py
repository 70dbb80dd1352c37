"""The adapter guide: its files and commands work as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from trunkline_broker.config import Document
from trunkline_workers.adapters.pydantic_ai.config import read_config
from trunkline_workers.adapters.pydantic_ai.profiles import PROFILES

from tests.support.broker import run_directory
from tests.support.timing import SLOW

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```\w+ file=(\S+)\n(.*?)```", GUIDE, re.DOTALL))
CONSOLES = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with the files of the guide."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(line: str, cwd: Path, run_dir: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run one line of a console, with the interpreter of the tests."""
    words = re.findall(r'"([^"]*)"|(\S+)', line)
    program, *arguments = [quoted or bare for quoted, bare in words]
    start = {"trunkline": ["-m", "trunkline_broker.cli.entry"], "python": []}[program]
    environ = {**os.environ, "TRUNKLINE_RUN_DIR": str(run_dir or cwd / "run"), "HOME": str(cwd)}
    return subprocess.run(  # noqa: S603  # the guide's own commands
        [sys.executable, *start, *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120 * SLOW,
        check=False,
    )


def lines(console: str) -> list[str]:
    return [line.removeprefix("$ ") for line in console.splitlines()]


@pytest.mark.integration
def test_the_first_adapter_answers(place: Path) -> None:
    """Twenty-five lines of code and three of configuration are a provider."""
    with run_directory() as home:
        up, chat, down = (run(line, place, home / "run") for line in lines(CONSOLES[0]))
    assert up.returncode == 0, up.stderr
    assert chat.stdout.strip() == "hello there", chat.stderr
    assert down.returncode == 0, down.stderr


@pytest.mark.integration
def test_the_scaffold_s_commands_work(tmp_path: Path) -> None:
    """As they stand there, one after the other."""
    new, enter, check, tests = lines(CONSOLES[1])
    assert run(new, tmp_path).returncode == 0
    home = tmp_path / enter.removeprefix("cd ")
    checked = run(check, home)
    assert "12 of 12 obligations hold" in checked.stdout, checked.stderr
    tested = run(f"{tests} -q -W ignore -p no:cacheprovider", home)
    assert "12 passed" in tested.stdout, tested.stdout


@pytest.mark.integration
def test_the_first_adapter_is_checked(place: Path) -> None:
    """What it can show holds, by the command and as tests."""
    (line,) = lines(CONSOLES[2])
    checked = run(line, place)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "0 are broken" in checked.stdout
    tested = run("python -m pytest -q -W ignore -p no:cacheprovider test_echo.py", place)
    assert tested.returncode == 0, tested.stdout
    assert "passed" in tested.stdout


def test_the_configurations_are_some() -> None:
    """Every section of the guide passes the checks of the broker, the options those of theirs."""
    for text in re.findall(r"```toml\n(\[worker.*?)```", GUIDE, re.DOTALL):
        tree = tomllib.loads(text)
        for section in tree["worker"].values():
            frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in section.items()}
            Document.model_validate({"worker": {"x": frozen}})
            if section["adapter"] == "pydantic_ai":
                assert read_config(section["options"]).name == section["options"]["profile"]


def test_the_table_of_profiles_is_the_code_s() -> None:
    """Each profile with the variable of its key and the extra that installs it."""
    row = re.compile(r"^\| `([a-z-]+)` \| .* \| `([A-Z_]+)`.* \| `([a-z-]+)` \|$", re.MULTILINE)
    rows = row.findall(GUIDE)
    assert {name: (key, extra) for name, key, extra in rows} == {
        name: (each.key_env, "bedrock" if each.extra == "bedrock" else "pydantic-ai")
        for name, each in PROFILES.items()
    }


def test_the_modules_of_the_guide_exist() -> None:
    """Names in its table lead to files."""
    table = GUIDE.split("| module | gives |")[1].split("\n\n")[0]
    for name in re.findall(r"`([a-z_.]+)`", table.replace("`Retry-After`", "")):
        base = ROOT / ("protocol" if name.startswith("trunkline_protocol") else "workers")
        path = name if "." in name else f"trunkline_workers.{name}"
        assert (base / f"{path.replace('.', '/')}.py").is_file(), name
