"""The characters of a text from outside that people may see; the others are replaced."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from trunkline_protocol.codes import Code
from trunkline_protocol.limits import MAX_NAME_BYTES, MAX_TEXT_BYTES
from trunkline_protocol.printable import (
    REPLACEMENT,
    code_of,
    is_name,
    is_printable,
    one_line,
    readable,
)

STEERING = [
    *map(chr, range(0x20)), "\x7f", "\x9b", "\u202e", "\u2066", "\u2028", "\u200b", "\ufeff",
    "\U000e0041", "\ud800", "\udfff", "\uffff",
]  # fmt: skip
"""Characters that move a cursor, reorder or hide text, or have no UTF-8 form."""

VISIBLE = [
    "",
    "gpt-4o",
    "claude 3.5 (beta)",
    "模型\u3000一",
    "क्‍ष",
    "👩\u200d💻",
    "a\u00a0b",
    "[/red]",
]


@pytest.mark.parametrize("character", STEERING)
def test_a_steering_character_is_refused_in_a_name_and_replaced_in_a_line(character: str) -> None:
    for text in (character, f"a{character}b", f"é{character}"):
        assert not is_printable(text)
        assert not is_name(text)
        assert one_line(text) == text.replace(character, REPLACEMENT)


@pytest.mark.parametrize("text", VISIBLE)
def test_what_people_write_passes_unchanged(text: str) -> None:
    assert is_name(text)
    assert one_line(text) == readable(text) == text


def test_tabs_and_line_feeds_stay_in_a_text_and_nothing_else_that_steers() -> None:
    steering = [each for each in STEERING if each not in "\t\n"]
    assert readable("a\tb\nc" + "".join(steering)) == "a\tb\nc" + REPLACEMENT * len(steering)


def test_every_character_that_passes_can_be_encoded_and_is_no_control() -> None:
    passed = [char for at in range(sys.maxunicode + 1) if is_printable(char := chr(at))]
    assert len(passed) > 1_000_000  # private use and unassigned too: Unicode grows
    assert not {unicodedata.category(char) for char in passed} & {"Cc", "Cs", "Zl", "Zp"}
    "".join(passed).encode()


def test_texts_are_cut_at_their_bounds() -> None:
    assert is_name("é" * MAX_NAME_BYTES)
    assert not is_name("é" * (MAX_NAME_BYTES + 1))
    assert one_line("x" * 10_000_000) == "x" * MAX_NAME_BYTES
    assert readable("x" * 10_000_000) == "x" * MAX_TEXT_BYTES
    assert one_line("a\x1bb", 2) == f"a{REPLACEMENT}"


@pytest.mark.parametrize("value", [None, 5, b"AUTH", ["AUTH"], True])
def test_what_is_no_text_is_neither_a_name_nor_a_code(value: object) -> None:
    assert not is_name(value)
    assert code_of(value) == Code.UNKNOWN


@pytest.mark.parametrize("code", ["AUTH", "E_4", "X" * 64])
def test_a_code_passes(code: str) -> None:
    assert code_of(code) == code


@pytest.mark.parametrize("text", ["", "auth", "A B", "X" * 65, "AUTH\n", "Ä", "A\x1b", "A\ud800"])
def test_other_texts_are_an_unknown_code(text: str) -> None:
    assert code_of(text) == Code.UNKNOWN
