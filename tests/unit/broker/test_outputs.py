"""Output files of workers: private, below a size, their last lines."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trunkline_broker.outputs import (
    keep_below,
    last_lines,
    open_output,
    output_path,
    prune,
)


def test_a_file_is_private_and_cut_under_its_writer(tmp_path: Path) -> None:
    """The writer goes on where the cut file ends; the end of what was cut is kept."""
    path = tmp_path / "a-0-1.5.log"
    fd = open_output(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    os.write(fd, b"0123456789" * 10 + b"the end\n")
    assert not keep_below(path, 1000)
    assert keep_below(path, 50)
    os.write(fd, b"more\n")
    os.close(fd)
    assert path.read_bytes() == b"more\n"
    old = path.with_suffix(".old")
    assert old.read_bytes() == (b"0123456789" * 10 + b"the end\n")[-50:]
    assert stat.S_IMODE(old.stat().st_mode) == 0o600
    assert last_lines(path)[-1] == "more"
    assert last_lines(path)[-2].endswith("the end")


def test_last_lines_are_bounded(tmp_path: Path) -> None:
    """In number and length; bytes that are no text do no harm."""
    path = tmp_path / "a-0-1.5.log"
    path.write_bytes(b"\n".join(b"%d" % n for n in range(100)) + b"\n\n\xff\xfe" + b"x" * 5000)
    lines = last_lines(path, 3)
    assert len(lines) == 3
    assert lines[:2] == ("98", "99")
    assert len(lines[2]) == 500


def test_no_file_has_no_lines(tmp_path: Path) -> None:
    """A worker whose output could not be kept."""
    assert last_lines(tmp_path / "none.log") == ()
    assert not keep_below(tmp_path / "none.log")


def test_only_the_newest_files_of_a_slot_stay(tmp_path: Path) -> None:
    """Other slots and pools are not touched."""
    for number in range(8):
        path = output_path(tmp_path, "a", 0, 5_000_000_000, number)
        path.write_text("x")
        os.utime(path, ns=(number, number))
    (tmp_path / "a-1-0.5.log").write_text("x")
    prune(tmp_path, "a", 0, keep=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a-0-6.5.log", "a-0-7.5.log", "a-1-0.5.log"]
