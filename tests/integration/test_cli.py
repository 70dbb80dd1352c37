"""The `trunkline` command as a shell sees it: output, exit codes, signals."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from trunkline_broker.cli.connection import CONNECT_S
from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.main import main

from tests.support.broker import SCRIPTED, BrokerProcess, run_directory, running_broker
from tests.support.processes import is_alive
from tests.support.timing import SLOW, until

pytestmark = pytest.mark.integration
COMMAND = (sys.executable, "-m", "trunkline_broker.cli.entry")
TIMEOUT_S = 60.0
PACED = """
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
options = {{ journal = "{journal}", script = {{ chunks = 400, pace_ms = 50 }} }}
"""


def variables(broker: BrokerProcess | None = None, **more: str) -> dict[str, str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TRUNKLINE_")}
    if broker is not None:
        environ["TRUNKLINE_RUN_DIR"] = str(broker.run_dir)
    return {**environ, **more}


def trunkline(
    *arguments: str, environ: dict[str, str], text: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  # our own program
        [*COMMAND, *arguments],
        env=environ,
        input=text,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S * SLOW,
        check=False,
    )


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """Yield a running broker with one scripted worker."""
    with running_broker(SCRIPTED) as running:
        running.until_ready("scripted")
        yield running


# --- without a broker -----------------------------------------------------------------------


def test_no_broker_is_said_within_two_seconds(tmp_path: Path) -> None:
    """The text says where it looked and what to do; every command says it.

    What the command computes and how long it waits make less than two seconds; what other programs
    of the machine take meanwhile is not its own.
    """
    environ = variables(TRUNKLINE_RUN_DIR=str(tmp_path))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = trunkline("status", environ=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used_s + CONNECT_S < 2 * SLOW
    assert done.returncode == ExitCode.NO_BROKER
    assert f"no broker at ipc://{tmp_path}/control; start one with `trunkline up`" in done.stderr
    assert "Traceback" not in done.stderr
    others = (("chat", "hi"), ("swap", "local"), ("providers",), ("down",))
    with ThreadPoolExecutor(len(others)) as pool:
        ends = [pool.submit(trunkline, *words, environ=environ) for words in others]
    assert {end.result().returncode for end in ends} == {ExitCode.NO_BROKER}


def test_a_wrong_configuration_starts_nothing(tmp_path: Path) -> None:
    """File, line, key and the allowed keys are named; exit code 2."""
    path = tmp_path / "trunkline.toml"
    path.write_text('[worker.a]\nadapter = "scripted"\nreplica = 2\n')
    run_dir = tmp_path / "run"
    environ = variables(TRUNKLINE_RUN_DIR=str(run_dir))
    for arguments in (["up"], ["up", "--detach"]):
        done = trunkline(*arguments, "--config", str(path), environ=environ)
        assert done.returncode == ExitCode.USAGE
        assert f"{path}, line 3: unknown key worker.a.replica (did you mean replicas?)" in (
            done.stderr
        )
        assert "adapter, concurrency" in done.stderr
    assert not run_dir.exists()


@pytest.mark.parametrize("arguments", [["nosuch"], ["chat", "--nosuch"], ["swap"]])
def test_wrong_arguments(arguments: list[str]) -> None:
    """Exit code 2 and a hint, no traceback."""
    done = trunkline(*arguments, environ=variables())
    assert done.returncode == ExitCode.USAGE
    assert "Usage: trunkline" in done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "up",
        "down",
        "restart",
        "status",
        "swap",
        "reload",
        "drain",
        "chat",
        "providers",
        "models",
        "setup",
        "doctor",
        "adapter new",
        "adapter check",
    ],
)
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command shows how it is used."""
    assert main([*name.split(), "--help"]) == 0
    told = capsys.readouterr().out
    assert f"\n    trunkline {name}" in told
    assert max(map(len, told.splitlines())) <= 80


def test_help_imports_nothing_heavy() -> None:
    """`trunkline --help` is fast because it loads neither client nor daemon."""
    program = (
        "import sys; from trunkline_broker.cli.main import main; main(['--help']);"
        "heavy = {'zmq', 'asyncio', 'pydantic', 'rich', 'uvloop', 'httpx', 'trunkline'};"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


# --- with a broker --------------------------------------------------------------------------


def test_status_for_people_and_for_scripts(broker: BrokerProcess) -> None:
    """Both name the worker; the document is JSON."""
    environ = variables(broker)
    shown = trunkline("status", environ=environ)
    document = json.loads(trunkline("status", "--json", environ=environ).stdout)
    worker = document["pools"][0]["slots"][0]["pid"]
    assert document["pid"] == broker.pid
    assert str(worker) in shown.stdout
    assert "scripted/0" in shown.stdout
    assert "\x1b" not in shown.stdout  # no escapes into a pipe


def test_status_says_why_a_worker_does_not_run() -> None:
    """Its last output is shown: a wrong option is found without looking for a log."""
    with running_broker('[worker.a]\nadapter = "scripted"\noptions = { bogus = 1 }\n') as running:
        until(lambda: running.status()["pools"][0]["slots"][0]["lastExit"], 30)
        shown = trunkline("status", environ=variables(running)).stdout
    assert "a/0: last exit: status 2" in shown
    assert "unknown option 'bogus'" in shown


def test_catalogs(broker: BrokerProcess) -> None:
    """Providers and models, one per line or as JSON."""
    environ = variables(broker)
    assert trunkline("providers", environ=environ).stdout == "scripted\n"
    assert json.loads(trunkline("providers", "--json", environ=environ).stdout)[0]["id"] == (
        "scripted"
    )
    assert trunkline("models", "scripted", environ=environ).stdout == "scripted\n"
    missing = trunkline("models", "nosuch", environ=environ)
    assert missing.returncode == ExitCode.FAILED
    assert "NO_ADAPTER" in missing.stderr


SAYS = json.dumps({"script": {"text": "one two three", "chunk_chars": 4, "reasoning_chunks": 1}})


def test_chat_writes_the_answer_and_nothing_else_to_stdout(broker: BrokerProcess) -> None:
    """Reasoning, usage and finish go to stderr."""
    done = trunkline("chat", SAYS, environ=variables(broker))
    assert done.returncode == 0
    assert done.stdout == "one two three\n"
    assert "[stop, " in done.stderr
    assert len(done.stderr.splitlines()) == 2  # the reasoning and the finish


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_chat_reads_a_pipe(broker: BrokerProcess, arguments: list[str]) -> None:
    """Without a prompt, or with `-`, the pipe is the prompt."""
    done = trunkline("chat", *arguments, environ=variables(broker), text=SAYS)
    assert done.stdout == "one two three\n"


def test_chat_reads_bytes_that_are_no_text(broker: BrokerProcess) -> None:
    """What is piped in is sent as far as it can be read."""
    done = subprocess.run(  # noqa: S603  # our own program
        [*COMMAND, "chat"],
        env=variables(broker),
        input=b"caf\xe9 \xed\xa0\x80",
        capture_output=True,
        timeout=TIMEOUT_S * SLOW,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("closed", "said"), [("<&-", b"one two three\n"), ("<&- >&- 2>&-", b"")])
def test_chat_without_standard_files(broker: BrokerProcess, closed: str, said: bytes) -> None:
    """Whoever starts it may have closed them."""
    done = subprocess.run(  # noqa: S603  # our own program
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, "chat", SAYS],
        env=variables(broker),
        capture_output=True,
        timeout=TIMEOUT_S * SLOW,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_an_endpoint_that_is_none() -> None:
    """One line, never a traceback."""
    done = trunkline("status", environ=variables(TRUNKLINE_ENDPOINT="tcp://nowhere"))
    assert done.returncode == ExitCode.FAILED
    assert done.stderr.startswith("trunkline: endpoint 'tcp://nowhere': ")


def test_chat_joins_prompt_and_pipe(broker: BrokerProcess) -> None:
    """`git diff | trunkline chat "…"` sends both; the script is not alone in the message then."""
    done = trunkline("chat", "Summarize.", environ=variables(broker), text=SAYS)
    assert done.returncode == 0
    assert "one two three" not in done.stdout


def test_chat_does_not_wait_for_a_silent_pipe(broker: BrokerProcess) -> None:
    """A program that starts us may hold a pipe open for ever."""
    with subprocess.Popen(  # noqa: S603  # our own program
        [*COMMAND, "chat", SAYS],
        env=variables(broker),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.wait(TIMEOUT_S * SLOW) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "one two three\n"


def test_chat_survives_half_a_character(broker: BrokerProcess) -> None:
    """A lone surrogate can't be written; something else is written for it."""
    steps = [
        {"chunk": {"type": "block-start", "index": 0, "blockType": "text"}},
        {"chunk": {"type": "text-delta", "index": 0, "text": "a\ud83d"}},
        {"chunk": {"type": "block-end", "index": 0, "block": {"type": "text", "text": "a"}}},
        {"chunk": {"type": "finish", "reason": {"kind": "stop"}}},
    ]
    text = json.dumps({"script": {"steps": steps}})
    done = trunkline("chat", text, environ=variables(broker))
    assert (done.returncode, done.stdout) == (0, "a?\n")


def test_chat_with_nothing_to_say(broker: BrokerProcess) -> None:
    """An empty pipe is no prompt."""
    assert trunkline("chat", environ=variables(broker)).returncode == ExitCode.USAGE


def test_chat_of_an_unknown_provider(broker: BrokerProcess) -> None:
    """The failure's code is shown; exit code 1."""
    done = trunkline("chat", "-p", "nosuch", "-m", "m", "hi", environ=variables(broker))
    assert done.returncode == ExitCode.FAILED
    assert "NO_ADAPTER" in done.stderr
    assert done.stdout == ""


def test_chat_waits_for_a_worker_that_starts(tmp_path: Path) -> None:
    """A model takes its time to load; who has just started a broker is told what it waits for."""
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pathlib import Path\n"
        "while not Path(__file__).with_name('gate').exists():\n    time.sleep(0.01)\n"
        "from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter as Slow\n"
    )
    config = f'[worker.slow]\nadapter = "{tmp_path}/slow.py:Slow"\nproviders = ["slow"]\n'
    with running_broker(config) as broker:
        chat = subprocess.Popen(  # noqa: S603  our own program
            [*COMMAND, "chat", "hi"],
            env=variables(broker),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert chat.stderr is not None
        assert chat.stderr.readline() == "waiting for slow to start\n"
        (tmp_path / "gate").touch()
        out, _ = chat.communicate(timeout=TIMEOUT_S * SLOW)
        assert (chat.returncode, out[:2]) == (0, "0 ")


def test_swap_shows_both_processes(broker: BrokerProcess) -> None:
    """A swap returns when the new worker serves; of an unknown pool it fails."""
    environ = variables(broker)
    before = broker.worker_pids()["scripted"]
    done = trunkline("swap", "scripted", "--json", environ=environ)
    assert done.returncode == 0, done.stderr
    slot = json.loads(done.stdout)["slots"][0]
    assert slot["oldPid"] in before
    assert is_alive(slot["newPid"])
    assert trunkline("swap", "nosuch", environ=environ).returncode == ExitCode.FAILED


def test_swap_to_another_interpreter_and_file(broker: BrokerProcess, tmp_path: Path) -> None:
    """A virtual environment or an interpreter; one that fails changes nothing."""
    environ = variables(broker)
    before = broker.worker_pids()
    done = trunkline("swap", "scripted", "--env", str(tmp_path / "no"), environ=environ)
    assert done.returncode == ExitCode.USAGE
    done = trunkline("swap", "scripted", "--env", "/bin/false", environ=environ)
    assert done.returncode == ExitCode.FAILED
    assert "the new worker did not become ready" in done.stderr
    assert broker.worker_pids() == before
    environment = Path(sys.executable).parent.parent
    done = trunkline("swap", "scripted", "--env", str(environment), environ=environ)
    assert done.returncode == 0, done.stderr
    config = tmp_path / "next.toml"
    config.write_text(SCRIPTED.replace('["scripted"]', '["scripted", "more"]'))
    done = trunkline("swap", "scripted", "--config", str(config), environ=environ)
    assert done.returncode == 0, done.stderr
    assert "more" in trunkline("providers", environ=environ).stdout


def test_reload_adds_changes_removes_and_leaves_alone(tmp_path: Path) -> None:
    """A version that can't start changes nothing and is told."""
    path = tmp_path / "trunkline.toml"
    pool = '[worker.{name}]\nadapter = "scripted"\nproviders = ["{name}"]\n'
    a, b, c = (pool.format(name=name) for name in "abc")
    with running_broker(a + b) as broker:
        environ = variables(broker)
        workers = {name: broker.until_ready(name) and broker.worker_pids()[name] for name in "ab"}
        broken = b + '[worker.b.options]\nopen_error = "no such model"\n'
        path.write_text(a + broken + c)
        done = trunkline("reload", "--config", str(path), environ=environ)
        assert done.returncode == ExitCode.FAILED
        assert "no such model" in done.stderr
        broker.until_ready("c")
        pids = broker.worker_pids()
        assert {name: pids[name] for name in "ab"} == workers
        path.write_text(
            "[broker]\nusage_days = 7\n" + b + "[worker.b.options]\nopen_delay_ms = 1\n" + c
        )
        done = trunkline("reload", "--config", str(path), environ=environ)
        assert done.returncode == 0, done.stderr
        assert "in force after trunkline restart: usage_days of [broker]" in done.stdout
        assert "removed: a" in done.stdout
        assert "changed: b" in done.stdout
        assert "unchanged: c" in done.stdout
        until(lambda: not any(is_alive(pid) for each in workers.values() for pid in each))
        assert broker.worker_pids()["c"] == pids["c"]
        path.write_text("[worker.b]\n")
        done = trunkline("reload", "--config", str(path), environ=environ)
        assert done.returncode == ExitCode.FAILED
        assert "line 1: missing key worker.b.adapter" in done.stderr or "adapter" in done.stderr


def test_drain_and_swap_back() -> None:
    """A drained pool refuses calls and says why; a swap puts it in service again."""
    with running_broker(SCRIPTED) as broker:
        broker.until_ready("scripted")
        environ = variables(broker)
        assert trunkline("drain", "scripted", environ=environ).returncode == 0
        done = trunkline("chat", "--provider", "scripted", "hi", environ=environ)
        assert done.returncode == ExitCode.FAILED
        assert "drained on request" in done.stderr
        done = trunkline("status", environ=environ)
        assert done.returncode == 0, done.stderr
        assert "down" in done.stdout
        done = trunkline("swap", "scripted", environ=environ)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("scripted/0: pid ")
        done = trunkline("chat", "--provider", "scripted", "hi", environ=environ)
        assert done.returncode == 0, done.stderr
        assert trunkline("drain", "nobody", environ=environ).returncode == ExitCode.FAILED


def test_restart_exchanges_the_broker_and_keeps_the_workers(tmp_path: Path) -> None:
    """The next one reads the same file; with a file that is wrong the old one goes on."""
    path = tmp_path / "trunkline.toml"
    path.write_text(SCRIPTED)
    with run_directory() as root:
        environ = variables(TRUNKLINE_RUN_DIR=str(root / "run"))
        up = trunkline("up", "--detach", "--config", str(path), environ=environ)
        assert up.returncode == 0, up.stderr
        try:
            before = _status(environ)
            path.write_text("nonsense")
            assert trunkline("restart", environ=environ).returncode == ExitCode.USAGE
            assert _status(environ)["pid"] == before["pid"]
            path.write_text(SCRIPTED)
            done = trunkline("restart", environ=environ)
            assert done.returncode == 0, done.stderr
            after = _status(environ)
            assert after["pid"] != before["pid"]
            assert after["config"] == before["config"]
            workers = [[entry["pid"] for entry in each["processes"]] for each in (before, after)]
            assert workers[0] == workers[1]
        finally:
            assert trunkline("down", environ=environ).returncode == 0


def _status(environ: dict[str, str]) -> dict[str, Any]:
    return json.loads(trunkline("status", "--json", environ=environ).stdout)


def test_a_second_up_harms_nothing(broker: BrokerProcess) -> None:
    """It says who runs already; exit code 4."""
    before = trunkline("providers", environ=variables(broker)).stdout
    for arguments in (["up"], ["up", "--detach"]):
        done = trunkline(*arguments, "--config", str(broker.config), environ=variables(broker))
        assert done.returncode == ExitCode.ALREADY_RUNNING
        assert f"pid {broker.pid}" in done.stderr
    assert before.startswith("scripted\n")
    assert trunkline("providers", environ=variables(broker)).stdout == before


def test_ctrl_c_cancels_the_provider_request(tmp_path: Path) -> None:
    """Exit code 130, and the adapter's stream was closed, not played to its end."""
    journal = tmp_path / "journal"
    with running_broker(PACED.format(journal=journal)) as broker:
        broker.until_ready("scripted")
        process = subprocess.Popen(  # noqa: S603  # our own program
            [*COMMAND, "chat", "hello"],
            env=variables(broker),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.read(1)  # text flows
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S * SLOW)
        assert process.returncode == ExitCode.INTERRUPTED
        assert b"cancelled" in err
        until(lambda: "cancelled" in journal.read_text(), 2.0, journal.read_text())
        assert "played" not in journal.read_text()


# --- up and down ----------------------------------------------------------------------------


def test_up_detached_and_down() -> None:
    """Both return when it is true: the broker answers; the broker and its workers are gone."""
    with run_directory() as root:
        config = root / "trunkline.toml"
        config.write_text(SCRIPTED)
        environ = variables(TRUNKLINE_RUN_DIR=str(root / "run"), TRUNKLINE_CONFIG=str(config))
        environ["TRUNKLINE_BROKER_DRAINS"] = "5"
        up = trunkline("up", "--detach", environ=environ)
        assert up.returncode == 0, up.stderr
        broker = int(up.stdout.split("broker pid ")[1].split()[0])
        try:
            # What will hardly work is said to whoever starts it, and to who reads its log.
            assert up.stderr.startswith("note: TRUNKLINE_BROKER_DRAINS is set and names no key")
            assert "configuration_note" in (root / "run" / "broker.log").read_text()
            status = json.loads(trunkline("status", "--json", environ=environ).stdout)
            assert status["pid"] == broker
            assert os.getsid(broker) == broker  # it outlives the terminal
            workers = [process["pid"] for process in status["processes"]]
            down = trunkline("down", environ=environ)
            assert down.returncode == 0, down.stderr
            assert not [pid for pid in (broker, *workers) if is_alive(pid)]
            assert not list((root / "run").rglob("control"))
        finally:
            if is_alive(broker):
                os.kill(broker, signal.SIGTERM)


def test_ctrl_c_while_the_command_loads_leaves_no_traceback() -> None:
    """It ends by the signal, as any program does that has not begun."""
    load = (
        "import signal, sys\n"
        "sys.meta_path.insert(0, type('Slow', (), {'find_spec': lambda *name:"
        " signal.raise_signal(signal.SIGINT) if name[0] == 'typer' else None}))\n"
        "from trunkline_broker.cli.entry import run\n"
        "run()\n"
    )
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_an_agents_installation_says_what_the_command_lacks() -> None:
    """`pip install trunkline` is what agents need; the script comes along with it."""
    load = (
        "import sys; sys.modules['typer'] = None\n"
        "from trunkline_broker.cli.entry import run\n"
        "run()\n"
    )
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, check=False)  # noqa: S603
    assert done.returncode == ExitCode.FAILED
    assert b"pip install 'trunkline[broker]'" in done.stderr
    assert b"Traceback" not in done.stderr


def test_of_two_brokers_started_at_once_one_runs_and_lets_its_calls_end() -> None:
    """The other one says so and harms nothing; `down` gives calls the configured time."""
    call = json.dumps({"script": {"chunks": 40, "pace_ms": 50}})
    with run_directory() as root:
        config = root / "trunkline.toml"
        config.write_text(SCRIPTED)
        environ = variables(TRUNKLINE_RUN_DIR=str(root / "run"), TRUNKLINE_CONFIG=str(config))
        with ThreadPoolExecutor(2) as pool:
            ups = [pool.submit(trunkline, "up", "--detach", environ=environ) for _ in range(2)]
            ends = sorted((up.result() for up in ups), key=lambda up: up.returncode)
            try:
                assert [up.returncode for up in ends] == [0, ExitCode.ALREADY_RUNNING], ends
                broker = int(ends[0].stdout.split("broker pid ")[1].split()[0])
                assert f"pid {broker}" in ends[1].stderr
                chat = pool.submit(trunkline, "chat", "-p", "scripted", call, environ=environ)
                shown = ("status", "--json")
                until(
                    lambda: json.loads(trunkline(*shown, environ=environ).stdout)["calls"][
                        "running"
                    ],
                    30.0,
                )
            finally:
                down = trunkline("down", environ=environ)
            assert down.returncode == 0, down.stderr
            assert chat.result().returncode == 0, chat.result().stderr
            assert "[stop, " in chat.result().stderr


def test_up_in_the_foreground_ends_with_ctrl_c() -> None:
    """It stays, serves and ends orderly."""
    with run_directory() as root:
        config = root / "trunkline.toml"
        config.write_text(SCRIPTED)
        environ = variables(TRUNKLINE_RUN_DIR=str(root / "run"), TRUNKLINE_CONFIG=str(config))
        with subprocess.Popen(  # noqa: S603  # our own program
            [*COMMAND, "up"], env=environ, stderr=subprocess.DEVNULL
        ) as process:
            until(lambda: "scripted" in trunkline("providers", environ=environ).stdout, 30.0)
            process.send_signal(signal.SIGINT)
            assert process.wait(30 * SLOW) == 0


@pytest.mark.parametrize("arguments", [["up"], ["up", "--detach"], ["down"]])
def test_a_run_directory_that_is_none(tmp_path: Path, arguments: list[str]) -> None:
    """One line, never a traceback."""
    (tmp_path / "file").touch()
    done = trunkline(*arguments, environ=variables(TRUNKLINE_RUN_DIR=str(tmp_path / "file")))
    assert done.returncode == ExitCode.FAILED
    assert len(done.stderr.splitlines()) == 1
    assert "Not a directory" in done.stderr


def test_a_broker_that_cannot_start_is_shown(tmp_path: Path) -> None:
    """The last lines of its log are, and the command fails."""
    run_dir = tmp_path / ("long" * 30)
    done = trunkline("up", "--detach", environ=variables(TRUNKLINE_RUN_DIR=str(run_dir)))
    assert done.returncode == ExitCode.FAILED
    assert "TRUNKLINE_RUN_DIR" in done.stderr
