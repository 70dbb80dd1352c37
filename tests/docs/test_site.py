"""The documentation site builds without a warning, and what stands on it works."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from trunkline_broker.config import load

from tests.support.broker import BrokerProcess, run_directory, running_broker
from tests.support.timing import SLOW

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.glob("*.md"))


def blocks(language: str, *names: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a language, with the page each stands on."""
    return [
        (name, block)
        for name in names
        for block in re.findall(
            rf"^```{language}\n(.*?)^```", (DOCS / name).read_text(), re.DOTALL | re.MULTILINE
        )
    ]


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the docs extra")
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(  # noqa: S603
        [*command, "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    for page in PAGES:
        folder = tmp_path / "site" / ("" if page.stem == "index" else page.stem)
        assert (folder / "index.html").is_file(), page.name
    operating = (tmp_path / "site" / "operating" / "index.html").read_text()
    assert "include:" not in operating
    assert "kubectl" in operating


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        assert f" {page.relative_to(DOCS)}\n" in text, page


@pytest.mark.parametrize(("name", "block"), blocks("toml", "index.md", "operating.md"))
def test_the_configurations_are_right(tmp_path: Path, name: str, block: str) -> None:
    included = re.match(r"<!-- include: (\S+) -->", block)
    path = tmp_path / "trunkline.toml"
    path.write_text((ROOT / included[1]).read_text() if included else block)
    load(path, {"HOME": str(tmp_path)})
    assert name


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker() as process:
        process.until_ready("scripted")
        yield process


@pytest.mark.integration
def test_the_first_steps_in_python_work(broker: BrokerProcess, tmp_path: Path) -> None:
    ((_, code),) = blocks("python", "index.md")
    program = tmp_path / "first.py"
    program.write_text(code)
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(program)],
        env={**os.environ, "TRUNKLINE_ENDPOINT": broker.endpoint},
        capture_output=True,
        text=True,
        timeout=30 * SLOW,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("stop\n")


@pytest.mark.integration
@pytest.mark.parametrize("page", ["index.md", "operating.md"])
def test_the_commands_of_a_page_work_one_after_the_other(page: str) -> None:
    """In an empty home, with the broker that they start themselves."""
    with run_directory() as root:
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE")
        }
        run = {"HOME": str(root), "XDG_CONFIG_HOME": str(root / "c"), "XDG_RUNTIME_DIR": str(root)}
        config = root / "scripted.toml"
        config.write_text('[worker.scripted]\nadapter = "scripted"\nproviders = ["scripted"]\n')
        run["TRUNKLINE_CONFIG"] = str(config)
        try:
            for _, block in blocks("sh", page):
                for line in block.splitlines():
                    program, *arguments = shlex.split(line)
                    assert program == "trunkline"
                    _command(root, environ | run, *arguments)
        finally:
            _command(root, environ | run, "down", "--drain", "0", is_wanted=False)


def _command(root: Path, environ: dict[str, str], *arguments: str, is_wanted: bool = True) -> None:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "trunkline_broker.cli.main", *arguments],
        cwd=root,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60 * SLOW,
        check=False,
    )
    assert done.returncode == 0 or not is_wanted, f"{arguments}: {done.stderr}"
