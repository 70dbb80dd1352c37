"""What a shell completes a name to, from the configuration alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from trunkline_broker.cli.names import log_names, provider_names, worker_names

TWO = """
[worker.beta]
adapter = "scripted"
[worker.local]
adapter = "local"
providers = ["smol", "bigger"]
"""


def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "trunkline.toml"
    path.write_text(text)
    monkeypatch.setenv("TRUNKLINE_CONFIG", str(path))


def test_names_are_those_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker without providers serves what its adapter calls itself; its name is a guess."""
    configure(tmp_path, monkeypatch, TWO)
    assert worker_names("") == ["beta", "local"]
    assert worker_names("l") == ["local"]
    assert log_names("b") == ["broker", "beta"]
    assert log_names("lo") == ["local"]
    assert provider_names("") == ["beta", "smol", "bigger"]
    assert provider_names("s") == ["smol"]


def test_a_wrong_configuration_suggests_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, monkeypatch, "[worker")
    assert (worker_names(""), provider_names(""), log_names("")) == ([], [], ["broker"])
