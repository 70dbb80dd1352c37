"""What a newcomer runs first: up without a file, doctor, a new adapter and its check, setup."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest
import trunkline
from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.venvs import provide_trunkline

from tests.support.broker import broker_in, run_directory
from tests.support.raw_http import Answer, RawServer
from tests.support.timing import SLOW

pytestmark = pytest.mark.integration
KEYS = {
    name: None
    for name in os.environ
    if name.endswith(("_API_KEY", "_PROXY")) or name.startswith("TRUNKLINE_")
}


def command(
    *arguments: str, cwd: Path, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `trunkline …` as a newcomer would, with no key but those given."""
    bare = {name: value for name, value in os.environ.items() if name not in KEYS}
    home = {"HOME": str(cwd), "TRUNKLINE_RUN_DIR": str(cwd / "run"), "COLUMNS": "200"}
    return subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-m", "trunkline_broker.cli.entry", *arguments],
        cwd=cwd,
        env={**bare, **home, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=120 * SLOW,
        check=False,
    )


# --- up without a file ----------------------------------------------------------------------


async def test_up_without_a_file_serves_the_providers_whose_keys_are_there() -> None:
    """A key in the environment is all that is needed; nothing is asked of the provider yet."""
    start = [sys.executable, "-m", "trunkline_broker.cli.entry", "up"]
    keys = {"GROQ_API_KEY": "gsk-not-a-key-0123456789", "XAI_API_KEY": "xai-not-a-key-012345"}
    with run_directory() as home:
        quiet = {**dict.fromkeys(KEYS, ""), "HOME": str(home), **keys}
        with broker_in(home, environ=quiet, command=start) as broker:
            os.unlink(broker.config)
            broker.environ.pop("TRUNKLINE_CONFIG", None)
            broker.environ["TRUNKLINE_CONFIG"] = ""
            broker.start()
            for pool in ("groq", "xai"):
                broker.until_ready(pool)
            async with trunkline.connect(broker.endpoint) as llm:
                found = {info.id for info in await llm.list_providers()}
    assert {"groq", "xai"} <= found
    assert not found & {"openai", "anthropic", "mistral"}


# --- doctor ---------------------------------------------------------------------------------


def states(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return text to fix of everything that doctor found wrong."""
    return {row["text"]: row["fix"] for row in json.loads(done.stdout) if row["state"] == "wrong"}


async def test_doctor_finds_what_is_wrong_and_says_the_fix(tmp_path: Path) -> None:
    """One line each: an open key file, a missing variable, a closed port, no adapter, an option."""
    key = tmp_path / "key"
    key.write_text("sk-0123456789abcdef")
    key.chmod(0o644)
    (tmp_path / "trunkline.toml").write_text(
        f"""
        [worker.open_key]
        adapter = "chat_completions"
        options = {{ baseUrl = "http://127.0.0.1:1/v1", apiKeyFile = "{key}" }}
        [worker.unset]
        adapter = "scripted"
        env = ["NO_SUCH_KEY"]
        [worker.absent]
        adapter = "no_such_module:Adapter"
        [worker.misspelt]
        adapter = "chat_completions"
        options = {{ baseURL = "http://127.0.0.1:1/v1", requireKey = false }}
        [worker.bare]
        adapter = "scripted"
        python = "venvs/bare"
        """
    )
    done = command("doctor", "--json", "--config", "trunkline.toml", cwd=tmp_path)
    assert done.returncode == ExitCode.FAILED, done.stderr
    found = states(done)
    assert found[f"worker open_key: {key} can be read by others"] == f"chmod 600 {key}"
    (unreachable,) = (text for text in found if "127.0.0.1:1 " in text)
    assert "can't be reached" in unreachable
    assert "export NO_SUCH_KEY" in found["worker unset: variable NO_SUCH_KEY is not set here"]
    (absent,) = (text for text in found if text.startswith("worker absent: "))
    assert "no module" in absent
    (misspelt,) = (text for text in found if text.startswith("worker misspelt: "))
    assert misspelt.endswith("options: baseURL: unknown option; did you mean baseUrl?")
    assert "[worker.misspelt.options]" in found[misspelt]
    (bare,) = (text for text in found if text.startswith("worker bare: "))
    assert found[bare] == "trunkline setup bare"
    assert all("\n" not in text + fix and fix for text, fix in found.items())
    assert "sk-0123456789abcdef" not in done.stdout + done.stderr


async def test_doctor_is_content_with_what_works(tmp_path: Path) -> None:
    """Nothing is wrong: exit code 0, and the key is not shown."""
    async with RawServer(Answer()) as server:
        (tmp_path / "trunkline.toml").write_text(
            f"""
            [worker.chat]
            adapter = "chat_completions"
            env = ["CHAT_KEY"]
            options = {{ baseUrl = "{server.url}/v1", apiKeyEnv = "CHAT_KEY" }}
            """
        )
        import asyncio

        environ = {"CHAT_KEY": "sk-canary-0123456789"}
        done = await asyncio.to_thread(
            command, "doctor", "--config", "trunkline.toml", cwd=tmp_path, environ=environ
        )
    assert done.returncode == 0, done.stdout
    assert "worker chat: a key is there" in done.stdout
    assert "answers" in done.stdout
    assert "fix: trunkline up --detach" in done.stdout
    assert "sk-canary" not in done.stdout + done.stderr


def test_doctor_reads_a_broken_file(tmp_path: Path) -> None:
    """What can't be read is what is wrong."""
    (tmp_path / "trunkline.toml").write_text("[worker.a]\nadaptor = 1\n")
    done = command("doctor", cwd=tmp_path)
    assert done.returncode == ExitCode.FAILED
    assert "did you mean adapter?" in done.stdout


# --- a new adapter --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a new adapter."""
    home = tmp_path_factory.mktemp("new")
    done = command("adapter", "new", "acme-two", cwd=home)
    assert done.returncode == 0, done.stderr
    return home / "acme-two"


def test_a_new_adapter_fulfils_the_contract(acme: Path) -> None:
    """All twelve obligations hold and are shown, by the command and as tests of its own."""
    done = command("adapter", "check", "trunkline_acme_two.contract", cwd=acme)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 of 12 obligations hold" in done.stdout
    tests = subprocess.run(
        # In another process than the one that reports, as a large suite would run them.
        [sys.executable, "-m", "pytest", "-q", "-n1", "-p", "no:cacheprovider", "-W", "ignore"],
        cwd=acme,
        capture_output=True,
        text=True,
        timeout=120 * SLOW,
        check=False,
    )
    assert tests.returncode == 0, tests.stdout
    assert "12 passed" in tests.stdout
    row = next(line for line in tests.stdout.splitlines() if line.startswith("TestAcmeTwoAdapter"))
    assert row.split()[1:] == ["+"] * 12


SEND_KEY = """\
import asyncio
from trunkline_acme_two.contract import contract_subject

async def main():
    async with contract_subject() as subject:
        async for _ in subject.adapter.stream(subject.scenarios["text"]):
            pass
        print(subject.request_headers()[0]["authorization"])

asyncio.run(main())
"""


def test_a_new_adapter_sends_its_key(acme: Path) -> None:
    """The key itself, not what a secret prints as."""
    sent = subprocess.run(  # noqa: S603
        [sys.executable, "-c", SEND_KEY], cwd=acme, capture_output=True, text=True, check=True
    )
    assert sent.stdout == "Bearer not-a-real-key\n"


BREAKS = {
    4: ("translate.py", 'call["arguments"]', 'json.dumps(json.loads(call["arguments"]))'),
    5: ("adapter.py", "await response.close(is_complete=is_complete)", "pass"),
    7: ("adapter.py", '("reasoning_effort", "stop")', "()"),
    8: ("translate.py", 'kind == "stop" and self._count == 0', "False"),
    10: ("adapter.py", "**bearer(key)", '"authorization": f"Bearer {key}"'),
}


@pytest.mark.parametrize("number", BREAKS)
def test_a_broken_obligation_is_named(acme: Path, tmp_path: Path, number: int) -> None:
    """The verdict says which one and how; the exit code is 1."""
    import shutil

    copy = tmp_path / "broken"
    shutil.copytree(acme, copy, ignore=shutil.ignore_patterns("__pycache__"))
    name, good, bad = BREAKS[number]
    file = copy / "trunkline_acme_two" / name
    text = file.read_text()
    assert good in text
    changed = text.replace(good, bad)
    if number == 4:
        changed = changed.replace('{"type": "tool-call", **call}', _REWRITTEN)
    file.write_text(changed)
    done = command("adapter", "check", "--json", "trunkline_acme_two.contract", cwd=copy)
    assert done.returncode == 1, done.stdout + done.stderr
    broken = [row["number"] for row in json.loads(done.stdout) if row["outcome"] == "broken"]
    assert number in broken


_REWRITTEN = '{"type": "tool-call", **call, "arguments": json.dumps(json.loads(call["arguments"]))}'


def test_an_adapter_is_found_by_file_and_class(acme: Path, tmp_path: Path) -> None:
    """From anywhere; what it imports of its own package is found too."""
    target = f"{acme}/trunkline_acme_two/adapter.py:AcmeTwoAdapter"
    done = command("adapter", "check", target, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 of 12" in done.stdout


def test_what_cannot_be_checked_is_said(tmp_path: Path) -> None:
    """No module, or no subject: exit code 2, one line."""
    done = command("adapter", "check", "no_such_thing", cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "no adapter 'no_such_thing'" in done.stderr
    done = command("adapter", "check", "scripted", cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "contract_subject" in done.stderr


def test_nothing_is_overwritten(acme: Path) -> None:
    """A directory that is there is left alone; a name that is none is refused."""
    again = command("adapter", "new", "acme-two", cwd=acme.parent)
    assert (again.returncode, "exists already" in again.stderr) == (ExitCode.USAGE, True)
    assert command("adapter", "new", "Not A Name", cwd=acme.parent).returncode == ExitCode.USAGE


def test_a_new_adapter_serves(acme: Path) -> None:
    """Its own configuration starts it."""
    with run_directory() as home:
        config = (acme / "trunkline.toml").read_text()
        config = config.replace("trunkline_acme_two/", f"{acme}/trunkline_acme_two/")
        environ = {"ACME_TWO_API_KEY": "not-a-real-key"}
        with broker_in(home, config, environ) as broker:
            broker.start()
            broker.until_ready("acme-two")


# --- setup ----------------------------------------------------------------------------------


def test_setup_says_what_it_would_install(tmp_path: Path) -> None:
    """The venv of `python`, this Trunkline's requirements, and those of the section."""
    (tmp_path / "trunkline.toml").write_text(
        """
        [worker.claude]
        adapter = "pydantic_ai"
        python = "venvs/claude"
        requires = ["pydantic-ai-slim[anthropic]", "./mine"]
        options = { profile = "anthropic" }
        """
    )
    done = command("setup", "claude", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    make, install = done.stdout.splitlines()
    assert make.endswith(f"-m venv --without-pip {tmp_path}/venvs/claude")
    assert f"--python {tmp_path}/venvs/claude/bin/python install" in install
    assert install.endswith("pydantic-ai-slim[anthropic] ./mine")
    assert " httpx" in install
    assert " trunkline" not in install  # never asked of an index
    assert not (tmp_path / "venvs").exists()


def test_setup_of_something_unknown(tmp_path: Path) -> None:
    """It names what there is."""
    (tmp_path / "trunkline.toml").write_text('[worker.a]\nadapter = "scripted"\n')
    done = command("setup", "b", cwd=tmp_path)
    assert (done.returncode, "there are: local, a" in done.stderr) == (ExitCode.USAGE, True)
    done = command("setup", "a", cwd=tmp_path)
    assert (done.returncode, "add python = " in done.stderr) == (ExitCode.USAGE, True)
    done = command("setup", cwd=tmp_path)
    assert (done.returncode, "in a terminal" in done.stderr) == (ExitCode.USAGE, True)


@pytest.mark.parametrize("form", ["tree", "installed"])
def test_a_venv_gets_this_very_trunkline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """As a link to the source tree, or as a copy of what is installed."""
    if form == "installed":
        import shutil

        import trunkline_protocol
        import trunkline_workers

        site = tmp_path / "site-packages"
        for module in (trunkline_protocol, trunkline_workers):
            source = Path(str(module.__file__)).parent
            shutil.copytree(source, site / source.name)
        sources = {path.name: path for path in site.iterdir()}
        monkeypatch.setattr(
            "trunkline_broker.cli.venvs._source_of", lambda package: sources[package]
        )
    directory = tmp_path / "venv"
    venv.create(directory, with_pip=False)
    provide_trunkline(directory)
    code = "import trunkline_workers, trunkline_protocol.version as v; print(v.__version__)"
    done = subprocess.run(  # noqa: S603  # the venv's own interpreter
        [str(directory / "bin" / "python"), "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
