"""The run directory: which one, how private, how long."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from trunkline.endpoint import default_endpoint
from trunkline_broker.paths import (
    MAX_SOCKET_PATH_BYTES,
    RunDirError,
    RunPaths,
    default_run_dir,
    ipc,
)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TRUNKLINE_RUN_DIR": "/a", "XDG_RUNTIME_DIR": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_RUNTIME_DIR": "/b", "HOME": "/c"}, "/b/trunkline"),
        ({"HOME": "/c"}, "/c/.local/state/trunkline/run"),
        (
            {"TRUNKLINE_RUN_DIR": "", "XDG_RUNTIME_DIR": "", "HOME": "/c"},
            "/c/.local/state/trunkline/run",
        ),
    ],
)
def test_the_environment_names_the_run_directory(environ: dict[str, str], expected: str) -> None:
    """First of the three that is set and not empty."""
    assert default_run_dir(environ) == Path(expected)


def test_directories_are_made_private(tmp_path: Path) -> None:
    """Mode 0700, whatever the umask is; twice is the same as once."""
    paths = RunPaths(tmp_path / "x" / "run")
    paths.prepare()
    paths.prepare()
    for directory in (paths.root, paths.workers):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_users_of_workers_may_pass_through_and_nobody_else_once_they_are_gone(
    tmp_path: Path,
) -> None:
    """To their sockets; what else is there stays private."""
    paths = RunPaths(tmp_path / "run")
    paths.prepare([1000])
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (paths.root, paths.users, paths.workers)]
    assert modes == [0o711, 0o711, 0o700]
    paths.prepare()
    assert stat.S_IMODE(paths.root.stat().st_mode) == 0o700
    paths.prepare([1000])
    assert stat.S_IMODE(paths.root.stat().st_mode) == 0o711
    assert [path.name for path in paths.of_user(1000)] == ["1000.control", "1000.lane"]


def test_an_open_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    """It may be the wrong one, so nothing is changed; the text says what to do."""
    open_one = tmp_path / "run"
    open_one.mkdir()
    open_one.chmod(0o755)
    with pytest.raises(RunDirError, match="chmod 700"):
        RunPaths(open_one).prepare()
    assert stat.S_IMODE(open_one.stat().st_mode) == 0o755
    assert not list(open_one.iterdir())


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    """The text names length and bound; a path of exactly the bound is accepted."""
    longest = len("/workers/control")
    room = MAX_SOCKET_PATH_BYTES - longest - len(str(tmp_path)) - 1
    fitting = RunPaths(tmp_path / ("d" * room))
    fitting.prepare()
    with pytest.raises(RunDirError, match=r"108 bytes.*107.*TRUNKLINE_RUN_DIR"):
        RunPaths(tmp_path / ("d" * (room + 1))).prepare()


def test_a_file_in_the_way_is_a_clear_error(tmp_path: Path) -> None:
    """Not a traceback."""
    (tmp_path / "run").write_text("")
    with pytest.raises(RunDirError, match="can't create"):
        RunPaths(tmp_path / "run" / "deeper").prepare()


def test_names(tmp_path: Path) -> None:
    """The names that the other programs and the manual know."""
    paths = RunPaths(tmp_path)
    relative = [str(path.relative_to(tmp_path)) for path in paths.sockets]
    assert relative == ["control", "lane", "workers/control", "workers/lane"]
    assert (paths.lock.name, paths.hints.name, paths.log.name) == (
        "broker.lock",
        "alive.json",
        "broker.log",
    )
    assert ipc(paths.control) == f"ipc://{tmp_path}/control"


@pytest.mark.parametrize(
    "environ",
    [
        {"TRUNKLINE_RUN_DIR": "~/x", "HOME": "/c"},
        {"TRUNKLINE_RUN_DIR": "relative", "HOME": "/c"},
        {"XDG_RUNTIME_DIR": "/b", "HOME": "/c"},
        {"HOME": "/c"},
        {},
    ],
)
def test_clients_compute_the_same_address(environ: dict[str, str]) -> None:
    """The packages do not import each other, so only a test can compare them."""
    assert default_endpoint(environ) == ipc(RunPaths(default_run_dir(environ)).control)
