"""The file that probes look at."""

from __future__ import annotations

from pathlib import Path

from trunkline_workers.health import HealthFile


def test_the_file_holds_the_last_state_and_goes_with_its_worker(tmp_path: Path) -> None:
    counted: list[str] = []
    health = HealthFile(str(tmp_path / "health"), counted.append)
    for state in ("starting", "serving"):
        health.write(state)
        said, uptime = (tmp_path / "health").read_text().splitlines()
        now_s = float(Path("/proc/uptime").read_text().split()[0])
        assert said == state
        assert abs(now_s - int(uptime)) < 60
    health.remove()
    assert list(tmp_path.iterdir()) == []
    health.remove()
    assert counted == []


def test_a_file_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    """The worker serves on; the probe sees that the file is old, or not there."""
    counted: list[str] = []
    HealthFile(str(tmp_path / "nowhere" / "health"), counted.append).write("serving")
    assert counted == ["health_unwritten"]


def test_without_a_name_there_is_no_file(tmp_path: Path) -> None:
    counted: list[str] = []
    health = HealthFile("", counted.append)
    health.write("serving")
    health.remove()
    assert counted == []
    assert list(tmp_path.iterdir()) == []
