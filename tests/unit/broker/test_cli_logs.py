"""Which file `trunkline logs` shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from trunkline_broker.cli.logs import newest, tail

FILES = (
    "a-0-1.100.log",
    "a-0-3.100.log",
    "a-1-4.100.log",
    "a-0-1.200.log",
    "a-b-0-9.300.log",
    "a-0-1.200.log.old",
)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("a", "a-0-1.200.log"),  # of the later broker, though its number is lower
        ("a/0", "a-0-1.200.log"),
        ("a/1", "a-1-4.100.log"),
        ("a-b", "a-b-0-9.300.log"),
        ("a/2", None),
        ("b", None),
        ("*", None),
    ],
)
def test_the_newest_process_of_a_worker(tmp_path: Path, name: str, file: str | None) -> None:
    for each in FILES:
        (tmp_path / each).touch()
    assert newest(tmp_path, name) == (tmp_path / file if file else None)


def test_the_process_before_the_newest(tmp_path: Path) -> None:
    for each in FILES:
        (tmp_path / each).touch()
    assert newest(tmp_path, "a", before=1) == tmp_path / "a-1-4.100.log"
    assert newest(tmp_path, "a/0", before=2) == tmp_path / "a-0-1.100.log"
    assert newest(tmp_path, "a/1", before=1) is None


def test_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"1\n2\n\xff3\n")
    with path.open(encoding="utf-8", errors="replace") as file:
        assert tail(file, 2) == ["2\n", "\ufffd3\n"]
    with path.open(encoding="utf-8", errors="replace") as file:
        assert tail(file, 0) == []
