"""Output files of workers: private, below a size, their last lines."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from trunkline_broker.outputs import (
    keep_below,
    last_lines,
    open_output,
    output_path,
    prune,
)
from trunkline_protocol.chunks import TextDelta
from trunkline_protocol.finish import FinishReason
from trunkline_protocol.ids import CallId
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.prompts import PromptLog


def test_a_file_is_private_and_cut_under_its_writer(tmp_path: Path) -> None:
    """The writer goes on where the cut file ends; the end of what was cut is kept."""
    path = tmp_path / "a-0-1.5.log"
    fd = open_output(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    os.write(fd, b"0123456789" * 9 + b"\nand now\nthe end\n")
    assert not keep_below(path, 1000)
    assert keep_below(path, 50)
    os.write(fd, b"more\n")
    os.close(fd)
    assert path.read_bytes() == b"more\n"
    old = path.with_suffix(".old")
    assert old.read_bytes() == (b"0123456789" * 9 + b"\nand now\nthe end\n")[-50:]
    assert stat.S_IMODE(old.stat().st_mode) == 0o600
    assert last_lines(path) == ("and now", "the end", "more")


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


def test_prompts_of_the_debug_switch_are_no_last_lines(tmp_path: Path) -> None:
    """They would go into the broker's log and status; nor does a piece of one."""
    path = tmp_path / "a-0-1.5.log"
    written: list[str] = []
    log = PromptLog(written.append, str)
    key = (CallId(b"k" * 16), 0)
    text = {"type": "text", "text": "zebra\u2028zebra " * 2000}
    message = {"id": "1", "role": "user", "content": [text], "source": {"kind": "user"}}
    log.request(
        key, GenerateOptions.from_dict({"provider": "p", "model": "m", "messages": [message]})
    )
    log.chunks(key, [TextDelta(0, "zebra").to_array()])
    log.end(key, FinishReason("stop"))
    lines = "".join(f"[trunkline] {line}\n" for line in written)
    path.write_text(f"first\n{lines}last\n", encoding="utf-8")
    assert last_lines(path)[-1] == "last"
    assert "zebra" not in str(last_lines(path))
    path.write_text(f"{lines}{lines[: len(lines) // 2]}", encoding="utf-8")  # killed at it
    assert "zebra" not in str(last_lines(path))
    assert keep_below(path, 5000)  # the file ends, and what is kept begins, within a prompt
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{lines[len(lines) // 2 :]}more\n")
    assert last_lines(path) == ("more",)


def test_a_pipe_of_the_name_is_not_waited_for(tmp_path: Path) -> None:
    path = output_path(tmp_path, "a", 0, 5_000_000_000, 1)
    os.mkfifo(path)
    with pytest.raises(OSError, match=r"No such device|named pipe"):
        open_output(path)
