"""A `rich` console for which every text is only text: no markup, no emoji names, no controls."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text
from trunkline_protocol.printable import readable

_MAX_CHARS = 1024 * 1024  # of one text; a table cell or line of that length is nobody's name


class PlainConsole(Console):
    """Writes texts as they are, but for characters that could steer the terminal."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(
            stderr=stderr,
            width=width,
            highlight=False,
            soft_wrap=True,
            markup=False,
            emoji=False,
        )

    def render_str(self, text: str, **options: Any) -> Text:
        """Make of a text, also of a table's cell, what is written."""
        return super().render_str(readable(text, _MAX_CHARS), **options)
