"""Where a client looks for its broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from trunkline.endpoint import checked_endpoint, default_endpoint, run_dir
from trunkline_broker.paths import RUN_DIR_ENV, RunPaths, default_run_dir, ipc
from trunkline_protocol.failure import LocalProtocolError

_ENVIRONMENTS = [
    {"TRUNKLINE_RUN_DIR": "/srv/here", "XDG_RUNTIME_DIR": "/run/user/1"},
    {"TRUNKLINE_RUN_DIR": "", "XDG_RUNTIME_DIR": "/run/user/1", "HOME": "/home/x"},
    {"HOME": "/home/x"},
    {"XDG_RUNTIME_DIR": "", "HOME": "/home/x"},
    {},
]


@pytest.mark.parametrize("at", range(len(_ENVIRONMENTS)))
def test_client_and_broker_agree_on_the_run_directory(at: int) -> None:
    """Both compute it on their own from the same names."""
    environ = _ENVIRONMENTS[at]
    assert run_dir(environ) == default_run_dir(environ)
    assert default_endpoint(environ) == ipc(RunPaths(default_run_dir(environ)).control)


def test_a_relative_run_directory_is_made_absolute() -> None:
    """A client in another directory means the same socket."""
    environ = {RUN_DIR_ENV: "here"}
    assert run_dir(environ) == Path.cwd() / "here" == default_run_dir(environ)


def test_an_endpoint_in_the_environment_wins() -> None:
    """Over every directory."""
    environ = {"TRUNKLINE_ENDPOINT": "tcp://host:1", "TRUNKLINE_RUN_DIR": "/srv/here"}
    assert default_endpoint(environ) == "tcp://host:1"


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another is given."""
    monkeypatch.setenv("TRUNKLINE_ENDPOINT", "tcp://host:2")
    assert default_endpoint() == "tcp://host:2"


def test_an_endpoint_must_be_one() -> None:
    """A bare path is a socket; another scheme or a path too long for the system is refused."""
    assert checked_endpoint("/srv/x/control") == "ipc:///srv/x/control"
    with pytest.raises(LocalProtocolError, match="http://x"):
        checked_endpoint("http://x")
    with pytest.raises(LocalProtocolError, match="107"):
        checked_endpoint("ipc:///tmp/" + "x" * 110)
