"""`trunkline adapter`: begin an adapter of one's own, and judge one.

The check runs in the interpreter of the adapter, as a worker does: this command imports none.
"""

from __future__ import annotations

import keyword
import os
import re
import subprocess
import sys
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Final

import typer

from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.terminal import fail, out
from trunkline_broker.interpreter import module_command, without_relative_paths

app = typer.Typer(
    help="Begin an adapter of your own, and judge one.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

_NAME: Final = re.compile(r"^[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*$")
_SUFFIX: Final = ".txt"  # so that no tool takes a template for code of ours
_PACKAGE: Final = "package"


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Of the adapter and its route, such as acme.")],
    *,
    directory: Annotated[
        Path | None, typer.Option("--in", help="Where its directory is made; default: here.")
    ] = None,
) -> None:
    """Write a working adapter with a fake provider and its tests, to be changed into yours.

    \b
      trunkline adapter new acme
      cd acme && trunkline adapter check trunkline_acme.contract
    """
    if not _NAME.match(name) or keyword.iskeyword(name):
        fail(f"{name!r}: small letters, digits, - and _, beginning with a letter", ExitCode.USAGE)
    target = (directory or Path()) / name
    if target.exists():
        fail(f"{target} exists already; nothing was changed", ExitCode.USAGE)
    for path, text in scaffold(name).items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        out().print(str(file), markup=False)
    out().print(
        f"next: cd {target} && trunkline adapter check {package_of(name)}.contract", markup=False
    )


@app.command()
def check(
    module: Annotated[
        str, typer.Argument(help="Module, module:Class, file.py, or an installed adapter's name.")
    ],
    *,
    python: Annotated[str, typer.Option(help="Interpreter of the adapter.")] = sys.executable,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run the adapter contract and print a verdict; exit code 1 if an obligation is broken.

    \b
      trunkline adapter check trunkline_acme.contract
      trunkline adapter check acme.adapter:Acme --python .venv/bin/python
    """
    given = (module, "--beside", str(Path.cwd()), *(("--json",) if as_json else ()))
    command = module_command(python, "trunkline_workers.check", *given)
    environ = without_relative_paths(os.environ)
    try:
        code = subprocess.run(command, check=False, env=environ).returncode  # noqa: S603  # the user's choice
    except OSError as exc:
        fail(f"can't run {python}: {exc.strerror}", ExitCode.USAGE)
    raise typer.Exit(code)


def package_of(name: str) -> str:
    """Return the import package of a new adapter."""
    return f"trunkline_{name.replace('-', '_')}"


def scaffold(name: str) -> dict[str, str]:
    """Return the files of a new adapter: relative path to text."""
    words = re.split(r"[-_]", name)
    values = {
        "name": name,
        "package": package_of(name),
        "class": "".join(word.capitalize() for word in words) + "Adapter",
        "title": " ".join(word.capitalize() for word in words),
        "variable": "_".join(word.upper() for word in words),
    }
    root = files("trunkline_broker.cli") / "scaffold"
    made: dict[str, str] = {}
    for path, template in _templates(root, ""):
        text = template.read_text(encoding="utf-8")
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        made[path.replace(f"{_PACKAGE}/", f"{values['package']}/", 1)] = text
    return made


def _templates(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            found += _templates(entry, f"{path}/")
        elif path.endswith(_SUFFIX):
            found.append((path.removesuffix(_SUFFIX), entry))
    return found
