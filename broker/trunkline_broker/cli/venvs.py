"""Interpreters of workers: a virtual environment with this very Trunkline and what a worker needs.

Trunkline is put in from where this one runs, never asked of an index: another project could have
its name there.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trunkline_broker.cli.terminal import fail, out
from trunkline_broker.interpreter import module_command, without_relative_paths

_EXTRA: Final = re.compile(r"""\s*(?:and\s*)?extra\s*==\s*['"]([^'"]+)['"]""")
_PARTS: Final = ("trunkline_protocol", "trunkline_workers")  # what a worker is made of
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


def requirements(declared: list[str], extra: str) -> list[str]:
    """Return what an extra of this distribution needs, extras that it names itself included.

    Args:
        declared: lines of the distribution's metadata, `NAME>=1; extra == "x"`. The distribution
            itself is never asked of an index: it is installed already, and another project could
            have its name there.
        extra: name of the extra, such as `local`; empty: what is needed without any.
    """
    found: list[str] = []
    for line in declared:
        wanted, _, marker = line.partition(";")
        named = _EXTRA.search(marker)
        if (named.group(1) if named else "") != extra:
            continue
        inner = re.match(r"trunkline\[([^\]]+)\]", wanted)
        if inner:
            for name in inner.group(1).split(","):
                found += requirements(declared, name.strip())
            continue
        rest = _EXTRA.sub("", marker).strip().removeprefix("and ").strip("() ")
        found.append(f"{wanted.strip()}; {rest}" if rest else wanted.strip())
    return found


def run_steps(steps: Sequence[Sequence[str]], cwd: Path | None = None, *, dry_run: bool) -> None:
    """Run commands one after the other, or only print them.

    Raises:
        CommandError: one failed; its own lines are above.
    """
    for step in steps:
        out().print(" ".join(step), style="dim", markup=False)
        if dry_run:
            continue
        environ = without_relative_paths(os.environ)
        if subprocess.run(step, check=False, cwd=cwd, env=environ).returncode != 0:  # noqa: S603  # our own
            fail("a step of the installation failed; its own lines are above")


def venv_steps(directory: Path, packages: Sequence[str], python: str) -> list[list[str]]:
    """Return the commands that make a venv with these packages; one that is there is kept.

    Args:
        directory: of the venv.
        packages: requirements, as pip takes them.
        python: the interpreter it is made with.
    """
    steps: list[list[str]] = []
    interpreter = directory / "bin" / "python"
    if not interpreter.exists():
        steps.append(module_command(python, "venv", "--without-pip", str(directory)))
    pip = module_command(sys.executable, "pip", "--python", str(interpreter), "install", "--quiet")
    steps.append([*pip, *packages])
    return steps


def provide_trunkline(directory: Path) -> None:
    """Put this Trunkline into a venv: a link to its source tree, or a copy of what is installed.

    Raises:
        CommandError: the venv's interpreter can't be run.
    """
    target = _site_packages(directory)
    sources = [_source_of(part) for part in _PARTS]
    trees = [each.parent for each in sources if each.parent.name not in _INSTALLED]
    if trees:
        text = "".join(f"{tree}\n" for tree in trees)
        (target / "trunkline-workers.pth").write_text(text, encoding="utf-8")
        return
    for source in sources:
        shutil.copytree(
            source,
            target / source.name,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )


def _source_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        fail(f"{package} is not installed here")
    return Path(places[0])


def _site_packages(directory: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    python = directory / "bin" / "python"
    try:
        done = subprocess.run(  # noqa: S603  # the venv's own interpreter
            [str(python), "-I", "-c", code], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as exc:
        fail(f"{python} can't be run: {exc}")
    return Path(done.stdout.strip())
