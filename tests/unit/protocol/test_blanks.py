"""What counts as a blank."""

from __future__ import annotations

from trunkline_protocol.blanks import BLANKS


def test_blanks_are_those_of_ecmascript_and_not_those_of_python() -> None:
    assert len(set(BLANKS)) == len(BLANKS) == 25
    assert {char for char in BLANKS if not char.isspace()} == {"\ufeff"}
    assert not set("\x1c\x1d\x1e\x1f\x85\u200b\u180e\u2060\0") & set(BLANKS)
