"""`trunkline config`: check, show and describe the configuration; no broker is needed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.terminal import err, fail, out, print_json

if TYPE_CHECKING:
    from trunkline_broker.config import Settings

app = typer.Typer(
    help="Check, show and describe the configuration.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

File = Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file (TOML).")]


@app.command()
def check(
    *,
    config: File = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the file that `trunkline up` would use; exit code 2 if it can't be used.

    Without --config: $TRUNKLINE_CONFIG, ./trunkline.toml, then
    $XDG_CONFIG_HOME/trunkline/trunkline.toml; with none of them the built-in configuration.
    TRUNKLINE_BROKER_KEY=VALUE in the environment overrides `key` of [broker], and
    TRUNKLINE_WORKER_NAME_KEY=VALUE that of [worker.NAME] (letters large, - as _).
    What is allowed but will hardly work is said on stderr and changes no exit code.

    \b
      trunkline config check
      trunkline config check --config deploy/broker.example.toml
      trunkline config check --json | jq -r '.notes[]'
    """
    from trunkline_broker.config import places
    from trunkline_broker.config_view import advice

    settings = loaded(config)
    notes = list(advice(settings))
    if as_json:
        source = None if settings.source is None else str(settings.source)
        print_json({"file": source, "workers": list(settings.workers), "notes": notes})
        return
    say_notes(notes)
    if settings.source is None:
        looked = ", ".join(str(path) for path in places(settings.environ))
        err().print(f"no file in {looked}", style="dim", markup=False)
    name = settings.source or "the built-in configuration"
    pools = ", ".join(settings.workers) or "none"
    out().print(f"{name}: good; workers: {pools}", markup=False)


@app.command()
def show(
    *,
    config: File = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every key with the value in force and where it is from; secrets are masked.

    \b
      trunkline config show
      trunkline config show --json | jq .broker.drain_s
    """
    from trunkline_broker.config_view import as_toml, resolved

    settings = loaded(config)
    if as_json:
        print_json(resolved(settings))
        return
    source = settings.source or "the built-in configuration"
    out().print(f"# {source}; run directory {settings.run_dir}", style="dim", markup=False)
    out().print(as_toml(settings), markup=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the file, for editors and other checkers.

    \b
      trunkline config schema > trunkline.schema.json
    """
    from trunkline_broker.config_view import schema as described

    print_json(described())


def say_notes(notes: Iterable[str]) -> None:
    """Say on stderr what is allowed and will hardly work, in words of `advice`."""
    for text in notes:
        err().print(f"note: {text}", style="yellow", markup=False)


def loaded(path: Path | None) -> Settings:
    """Return the settings of a file, or of the first one found.

    Raises:
        CommandError: with all mistakes and `ExitCode.USAGE`.
    """
    from trunkline_broker.config import load
    from trunkline_broker.config_errors import ConfigError

    try:
        return load(path, os.environ)
    except ConfigError as exc:
        fail(str(exc), ExitCode.USAGE)
