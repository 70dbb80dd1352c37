"""The commands of a person who runs a broker, as that person's shell and terminal see them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.main import main

from tests.integration.test_cli import COMMAND, trunkline, variables
from tests.support.broker import BrokerProcess, running_broker
from tests.support.timing import SLOW, until

pytestmark = pytest.mark.integration
CONFIG = """
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
"""
REQUEST = {
    "provider": "scripted",
    "model": "m",
    "messages": json.dumps({"script": {"text": "one two"}}),
}
FAILING = {
    **REQUEST,
    "messages": json.dumps({"script": {"steps": [{"raise": {"code": "AUTH", "message": "no"}}]}}),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """Yield a running broker with one scripted worker."""
    with running_broker(CONFIG) as running:
        running.until_ready("scripted")
        yield running


@pytest.mark.parametrize(
    "name",
    [
        "top",
        "logs",
        "usage",
        "call",
        "completion",
        "config check",
        "config show",
        "config schema",
        "keys server",
        "keys client",
        "keys worker",
        "keys list",
        "keys remove",
    ],
)
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command shows how it is used."""
    assert main([*name.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert f"trunkline {name}" in told.split("Usage:")[1].partition("\n")[2]
    assert max(map(len, told.splitlines())) <= 80


# --- call -----------------------------------------------------------------------------------


def test_call_takes_and_gives_json(broker: BrokerProcess, tmp_path: Path) -> None:
    environ = variables(broker)
    done = trunkline("call", environ=environ, text=json.dumps(REQUEST))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["message"]["content"] == [{"type": "text", "text": "one two"}]
    assert (answer["finish"], answer["attempts"]) == ({"kind": "stop"}, 1)
    path = tmp_path / "request.json"
    path.write_text(json.dumps({**REQUEST, "model": "other"}))
    done = trunkline("call", str(path), "--stream", "-m", "m", environ=environ)
    chunks = [json.loads(line) for line in done.stdout.splitlines()]
    assert "".join(chunk.get("text", "") for chunk in chunks) == "one two"
    assert chunks[-1] == {"type": "finish", "reason": {"kind": "stop"}}


@pytest.mark.parametrize("arguments", [[], ["--stream"]])
def test_a_call_that_fails_is_exit_code_1(broker: BrokerProcess, arguments: list[str]) -> None:
    """Its document says why; a wrong request is exit code 2, and no traceback."""
    environ = variables(broker)
    done = trunkline("call", *arguments, environ=environ, text=json.dumps(FAILING))
    assert done.returncode == ExitCode.FAILED
    assert '"AUTH"' in done.stdout
    for text in ("[", "[]", '{"provider": "scripted", "model": "m"}', '{"nosuch": 1}'):
        done = trunkline("call", *arguments, environ=environ, text=text)
        assert (done.returncode, done.stdout) == (ExitCode.USAGE, ""), text
        assert "Traceback" not in done.stderr


# --- usage ----------------------------------------------------------------------------------


def test_usage_shows_who_used_what(broker: BrokerProcess) -> None:
    environ = variables(broker)
    trunkline("chat", "-p", "scripted", "-m", "counted", "hi", environ=environ)

    def row() -> dict[str, object] | None:
        done = trunkline("usage", "--json", environ=environ)
        rows = json.loads(done.stdout) if done.returncode == 0 else []
        return next((row for row in rows if row["model"] == "counted"), None)

    found = until(row, 10.0)
    assert (found["client"], found["provider"], found["calls"]) == ("trunkline chat", "scripted", 1)
    done = trunkline("usage", "--by", "model", environ=environ)
    assert "counted" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    for wrong in (["--since", "x"], ["--by", "x"]):
        assert trunkline("usage", *wrong, environ=environ).returncode == ExitCode.USAGE
    assert (
        json.loads(trunkline("usage", "--since", "2099-01-01", "--json", environ=environ).stdout)
        == []
    )


def test_usage_needs_no_broker_but_a_ledger(tmp_path: Path) -> None:
    environ = variables(TRUNKLINE_RUN_DIR=str(tmp_path))
    done = trunkline("usage", environ=environ)
    assert done.returncode == ExitCode.FAILED
    assert f"there is no ledger at {tmp_path}/usage.sqlite" in done.stderr


# --- logs -----------------------------------------------------------------------------------


def test_logs_of_workers_are_shown_and_followed(broker: BrokerProcess) -> None:
    """What is there, then what comes; Ctrl-C ends it."""
    environ = variables(broker)
    (process,) = broker.status()["processes"]
    output = Path(process["output"])
    with output.open("a") as file:
        file.write("before\n")
    done = trunkline("logs", "scripted", "-n", "1", environ=environ)
    assert (done.returncode, done.stdout) == (0, "before\n")
    child = subprocess.Popen(  # noqa: S603  # our own program
        [*COMMAND, "logs", "scripted/0", "-f", "-n", "1"],
        env={**environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "before\n"
    with output.open("a") as file:
        file.write("after\n")
    assert child.stdout.readline() == "after\n"
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=20 * SLOW)
    assert child.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in said


@pytest.mark.parametrize("follow", [[], ["-f"]])
def test_a_reader_that_has_seen_enough_is_no_error(
    broker: BrokerProcess, follow: list[str]
) -> None:
    """As in `trunkline logs | head -1`: nothing is said of it."""
    (process,) = broker.status()["processes"]
    with Path(process["output"]).open("a") as file:
        file.write(f"{'x' * 99}\n" * 5000)
    child = subprocess.Popen(  # noqa: S603  # our own program
        [*COMMAND, "logs", "scripted", "-n", "5000", *follow],
        env=variables(broker),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline()
    child.stdout.close()
    assert child.wait(20 * SLOW) == ExitCode.FAILED
    assert child.stderr.read() == ""
    child.stderr.close()


def test_logs_that_are_not_there_are_told_from_those_that_are(broker: BrokerProcess) -> None:
    done = trunkline("logs", "nosuch", environ=variables(broker))
    assert done.returncode == ExitCode.FAILED
    assert "there is: scripted" in done.stderr
    done = trunkline("logs", "scripted", "--previous", environ=variables(broker))
    assert done.returncode == ExitCode.FAILED
    assert "scripted had no process before this one" in done.stderr
    done = trunkline("logs", "--previous", environ=variables(broker))
    assert done.returncode == ExitCode.USAGE


# --- config ---------------------------------------------------------------------------------


def test_config_is_checked_shown_and_described(tmp_path: Path) -> None:
    path = tmp_path / "trunkline.toml"
    path.write_text(
        '[worker.a]\nadapter = "scripted"\noptions = { apiKey = "sk-secret-abcdefgh" }\n'
    )
    environ = variables(TRUNKLINE_CONFIG=str(path), TRUNKLINE_BROKER_LOG_LEVL="debug")
    done = trunkline("config", "check", environ=environ)
    assert (done.returncode, done.stdout) == (0, f"{path}: good; workers: a\n")
    assert "did you mean TRUNKLINE_BROKER_LOG_LEVEL?" in done.stderr
    told = json.loads(trunkline("config", "check", "--json", environ=environ).stdout)
    assert (told["file"], told["workers"], len(told["notes"])) == (str(path), ["a"], 1)
    for arguments in (["show"], ["show", "--json"]):
        shown = trunkline("config", *arguments, environ=environ)
        assert shown.returncode == 0
        assert "sk-secret" not in shown.stdout + shown.stderr
        assert "**********" in shown.stdout
    assert json.loads(trunkline("config", "schema", environ=environ).stdout)["$defs"]
    path.write_text('[broker]\ndrains = 3\n[worker.a]\nadaptor = "scripted"\n')
    done = trunkline("config", "check", environ=environ)
    assert done.returncode == ExitCode.USAGE
    assert f"{path}, line 2: unknown key broker.drains (did you mean drain_s?)" in done.stderr
    assert "line 4: unknown key worker.a.adaptor (did you mean adapter?)" in done.stderr


@pytest.mark.parametrize("has_colours", [True, False])
def test_no_color_is_obeyed_on_a_terminal(tmp_path: Path, has_colours: bool) -> None:
    """A note is yellow, unless somebody asks for no colours; a pipe gets no escapes at all."""
    path = tmp_path / "trunkline.toml"
    path.write_text('[worker.a]\nadapter = "scripted"\ndebug_prompts = true\n')
    environ = variables(TRUNKLINE_CONFIG=str(path), TERM="xterm-256color")
    environ.pop("NO_COLOR", None)
    if not has_colours:
        environ["NO_COLOR"] = "1"
    ours, theirs = os.openpty()
    done = subprocess.run(  # noqa: S603  # our own program
        [*COMMAND, "config", "check"], env=environ, stdout=theirs, stderr=theirs, check=True
    )
    os.close(theirs)
    told = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0
    assert "note: worker.a: debug_prompts" in told
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-7]m", told)) is has_colours
    piped = trunkline("config", "check", environ=environ)
    assert "\x1b" not in piped.stdout + piped.stderr


# --- keys -----------------------------------------------------------------------------------


def test_who_is_let_in_is_listed_for_people_and_scripts(tmp_path: Path) -> None:
    environ = variables(HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path))
    done = trunkline("keys", "list", environ=environ)
    assert (done.returncode, done.stdout) == (0, "")
    assert "nobody is let in" in done.stderr
    file = str(tmp_path / "laptop.key")
    for arguments in (["server"], ["client", "laptop", "--out", file]):
        assert trunkline("keys", *arguments, environ=environ).returncode == 0
    (row,) = json.loads(trunkline("keys", "list", "--json", environ=environ).stdout)
    assert (row["kind"], row["name"], len(row["key"])) == ("client", "laptop", 40)
    assert row["key"] in trunkline("keys", "list", environ=environ).stdout


# --- completion -----------------------------------------------------------------------------


def test_a_shell_completes_commands_options_and_names(tmp_path: Path) -> None:
    """A real bash sources the script and asks the command; so does fish where it is installed."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    done = trunkline("completion", "bash", environ=variables())
    assert done.returncode == 0
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "trunkline"
    command.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    command.chmod(0o700)
    (tmp_path / "script").write_text(done.stdout)
    program = """
        source "$1"
        try() { COMP_WORDS=(trunkline "$@"); COMP_CWORD=$#; _trunkline_completion trunkline
            echo "$*:" ${COMPREPLY[@]}; }
        try com; try usage --si; try drain sc; try config ""
    """
    config = tmp_path / "trunkline.toml"
    config.write_text(CONFIG)
    environ = variables(TRUNKLINE_CONFIG=str(config))
    environ["PATH"] = f"{folder}:{os.environ['PATH']}"

    def asked(*command: str) -> str:
        done = subprocess.run(  # noqa: S603  # our own program
            command,
            env=environ,
            capture_output=True,
            text=True,
            timeout=30 * SLOW,
            check=False,
        )
        return done.stdout + done.stderr

    assert asked(bash, "-c", program, "bash", str(tmp_path / "script")).splitlines() == [
        "com: completion",
        "usage --si: --since",
        "drain sc: scripted",
        "config : check show schema",
    ]
    assert "trunkline" in trunkline("completion", "zsh", environ=environ).stdout
    script = trunkline("completion", "fish", environ=environ).stdout
    if fish := shutil.which("fish"):
        said = asked(fish, "-c", f'{script}\ncomplete -C "trunkline drain sc"')
        assert said.split() == ["scripted"]


# --- top ------------------------------------------------------------------------------------


def test_top_wants_a_terminal(broker: BrokerProcess) -> None:
    done = trunkline("top", environ=variables(broker))
    assert done.returncode == ExitCode.USAGE
    assert "trunkline status --json" in done.stderr


class Terminal:
    """A tmux server of its own with one window."""

    def __init__(self, columns: int, lines: int, command: str, environ: dict[str, str]) -> None:
        tmux = shutil.which("tmux")
        if tmux is None:
            pytest.skip("tmux is not installed")
        self._folder = tempfile.mkdtemp(prefix="tl-", dir="/tmp")
        self._tmux = [tmux, "-f", "/dev/null", "-S", f"{self._folder}/tmux"]
        # A terminal knows its size itself; these would overrule it.
        self._environ = {k: v for k, v in environ.items() if k not in {"COLUMNS", "LINES"}}
        size = ["-x", str(columns), "-y", str(lines)]
        self.run("new-session", "-d", *size, command)

    def run(self, *arguments: str) -> str:
        done = subprocess.run(  # noqa: S603  # a fixed command line
            [*self._tmux, *arguments],
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=10 * SLOW,
        )
        return done.stdout

    def screen(self) -> str:
        return self.run("capture-pane", "-p")

    def close(self) -> None:
        self.run("kill-server")
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (140, 40)])
def test_top_shows_what_runs(columns: int, lines: int) -> None:
    """In a real terminal, narrow and wide: a stream's rates, then that the broker is gone."""
    with running_broker(CONFIG) as broker:
        broker.until_ready("scripted")
        environ = variables(broker, TERM="xterm-256color")
        script = {"script": {"chunks": 2000, "pace_ms": 10}}
        request = {**REQUEST, "messages": json.dumps(script)}
        agent = subprocess.Popen(  # noqa: S603  # our own program
            [*COMMAND, "call"], env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        assert agent.stdin is not None
        agent.stdin.write(json.dumps(request).encode())
        agent.stdin.close()
        with contextlib.ExitStack() as stack:
            stack.callback(agent.wait)
            stack.callback(agent.kill)
            terminal = Terminal(columns, lines, " ".join([*COMMAND, "top"]), environ)
            stack.callback(terminal.close)

            def rates() -> str | None:
                screen = terminal.screen()
                rows = [line.split() for line in screen.splitlines()]
                (head,) = [row for row in rows if row[:1] == ["route"]] or [[]]
                (row,) = [row for row in rows if row[:2] == ["scripted", "serving"]] or [[]]
                is_flowing = "chunks/s" in head and row and float(row[4]) > 10
                is_fitted = ("gap" in screen) is (columns > 100)
                return screen if is_flowing and is_fitted else None

            screen = until(rates, 30.0, "top shows no rate")
            assert "scripted/0" in screen
            assert "1 running" in screen
            assert all(len(line) <= columns for line in screen.splitlines())
            agent.kill()  # or the broker would wait for its call
            broker.stop()
            until(lambda: "no broker" in terminal.screen(), 20.0, "top does not say who is gone")
            key = "q" if columns == 80 else "C-c"
            terminal.run("send-keys", key)
            until(lambda: not terminal.run("list-sessions"), 20.0, f"{key} does not end it")
