"""The log: never in the way, and honest about what was lost."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from trunkline_broker.telemetry import LineWriter, Telemetry

from tests.support.timing import until


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


def test_a_long_text_is_cut_and_a_half_character_harms_nothing(tmp_path: Path) -> None:
    """Whatever stands in a field, a line is bounded and can be read."""
    for style in ("json", "pretty"):
        path = tmp_path / style
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        telemetry = Telemetry(fd, style, "info")
        telemetry.log("info", "x", {"why": "y" * 10_000_000, "name": "\ud800\x1b[2J", "n": 2**70})
        telemetry.close()
        os.close(fd)
        (line,) = path.read_bytes().splitlines()
        assert len(line) < 5000
        assert b"\x1b" not in line
        assert "\u2026" in line.decode() or b"\\u2026" in line


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


def test_the_file_of_a_detached_broker_never_exceeds_its_size(tmp_path: Path) -> None:
    """However fast lines come; the last part is beside it, and also without its name it is cut."""
    path = tmp_path / "broker.log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    telemetry = Telemetry(fd, "json", "info")
    telemetry.own_file(path, 20_000)
    for at in range(1000):
        telemetry.log("info", "line", {"at": at, "text": "x" * 100})
        if at % 100 == 0:
            until(lambda: telemetry.queue().depth == 0)
        assert path.stat().st_size <= 20_000
    until(lambda: telemetry.queue().depth == 0)
    assert path.with_suffix(".old").stat().st_size <= 20_000
    path.unlink()
    for at in range(1000):
        telemetry.log("info", "line", {"at": at, "text": "x" * 100})
    telemetry.close()
    assert os.fstat(fd).st_size <= 20_000
    assert telemetry.lines_lost == 0
    os.close(fd)


def test_a_value_that_cannot_be_written_costs_its_line_alone(tmp_path: Path) -> None:
    """It is counted, and said with the name of the error."""

    class Unprintable:
        def __str__(self) -> str:
            raise ValueError("no text")

    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    telemetry = Telemetry(fd, "json", "info")
    telemetry.log("info", "bad", {"x": Unprintable(), "half": "\ud800"})
    telemetry.log("info", "good", {"half": "\ud800"})
    telemetry.close()
    os.close(fd)
    first, second = path.read_text().splitlines()
    assert "service_failed" in first
    assert json.loads(second)["event"] == "good"
    assert telemetry.counters == {"service_failed.log": 1}
