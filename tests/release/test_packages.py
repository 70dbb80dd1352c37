"""Wheel and sdist, installed into clean environments of every Python; by hand (`make release`)."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trunkline_protocol.version import __version__

from tests.support.broker import broker_in, run_directory
from tests.support.interpreters import PYPROJECT, VARIABLE, interpreter, promised

pytestmark = pytest.mark.release
ROOT = Path(__file__).resolve().parents[2]
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
IMPORTS = {
    "": ["trunkline", "trunkline_protocol"],
    "broker": ["trunkline_broker.daemon", "trunkline_broker.cli.main"],
    "workers": ["trunkline_workers.host", "trunkline_workers.http"],
    "metrics": ["trunkline_broker.measured.metrics"],
    "traces": ["trunkline_protocol", "opentelemetry.sdk"],
    "top": ["trunkline_broker.cli.top_app"],
    "http2": ["trunkline_workers.http", "h2"],
    "local": ["xllamacpp"],
    "pydantic-ai": ["trunkline_workers.adapters.pydantic_ai.adapter"],
    "bedrock": ["trunkline_workers.adapters.pydantic_ai.adapter", "botocore"],
    "all": ["trunkline_broker.measured.metrics", "trunkline_workers.spans"],
    # For a checkout; that they install is enough.
    "dev": ["pytest"],
    "docs": ["mkdocs"],
    "bench": ["matplotlib"],
}
# What others bring warns at import here; ours must not.
LOUD = {"local", "pydantic-ai", "bedrock", "dev", "docs", "bench"}
HAS_BROKER = {"broker", "metrics", "top", "all", "dev", "bench"}
HAS_WORKERS = {"workers", "http2", "local", "pydantic-ai", "bedrock", "all", "dev", "bench"}
AGENT = """\
import asyncio, json, sys, trunkline
async def main():
    async with trunkline.connect(sys.argv[1]) as llm:
        script = json.dumps({"script": {"text": "one two three"}})
        result = await llm.generate(provider="scripted", model="m", messages=script)
        print(result.message.content[0].text)
asyncio.run(main())
"""


def test_every_extra_is_tried() -> None:
    assert IMPORTS.keys() - {""} == EXTRAS.keys()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)  # noqa: S603
    return out


def test_the_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "w")]
    subprocess.run(command, cwd=source, check=True, capture_output=True)  # noqa: S603
    (again,) = (tmp_path / "w").glob("*.whl")
    (first,) = built.glob("*.whl")
    contents: list[dict[str, int]] = []
    for wheel in (first, again):
        members = zipfile.ZipFile(wheel).infolist()
        contents.append({member.filename: member.CRC for member in members})
    assert contents[0] == contents[1]


def an_interpreter(version: str) -> Path:
    found = interpreter(version)
    if found is None:
        pytest.skip(f"no Python {version} on PATH, of pyenv or in {VARIABLE}")
    return found


def a_venv(place: Path, version: str, what: str) -> Path:
    """Install something into a clean environment; return its interpreter."""
    run = functools.partial(subprocess.run, check=True, capture_output=True, text=True)
    python = place / "bin" / "python"
    run([an_interpreter(version), "-m", "venv", "--without-pip", place])
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    try:
        run([*pip, "install", "--quiet", "--no-compile", what])
        run([*pip, "check"])
    except subprocess.CalledProcessError as exc:
        pytest.fail(f"{exc.stdout}{exc.stderr}")
    return python


@pytest.fixture(scope="module")
def complete(built: Path) -> Iterator[Callable[[str], Path]]:
    """Return what gives the rest of the programs to an environment that has not all of them."""
    with tempfile.TemporaryDirectory() as place:

        @functools.cache
        def python_of(version: str) -> Path:
            return a_venv(Path(place) / version, version, f"{wheel_of(built)}[all]")

        yield python_of


def wheel_of(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


def told(*command: str | Path) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
    return subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, cwd="/", env=environ
    )


def assert_command(python: Path, extra: str) -> None:
    """The command tells its version, or which extra it lacks."""
    done = told(python.parent / "trunkline", "--version")
    if extra in HAS_BROKER:
        assert (done.returncode, __version__ in done.stdout) == (0, True), done.stderr
    else:
        assert done.returncode == 1
        assert "pip install 'trunkline[broker]'" in done.stderr


def assert_call(agent: Path, broker: Path, worker: Path) -> None:
    """An answer comes from a worker through a broker to an agent, each of its own environment."""
    with run_directory() as root:
        config = f'[worker.scripted]\nadapter = "scripted"\npython = {json.dumps(str(worker))}\n'
        command = [str(broker), "-m", "trunkline_broker", "--config", str(root / "test.toml")]
        with broker_in(root, config, command=command) as running:
            running.start()
            running.until_ready("scripted", 60)
            done = told(agent, "-W", "error", "-c", AGENT, running.endpoint)
            assert done.stdout == "one two three\n", done.stderr
            assert running.stop() == 0, running.log_text()
            assert "Traceback" not in running.log_text()


@pytest.mark.parametrize("version", promised())
@pytest.mark.parametrize("extra", IMPORTS)
def test_each_extra_works_in_a_clean_environment(
    built: Path,
    complete: Callable[[str], Path],
    tmp_path: Path,
    extra: str,
    version: str,
    cell: Callable[[str, str], None],
) -> None:
    """It installs, imports, says its version, and takes part in a call."""
    cell(extra, version)
    wanted = f"{wheel_of(built)}[{extra}]" if extra else str(wheel_of(built))
    python = a_venv(tmp_path / "venv", version, wanted)
    code = "; ".join(f"import {name}" for name in ("trunkline", *IMPORTS[extra]))
    done = told(python, *([] if extra in LOUD else ["-W", "error"]), "-c", code)
    assert done.returncode == 0, done.stderr
    done = told(python, "-c", "import trunkline; print(trunkline.__version__)")
    assert done.stdout.strip() == __version__
    assert_command(python, extra)
    broker = python if extra in HAS_BROKER else complete(version)
    worker = python if extra in HAS_WORKERS else complete(version)
    assert_call(python, broker, worker)


@pytest.mark.parametrize("version", promised())
def test_the_sdist_installs(
    built: Path,
    complete: Callable[[str], Path],
    tmp_path: Path,
    version: str,
    cell: Callable[[str, str], None],
) -> None:
    """Built by what its own `pyproject.toml` asks for, on that Python."""
    cell("sdist", version)
    (sdist,) = built.glob("*.tar.gz")
    python = a_venv(tmp_path / "venv", version, str(sdist))
    assert_command(python, "")
    assert_call(python, complete(version), complete(version))


def test_the_installation_of_the_first_page(built: Path, tmp_path: Path) -> None:
    """Its lines, one after the other, in what the sdist holds."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh install\n(.*?)```", page, re.DOTALL)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(an_interpreter("3.13"))
    environ = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    script = f"set -e\n{block}command -v trunkline\ntrunkline --version\n"
    done = subprocess.run(  # noqa: S603
        ["/bin/sh", "-c", script],
        cwd=source,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{source}/.venv/bin/trunkline\n" in done.stdout
    assert __version__ in done.stdout
