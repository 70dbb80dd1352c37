"""Failure codes are what their names say: a stable vocabulary."""

from __future__ import annotations

from trunkline_protocol.codes import Code


def test_every_code_is_spelled_as_it_is_named() -> None:
    codes = {name: value for name, value in vars(Code).items() if not name.startswith("_")}
    assert codes == {name: name for name in codes}
    assert "NO_ADAPTER" in codes
