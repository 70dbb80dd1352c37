"""The interpreters of this machine: those on PATH, of pyenv, and those that a variable names."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
VARIABLE = "TRUNKLINE_PYTHONS"
"""Paths of interpreters, separated as in PATH; they go before all others."""


def promised() -> list[str]:
    """Return the versions of Python that the distribution says it supports, as `3.11`."""
    texts = PYPROJECT["project"]["classifiers"]
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text) for text in texts]
    return [match[1] for match in found if match]


@functools.cache
def interpreter(version: str) -> Path | None:
    """Return an interpreter of a version that starts, or `None`."""
    for path in _candidates(version):
        command = [path, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        try:
            told = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        except OSError:
            continue
        if told.stdout.strip() == version:  # a shim of pyenv may start nothing
            return Path(path)
    return None


def _candidates(version: str) -> Iterator[str]:
    yield from filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    found = shutil.which(f"python{version}")
    if found is not None:
        yield found
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(root.glob(f"versions/{version}.*/bin/python{version}")))
