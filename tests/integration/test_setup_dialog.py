"""`trunkline setup` in a terminal: asked again, nothing shown, nothing left behind."""

from __future__ import annotations

import os
import pty
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from trunkline_broker.cli.exits import ExitCode

from tests.support.timing import SLOW

pytestmark = pytest.mark.integration
KEY = "sk-canary-0123456789"
WAIT_S = 20.0 * SLOW
# A terminal of its own, as a shell gives it: the key is asked for there, not on stdin.
CODE = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv = ["trunkline", "setup"]
from trunkline_broker.cli.entry import run
run()
"""


class Terminal:
    """The command in a terminal of 80 by 24, with a umask that hides nothing."""

    def __init__(self, home: Path) -> None:
        self._main, other = pty.openpty()
        quiet = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
        quiet.pop("TRUNKLINE_CONFIG", None)
        self.seen = ""
        self.process = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-c", CODE],
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=home,
            env={**quiet, "HOME": str(home), "COLUMNS": "80", "LINES": "24", "TERM": "xterm"},
            umask=0,
            start_new_session=True,
        )
        os.close(other)

    def until(self, text: str) -> str:
        """Read until a text was shown; returns all that was."""
        deadline = time.monotonic() + WAIT_S
        while text not in self.seen:
            ready, _, _ = select.select([self._main], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come: {self.seen}"
            self.seen += os.read(self._main, 4096).decode()
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def end(self) -> int:
        """Wait for the end; returns the exit code."""
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._main)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    yield made
    made.close()


def test_a_dialog_with_every_mistake(terminal: Terminal, tmp_path: Path) -> None:
    """No such provider, a key of two words, blanks around the good one: a private file."""
    shown = terminal.until("Which provider?")
    terminal.type("nonsense\n")
    shown += terminal.until("Which provider?")
    terminal.type("openai\n")
    shown += terminal.until("(not shown):")
    terminal.type("two words\n")
    shown += terminal.until("(not shown):")
    terminal.type(f"  {KEY} \n")
    shown += terminal.until("next: ")
    assert terminal.end() == ExitCode.OK
    assert KEY not in shown
    assert "'nonsense' is none of them; try again" in shown
    home = tmp_path / ".config" / "trunkline"
    assert (home / "secrets" / "openai").read_text() == KEY
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in home.rglob("*")}
    files = {"trunkline.toml": 0o600, "openai": 0o600, ".gitignore": 0o600}
    assert modes == {**files, "secrets": 0o700}
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("typed", ["\x03", "\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_a_dialog_that_is_broken_off(terminal: Terminal, tmp_path: Path, typed: str) -> None:
    """At the question for the key: one line, an exit code for scripts, no file."""
    terminal.until("Which provider?")
    terminal.type("1\n")
    terminal.until("(not shown):")
    terminal.type(typed)
    terminal.until("trunkline: nothing was changed")
    assert terminal.end() == ExitCode.INTERRUPTED
    assert not (tmp_path / ".config").exists()


def test_the_file_of_this_directory_is_extended(tmp_path: Path) -> None:
    """The one that `up` would read; another would be in its shadow."""
    here = tmp_path / "trunkline.toml"
    here.write_text('[worker.s]\nadapter = "scripted"\n')
    here.chmod(0o644)
    terminal = Terminal(tmp_path)
    try:
        terminal.until("Which provider?")
        terminal.type("groq\n")
        terminal.until("(not shown):")
        terminal.type(f"{KEY}\n")
        terminal.until("next: ")
        assert terminal.end() == ExitCode.OK
    finally:
        terminal.close()
    assert "[worker.groq]" in here.read_text()
    assert not (tmp_path / ".config").exists()
