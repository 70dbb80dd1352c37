"""Where pydantic-ai is installed: in this interpreter, or in a venv that `make library` made."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
VARIABLE: Final = "TRUNKLINE_LIBRARY_PYTHON"
REASON: Final = (
    f"pydantic-ai is not installed; `make library` installs it, {VARIABLE} names another"
)


def library_python() -> str | None:
    """Return an interpreter that has the library and this project, if there is one."""
    if importlib.util.find_spec("pydantic_ai") is not None:
        return sys.executable
    candidate = Path(os.environ.get(VARIABLE) or ROOT / ".venv-library/bin/python")
    return str(candidate) if candidate.is_file() else None
