"""Decides which characters a text from outside may show to people, and replaces the others.

A name that steers a terminal, hides characters or holds half a surrogate pair is refused where it
enters. A text for people loses such characters and keeps the rest. It knows no frames.
"""

from __future__ import annotations

import re
from typing import Final, TypeGuard

from trunkline_protocol.codes import Code
from trunkline_protocol.limits import MAX_NAME_BYTES, MAX_TEXT_BYTES

CODE_FORM: Final = re.compile(r"[A-Z0-9_]{1,64}", re.ASCII)
"""The form of a failure code: it is a label of metrics, a word of the log, a key of policies."""

REPLACEMENT: Final = "\ufffd"
# Listed and not asked of `str.isprintable`: the answer is the same in every version of Unicode, and
# no-break spaces and the joiners of emoji and of Indic scripts stay legal.
_CONTROLS: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1: ESC, CSI, NUL, CR; not tab and line feed
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional: they reorder what is shown
    "\u200b\u2028\u2029\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # not visible
    "\ud800-\udfff\ufffe\uffff"  # no characters: half pairs have no UTF-8 form
)
STEERING: Final = re.compile(f"[{_CONTROLS}]")
"""What no text for people may hold; tab and line feed are left to the caller."""
_IN_LINE: Final = re.compile(f"[{_CONTROLS}\t\n]")


def is_printable(text: str) -> bool:
    """Return whether a text is one visible line: no control, hidden or lone half character."""
    if text.isascii():
        return text.isprintable()
    return _IN_LINE.search(text) is None


def is_name(value: object) -> TypeGuard[str]:
    """Return whether a value may be a name: printable, at most 256 characters; empty is legal."""
    return type(value) is str and len(value) <= MAX_NAME_BYTES and is_printable(value)


def one_line(text: str, most: int = MAX_NAME_BYTES) -> str:
    """Return the beginning of a text as one visible line that has a UTF-8 form.

    Args:
        text: of any length; only its beginning is read.
        most: characters of the result.
    """
    text = text[:most]
    return text if is_printable(text) else _IN_LINE.sub(REPLACEMENT, text)


def readable(text: str, most: int = MAX_TEXT_BYTES) -> str:
    """Return the beginning of a text for people; tabs and line feeds stay.

    Args:
        text: of any length; only its beginning is read.
        most: characters of the result.
    """
    text = text[:most]
    if text.isascii() and text.isprintable():
        return text
    return STEERING.sub(REPLACEMENT, text)


def code_of(value: object) -> str:
    """Return a failure code as it came if it has the form of one, else `UNKNOWN`."""
    if type(value) is str and CODE_FORM.fullmatch(value):
        return value
    return Code.UNKNOWN
