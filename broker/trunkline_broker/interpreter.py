"""Begins the command line of every Python interpreter that Trunkline starts.

Python puts the current directory, or an empty entry of `PYTHONPATH`, before its own library. A file
`json.py` in the folder in which a command is run would then be code of the broker or of a worker,
with their keys. So each interpreter is started with `-P`, and relative entries of `PYTHONPATH` are
taken out of what it inherits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # `trunkline --help` must not load what the configuration needs
    from trunkline_broker.core.specs import PoolSpec

PYTHONPATH: Final = "PYTHONPATH"


def module_command(python: str, module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with an interpreter, and nothing of a folder."""
    return [python, "-P", "-m", module, *arguments]


def without_relative_paths(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose `PYTHONPATH` has absolute entries alone."""
    made = dict(environ)
    if PYTHONPATH in made:
        entries = [entry for entry in made[PYTHONPATH].split(os.pathsep) if os.path.isabs(entry)]
        made[PYTHONPATH] = os.pathsep.join(entries)
        if not entries:
            del made[PYTHONPATH]
    return made


def beside(spec: PoolSpec) -> tuple[str, ...]:
    """Return the arguments that tell a module of `trunkline_workers` where an adapter may be."""
    return ("--beside", spec.directory) if spec.directory else ()
