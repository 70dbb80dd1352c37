"""The start of a worker's process, as far as it needs no broker."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
from trunkline_broker.interpreter import module_command, without_relative_paths
from trunkline_broker.worker_start import give_up_privileges


def no_new_privileges(status: str) -> str:
    return next(line.split()[1] for line in status.splitlines() if line.startswith("NoNewPrivs"))


def test_a_thread_that_gives_up_privileges_keeps_its_children_from_gaining_any() -> None:
    """From their first moment on, and nobody else: the broker may still become another user."""
    found: list[str] = []
    before = no_new_privileges(Path("/proc/self/status").read_text())

    def start() -> None:
        give_up_privileges()
        found.append(subprocess.check_output(["cat", "/proc/self/status"], text=True))  # noqa: S607

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert no_new_privileges(found[0]) == "1"
    assert no_new_privileges(Path("/proc/self/status").read_text()) == before


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("", None),
        (":", None),
        (".", None),
        ("lib:../x", None),
        ("/a::/b:c", "/a:/b"),
        ("/a", "/a"),
    ],
)
def test_relative_entries_of_the_path_are_left_out(given: str, left: str | None) -> None:
    made = without_relative_paths({"PYTHONPATH": given, "X": "1"})
    assert made == {"X": "1"} | ({} if left is None else {"PYTHONPATH": left})
    assert without_relative_paths({"X": "1"}) == {"X": "1"}


def test_an_interpreter_takes_nothing_of_a_folder() -> None:
    assert module_command("py", "m", "a") == ["py", "-P", "-m", "m", "a"]
    assert os.pathsep == ":"
