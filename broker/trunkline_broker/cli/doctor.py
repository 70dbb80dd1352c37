"""`trunkline doctor`: what is configured, reachable and wrong, and the fix in one line each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trunkline_broker.cli.connection import ask, run_async
from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.terminal import CommandError, out, print_json

if TYPE_CHECKING:
    from trunkline_broker.cli.findings import Finding
    from trunkline_broker.config import Settings

_STYLES: Final = {"ok": "green", "note": "yellow", "wrong": "red"}
_STATUS_S: Final = 3.0


def doctor(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration file (TOML).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look for what is wrong and say what to do; exit code 1 if something is. Changes nothing.

    It imports each worker's adapter in the worker's interpreter. Of a ./trunkline.toml that it
    found and nobody named it runs nothing: name it with --config if you trust that folder.

    \b
      trunkline doctor
      trunkline doctor --config trunkline.toml
      trunkline doctor --json | jq '.[] | select(.state == "wrong")'
    """
    findings = list(_findings(config))
    if as_json:
        rows = [{"state": f.state, "text": f.text, "fix": f.fix} for f in findings]
        print_json(rows)
    else:
        for finding in findings:
            out().print(f"{finding.state:<6}", style=_STYLES[finding.state], end="")
            out().print(finding.text, markup=False)
            if finding.fix:
                out().print(f"      fix: {finding.fix}", style="bold", markup=False)
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


def _findings(path: Path | None) -> list[Finding]:
    from trunkline_broker.cli import findings
    from trunkline_broker.config import load
    from trunkline_broker.config_errors import ConfigError

    found = list(findings.machine())
    try:
        settings = load(path, os.environ)
    except ConfigError as exc:
        fix = "correct it; `trunkline config check` says the same"
        return [*found, findings.Finding(findings.WRONG, str(exc), fix)]
    found += findings.run_directory(settings)
    found += findings.configuration(settings)
    document = _status()
    if path is None and _is_of_this_folder(settings, document):
        found += findings.untried(settings)
    else:
        found += findings.workers(settings)
    found += findings.broker(settings, document)
    return found


def _is_of_this_folder(settings: Settings, document: dict[str, Any] | None) -> bool:
    """Return whether the configuration was found in the current folder, and named by nobody.

    One that a broker of this user runs with has been chosen before.
    """
    from trunkline_broker.config import CONFIG_ENV, FILE_NAME, current_directory

    here = current_directory()
    if settings.source is None or here is None or os.environ.get(CONFIG_ENV):
        return False
    running = document.get("config") if document is not None else None
    return settings.source == here / FILE_NAME and running != str(settings.source)


def _status() -> dict[str, Any] | None:
    """Ask the broker for its status; `None` if none answers."""
    try:
        return run_async(ask("doctor", "status", {}, _STATUS_S))
    except CommandError:
        return None
