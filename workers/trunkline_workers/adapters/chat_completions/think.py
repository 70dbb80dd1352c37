"""Split inline `<think>` text from the answer; pure, and independent of where deltas are cut.

Only a tag at the start of the content opens reasoning, as reasoning models write it: a tag that is
quoted later in an answer is text. The white space after the closing tag belongs to neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


class _State(Enum):
    START = 1  # only white space or a beginning of the opening tag so far
    THINKING = 2
    AFTER = 3  # the closing tag came, no text yet
    TEXT = 4


class ThinkSplitter:
    """Feed content deltas, get `(is_reasoning, text)` pieces."""

    __slots__ = ("_held", "_state")

    def __init__(self, *, is_open: bool = False) -> None:
        """Start before the first delta.

        Args:
            is_open: the prompt template already wrote the opening tag.
        """
        self._state = _State.THINKING if is_open else _State.START
        self._held = ""  # text that may be the beginning of a tag

    def feed(self, text: str) -> Iterator[tuple[bool, str]]:
        """Take one delta and yield the pieces that are certain, none of them empty."""
        text = self._held + text
        self._held = ""
        if self._state is _State.START:
            text = self._start(text)
        if self._state is _State.THINKING:
            thought, text = self._thinking(text)
            if thought:
                yield True, thought
        if self._state is _State.AFTER:
            text = text.lstrip()
            if text:
                self._state = _State.TEXT
        if self._state is _State.TEXT and text:
            yield False, text

    def finish(self) -> Iterator[tuple[bool, str]]:
        """Yield what was held back when the content ended."""
        if self._held:
            yield self._state is _State.THINKING, self._held
            self._held = ""

    def _start(self, text: str) -> str:
        """Look for the opening tag; hold the text while it may still be one."""
        stripped = text.lstrip()
        if stripped.startswith(_OPEN):
            self._state = _State.THINKING
            return stripped[len(_OPEN) :]
        if _OPEN.startswith(stripped):
            self._held = text
            return ""
        self._state = _State.TEXT
        return text

    def _thinking(self, text: str) -> tuple[str, str]:
        """Cut at the closing tag; hold an end that may be its beginning."""
        thought, tag, rest = text.partition(_CLOSE)
        if tag:
            self._state = _State.AFTER
            return thought, rest
        for size in range(min(len(_CLOSE) - 1, len(text)), 0, -1):
            if text.endswith(_CLOSE[:size]):
                self._held = text[-size:]
                return text[:-size], ""
        return text, ""
