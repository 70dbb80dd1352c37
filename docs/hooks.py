"""What the site makes of pages: included files, links out of `docs/`, names of files on blocks."""
# ruff: noqa: INP001  # read by mkdocs, imported by nobody

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_INCLUDE = re.compile(r"^<!-- include: (\S+) -->$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)(?:#[^)]*)?\)")
# "```python file=echo.py": a checkout shows the block all the same, the site would not.
_FENCE = re.compile(r"^```(\w+) ([^\n]+)$", re.MULTILINE)


def _titled(found: re.Match[str]) -> str:
    file = re.fullmatch(r"file=(\S+)", found[2])
    return f"```{found[1]}" + (f' title="{file[1]}"' if file else "")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Put included files in, and turn links out of `docs/` into the names of those files."""

    def included(found: re.Match[str]) -> str:
        text = (ROOT / found[1]).read_text(encoding="utf-8")
        return re.sub(r"^# .*\n", "", text, count=1) if found[1].endswith(".md") else text

    def named(found: re.Match[str]) -> str:
        target = ((ROOT / "docs" / page.file.src_uri).parent / found[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return found[0]
        return f"{found[1]} (`{target.relative_to(ROOT)}`)"

    return _FENCE.sub(_titled, _LINK.sub(named, _INCLUDE.sub(included, markdown)))
