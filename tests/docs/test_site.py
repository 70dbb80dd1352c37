"""The documentation site builds without a warning, and what stands on it works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer
from trunkline_broker.cli.main import app
from trunkline_broker.config import load

from tests.support.broker import run_directory
from tests.support.interpreters import PYPROJECT
from tests.support.timing import SLOW

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.glob("*.md"))
PROSE = [*PAGES, *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md"))]
PROSE += [ROOT / "deploy" / name for name in ("README.md", "RUNBOOK.md")]
SCRIPTED = '[worker.scripted]\nadapter = "scripted"\nproviders = ["scripted"]\n'


def blocks(path: Path) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page in order: the words after the backticks, the text."""
    found = re.findall(
        r"^```([^\n]*)\n(.*?)^```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return [(words.strip(), text) for words, text in found]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site, built strictly."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(  # noqa: S603
        [*command, "--site-dir", str(place)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return place


def test_every_page_is_built_and_included_files_are_in(site: Path) -> None:
    for page in PAGES:
        folder = site / ("" if page.stem == "index" else page.stem)
        assert (folder / "index.html").is_file(), page.name
    for name, included in (("operating", "kubectl"), ("security", "Trust boundaries")):
        text = (site / name / "index.html").read_text()
        assert "include:" not in text
        assert included in text


def test_every_block_is_shown_as_one(site: Path) -> None:
    """A fence that the site does not know shows as text, and turns everything after it around."""
    for path in site.rglob("*.html"):
        assert "```" not in path.read_text(), path
    for page in PAGES:
        folder = site / ("" if page.stem == "index" else page.stem)
        shown = (folder / "index.html").read_text().count("<pre")
        assert shown >= len(blocks(page)), page.name


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    """No font, script, picture or style sheet; links are for people and may lead anywhere."""
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert not re.findall(r'<(?:script|img|iframe)[^>]* src="?(?:https?:)?//', text), path
        for link in re.findall(r"<link[^>]+>", text):
            is_load = re.search(r'rel="?(?:stylesheet|preload|preconnect|icon)', link)
            assert not (is_load and re.search(r'href="?(?:https?:)?//', link)), link
    for path in site.rglob("*.css"):
        assert not re.findall(r"url\((?:https?:)?//|@import", path.read_text()), path


def test_every_picture_is_there_and_is_described(site: Path) -> None:
    pictures = re.findall(r"!\[(.*?)\]\((\S+?)\)", (DOCS / "concepts.md").read_text())
    assert len(pictures) >= 6
    for words, name in pictures:
        assert len(words) > 20
        assert (site / name).is_file()


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        assert f" {page.relative_to(DOCS)}\n" in text, page


@pytest.mark.parametrize("name", ["index.md", "operating.md"])
def test_the_configurations_are_right(tmp_path: Path, name: str) -> None:
    texts = [text for words, text in blocks(DOCS / name) if words == "toml"]
    assert texts
    for text in texts:
        included = re.match(r"<!-- include: (\S+) -->", text)
        path = tmp_path / "trunkline.toml"
        path.write_text((ROOT / included[1]).read_text() if included else text)
        load(path, {"HOME": str(tmp_path)})


def test_the_glossary_has_every_word_of_the_protocol() -> None:
    """In its own words, for readers who do not read the specification."""
    spec = (ROOT / "protocol" / "trunkline_protocol" / "SPEC.md").read_text("utf-8")
    words = re.findall(r"\*\*(\w+)\*\*", spec.partition("Glossary\n")[2])
    assert len(words) > 20
    rows = re.findall(r"^\| ([^|]+) \|", (DOCS / "glossary.md").read_text("utf-8"), re.MULTILINE)
    assert set(words) <= {word for row in rows for word in row.split(", ")}


# --- what a page tells one to do -------------------------------------------------------------


@dataclass(slots=True)
class Reader:
    """Somebody who does what a page says, in an empty home.

    Attributes:
        home: where everything of this person is.
        environ: what `export` has added to.
        said: what the last command has written.
    """

    home: Path
    environ: dict[str, str] = field(default_factory=dict[str, str])
    said: str = ""

    def do(self, words: str, text: str) -> None:
        """Do what a block is for: run commands, save and run a program, write the configuration."""
        if words == "sh":
            for line in text.splitlines():
                self.run(line)
        elif words == "python":
            (self.home / "first.py").write_text(text)
            self._finish([sys.executable, "first.py"])
        elif words == "toml":
            (self.home / "trunkline.toml").write_text(text)

    def run(self, line: str) -> None:
        """Run one line of a shell."""
        program, *arguments = shlex.split(line)
        if program == "export":
            name, _, value = arguments[0].partition("=")
            self.environ[name] = value
            return
        assert program == "trunkline", line
        self._finish([sys.executable, "-m", "trunkline_broker.cli.entry", *arguments])

    def _finish(self, command: list[str], *, is_wanted: bool = True) -> None:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=self.home,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60 * SLOW,
            check=False,
        )
        assert done.returncode == 0 or not is_wanted, f"{command}: {done.stdout}{done.stderr}"
        self.said = done.stdout

    def leave(self) -> None:
        """End whatever broker runs."""
        command = [sys.executable, "-m", "trunkline_broker.cli.entry", "down", "--drain", "0"]
        self._finish(command, is_wanted=False)


@pytest.fixture
def reader() -> Iterator[Reader]:
    """Yield a reader whose configuration, until a page says another, is a scripted provider."""
    with run_directory() as home:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        places = {"XDG_CONFIG_HOME": home / "c", "XDG_STATE_HOME": home / "s"}
        environ = {**kept, "HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        environ |= {name: str(path) for name, path in places.items()}
        # The built-in configuration would load a model, if one is installed here.
        (home / "trunkline.toml").write_text(SCRIPTED)
        someone = Reader(home, environ)
        try:
            yield someone
        finally:
            someone.leave()


@pytest.mark.integration
def test_the_first_five_minutes(reader: Reader) -> None:
    """Every block of the page, one after the other; installing is tried by `make release`."""
    said: list[str] = []
    for words, text in blocks(DOCS / "index.md"):
        reader.do(words, text)
        said.append(reader.said)
    told = "\n".join(said)
    assert "\nstop\n" in told  # of the program
    assert "deepseek" in said[-2]  # of `trunkline status`


@pytest.mark.integration
def test_the_commands_of_the_operating_page(reader: Reader) -> None:
    for words, text in blocks(DOCS / "operating.md"):
        if words == "sh":
            reader.do(words, text)


@pytest.mark.integration
def test_the_keys_of_the_kubernetes_guide_are_made_where_kubectl_is_told(reader: Reader) -> None:
    """Each file that it reads is there after the commands before it."""
    (block,) = (text for _, text in blocks(ROOT / "deploy" / "README.md") if "kubectl" in text)
    lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
    for line in lines:
        if line.startswith("trunkline "):
            reader.run(line)
    (keys,) = (line.removeprefix("K=~/.config") for line in lines if line.startswith("K="))
    directory = reader.home / "c" / keys.strip("/")
    for source in re.findall(r"--from-file=(?:[\w.-]+=)?(\S+)", block):
        path = Path(source.replace("$K", str(directory)))
        assert (reader.home / path).exists(), source
    for folder in ("clients", "workers"):
        assert list((directory / folder).glob("*.pub"))


def test_what_the_guides_install_can_be_installed() -> None:
    """Extras that they name are there."""
    extras = PYPROJECT["project"]["optional-dependencies"]
    for path in PROSE:
        for names in re.findall(r"(?:trunkline|'\.)\[([a-z0-9,-]+)\]", path.read_text("utf-8")):
            assert set(names.split(",")) <= extras.keys(), f"{path.name}: {names}"


def test_the_readme_names_every_extra_for_users() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"].keys() - {"dev", "docs", "bench"}
    (line,) = re.findall(r"^Extras: .*$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"`([a-z0-9-]+)`", line)) == extras


def commands_in(path: Path) -> list[str]:
    """Return the `trunkline …` commands of a page, those in the text and those in blocks."""
    text = path.read_text("utf-8")
    found = re.findall(r"`(trunkline(?: [^`\n]+)?)`", text)
    for _, block in blocks(path):
        found += re.findall(r"^(?:\$ )?(trunkline [^#\n]+?)(?:  +.*)?$", block, re.MULTILINE)
    return found


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_and_option_of_a_page_exists(path: Path) -> None:
    """Also those in the middle of a sentence."""
    root: Any = typer.main.get_command(app)
    for line in commands_in(path):
        command = root
        for word in re.split(r"[ ,=]+", line.replace("[", "").replace("]", ""))[1:]:
            below = getattr(command, "commands", None)
            if word.startswith("-"):
                options = {name for each in command.params for name in each.opts} | {"--help"}
                assert word in options, f"{path.name}: {line}"
            elif below is not None and word != "COMMAND":
                assert word in below, f"{path.name}: {line}"
                command = below[word]


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_target_of_make_that_a_page_names_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = path.read_text("utf-8")
    named = re.findall(r"`make ([a-z-]+)", text) + re.findall(
        r"^make ([a-z-]+)", text, re.MULTILINE
    )
    assert set(named) <= targets


def test_the_first_page_names_the_oldest_python() -> None:
    """What is said of the oldest Python is what the distribution says."""
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f"Python {oldest.removeprefix('>=')} or newer" in (DOCS / "index.md").read_text()
