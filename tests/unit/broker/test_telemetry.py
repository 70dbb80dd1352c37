"""The log: never in the way, and honest about what was lost."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from trunkline_broker.telemetry import LineWriter, Telemetry


def test_lines_are_json_with_their_fields(tmp_path: Path) -> None:
    """One object per line, fields beside the event."""
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    telemetry = Telemetry(fd, "json", "info")
    telemetry.log("info", "ready", {"pid": 7})
    telemetry.log("debug", "unwanted", {})
    telemetry.close()
    os.close(fd)
    (line,) = path.read_text().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["event"], entry["pid"]) == ("info", "ready", 7)
    assert entry["at"].endswith("+00:00")


def test_pretty_lines_are_for_people(tmp_path: Path) -> None:
    """Time, level, event, fields; an error with its traceback."""
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    telemetry = Telemetry(fd, "pretty", "debug")
    telemetry.log("warning", "worker_exited", {"pool": "a", "why": "x\ny z=1"})
    telemetry.crash("broken", ValueError("why"))
    telemetry.close()
    os.close(fd)
    text = path.read_text()
    assert r'warning worker_exited pool=a why="x\ny z=1"' in text
    assert "ValueError: why" in text


def test_lines_on_a_terminal_are_short() -> None:
    """Eighty columns: no date, and no generation beside the pid."""
    master, slave = os.openpty()
    telemetry = Telemetry(slave, "pretty", "info")
    telemetry.log("info", "worker_serves", {"pool": "a", "generation": [1, 2], "pid": 7})
    telemetry.close()
    line = os.read(master, 1000).decode()
    os.close(slave)
    os.close(master)
    assert re.fullmatch(r"\d\d:\d\d:\d\d info    worker_serves pool=a pid=7\r\n", line)


def test_a_full_disk_loses_lines_and_says_so(tmp_path: Path) -> None:
    """Nothing is raised; the loss is counted, and said as soon as a line can be written."""
    full = os.open("/dev/full", os.O_WRONLY)
    writer = LineWriter(full)
    for _ in range(3):
        writer.put(b"x")
    while writer.lost < 3:
        os.sched_yield()
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(fd, full)  # the disk has room again
    writer.put(b"y")
    writer.close()
    assert path.read_bytes() == b"(3 log lines were lost)\ny\n"
    os.close(fd)
    os.close(full)


def test_a_reader_that_stops_does_not_block() -> None:
    """A full pipe: lines beyond the queue are counted, and the end does not wait for them."""
    reader, writer_fd = os.pipe()
    writer = LineWriter(writer_fd)
    line = b"x" * 4096
    while not writer.lost:
        writer.put(line)
    os.close(reader)  # lets the thread go, with an error that is counted
    writer.close()
    os.close(writer_fd)
    assert writer.lost
