"""No command runs code of the folder in which it is started: neither broker, worker nor doctor.

The folder has a file for every module that Trunkline's programs import, of the standard library and
of other packages, and for optional ones that are not installed. Each leaves a mark when it is run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from trunkline_broker.paths import RunPaths

from tests.support.broker import run_directory
from tests.support.processes import is_alive
from tests.support.raw_peer import RawClient
from tests.support.timing import SLOW, until

OPTIONAL = (
    "brotli",
    "h2",
    "aiodns",
    "orjson",
    "zstandard",
    "winloop",
    "simplejson",
    "usercustomize",
)
SCRIPT = "from trunkline_broker.cli.entry import run; run()"
# As the environment of the command would have it, whose own interpreter could not even start then.
HOSTILE = 'import os; os.environ["PYTHONPATH"] = {!r}; ' + SCRIPT
CONFIG = """
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]

[worker.mine]
adapter = "mine.py:Mine"
providers = ["mine"]
"""
ADAPTER = """
from pathlib import Path
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter as Mine
Path({mark!r}).write_text("adapter")
"""


def imported() -> set[str]:
    """Return the top-level modules that the three programs and the command import."""
    code = (
        "import sys, trunkline_broker.cli.main, trunkline_broker.daemon, trunkline_workers.host,"
        " trunkline_workers.check, trunkline_broker.measured.metrics, trunkline_broker.cli.watch,"
        " trunkline_workers.adapters.chat_completions.adapter, trunkline_broker.cli.findings,"
        " trunkline_broker.cli.wizard, pip, venv; print(*sys.modules)"
    )
    done = subprocess.run(  # noqa: S603  # our own code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Yield a folder full of traps, with a configuration and an adapter beside it."""
    ours = {"trunkline", "trunkline_broker", "trunkline_workers", "trunkline_protocol"}
    names = (imported() | set(sys.stdlib_module_names) | set(OPTIONAL)) - ours - {"__main__"}
    with run_directory() as root:
        home = root / "here"
        home.mkdir()
        for name in sorted(names):
            mark = root / f"mark-{name}"
            trap = (
                f"import sys; open({str(mark)!r}, 'a').write(' '.join(sys.orig_argv) + chr(10))\n"
            )
            (home / f"{name}.py").write_text(trap)
        assert len(names) > 300
        (home / "trunkline.toml").write_text(CONFIG)
        (home / "mine.py").write_text(ADAPTER.format(mark=str(root / "adapter")))
        yield home


def environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "TRUNKLINE_RUN_DIR": str(folder.parent / "run"), "COLUMNS": "200"}


def run(folder: Path, *words: str, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder, as the installed script does: without the folder in the path."""
    return subprocess.run(  # noqa: S603  # our own command
        [sys.executable, "-P", "-c", script, *words],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=60 * SLOW,
        check=False,
    )


def marks(folder: Path) -> list[str]:
    """Return the traps that were run."""
    return sorted(path.name for path in folder.parent.glob("mark-*"))


@pytest.fixture(autouse=True)
def unmarked(folder: Path) -> Iterator[None]:
    """Begin without marks, and leave no process."""
    for path in (*folder.parent.glob("mark-*"), folder.parent / "adapter"):
        path.unlink(missing_ok=True)
    yield
    run(folder, "down", "--drain", "0")


def test_the_traps_work(folder: Path) -> None:
    """An interpreter without `-P` runs them."""
    code = "import secrets, zmq"
    subprocess.run(  # noqa: S603  # our own code
        [sys.executable, "-c", code], cwd=folder, capture_output=True, timeout=60, check=False
    )
    assert "mark-secrets" in marks(folder)


def until_serving(folder: Path) -> None:
    """Wait until both pools serve: their workers have imported all that they need."""
    with RawClient(f"ipc://{RunPaths(folder.parent / 'run').control}") as client:
        client.hello(30.0)

        def serving() -> bool:
            slots = [slot for pool in client.status()["pools"] for slot in pool["slots"]]
            return len(slots) == 2 and all(slot["role"] == "serving" for slot in slots)

        until(serving, 60, "a pool does not serve")


@pytest.mark.parametrize("pythonpath", ["", ":", ".:/nowhere"])
def test_a_detached_broker_and_its_workers_run_nothing_of_the_folder(
    folder: Path, pythonpath: str
) -> None:
    """Also where `PYTHONPATH` names the folder without a word; an adapter that is named is run."""
    done = run(folder, "up", "--detach", script=HOSTILE.format(pythonpath))
    assert done.returncode == 0, done.stderr
    until_serving(folder)
    if pythonpath == "":
        for words in (
            ("status",),
            ("doctor", "--json"),
            ("reload",),
            ("swap", "mine"),
            ("restart",),
            ("providers",),
            ("config", "check"),
            ("logs",),
            ("usage",),
            ("call", "--help"),
            ("setup", "local", "--dry-run"),
            ("down", "--drain", "0"),
        ):
            done = run(folder, *words)
            assert done.returncode in {0, 1}, (words, done.stderr)
    assert marks(folder) == [], [(folder.parent / each).read_text() for each in marks(folder)]
    assert (folder.parent / "adapter").exists()


def test_a_broker_in_the_foreground_runs_nothing_of_the_folder(folder: Path) -> None:
    child = subprocess.Popen(  # noqa: S603  # our own command
        [sys.executable, "-P", "-c", SCRIPT, "up"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until_serving(folder)
        assert marks(folder) == []
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(30 * SLOW)
    assert not is_alive(child.pid)


def test_doctor_runs_nothing_of_a_configuration_that_nobody_named(folder: Path) -> None:
    """It says so, and what to do; named, it is tried."""
    done = run(folder, "doctor")
    assert "was found in this folder and not named" in done.stdout
    assert "trunkline doctor --config trunkline.toml" in done.stdout
    assert not (folder.parent / "adapter").exists()
    done = run(folder, "doctor", "--config", "trunkline.toml")
    assert "worker mine: adapter" in done.stdout, done.stdout
    assert (folder.parent / "adapter").exists()
    assert marks(folder) == []


def test_a_check_finds_the_module_that_is_named_and_no_other(folder: Path) -> None:
    """`adapter check` looks for it in the folder too, behind what is installed."""
    (folder / "own_adapter.py").write_text("import json, brotli\nX = 1\n")
    done = run(folder, "adapter", "check", "own_adapter")
    assert marks(folder) == [], done.stderr
    assert "brotli" in done.stderr  # it is not installed, and not taken from the folder
