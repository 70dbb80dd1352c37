"""The allow-list of a worker's environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from trunkline_broker.core.specs import PoolSpec
from trunkline_broker.environment import (
    EnvironmentFileError,
    missing_names,
    worker_environment,
)
from trunkline_protocol.ids import PoolName

ENVIRON = {"PATH": "/bin", "HOME": "/h", "MY_KEY": "mine", "OTHER_KEY": "canary"}


def test_only_named_variables_reach_a_worker() -> None:
    """A key that the pool does not name stays out; a name that is not set is left out."""
    spec = PoolSpec(PoolName("a"), "scripted", environment=("MY_KEY", "UNSET"))
    given = worker_environment(spec, ENVIRON)
    assert given == {"PATH": "/bin", "HOME": "/h", "MY_KEY": "mine", "PYTHONUNBUFFERED": "1"}


def test_names_without_a_value_are_missing_but_those_of_proxies() -> None:
    """A configuration for many machines names HTTPS_PROXY, and few have one."""
    names = ("KEY", "BLANK", "GIVEN", "HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE")
    spec = PoolSpec(PoolName("p"), "scripted", environment=names)
    assert missing_names(spec, {"GIVEN": "x", "BLANK": " "}) == ["KEY", "BLANK"]


def test_a_file_adds_variables(tmp_path: Path) -> None:
    """Comments and empty lines are skipped, quotes taken off, `=` may be in a value."""
    path = tmp_path / "keys.env"
    path.write_text("# keys\n\nA=1=2\n B = 'x y' \n")
    given = worker_environment(PoolSpec(PoolName("a"), "s", env_file=str(path)), {})
    assert (given["A"], given["B"]) == ("1=2", "x y")


def test_a_bad_file_names_the_line_and_no_value(tmp_path: Path) -> None:
    """The line may hold a key."""
    path = tmp_path / "keys.env"
    path.write_text("A=1\nsk-canary\n")
    with pytest.raises(EnvironmentFileError, match="line 2") as caught:
        worker_environment(PoolSpec(PoolName("a"), "s", env_file=str(path)), {})
    assert "canary" not in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """Not an empty environment."""
    spec = PoolSpec(PoolName("a"), "s", env_file=str(tmp_path / "none"))
    with pytest.raises(EnvironmentFileError, match="can't read"):
        worker_environment(spec, {})
