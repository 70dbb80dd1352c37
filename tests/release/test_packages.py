"""Wheel and sdist, built and installed into clean environments; by hand (`make release`)."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from trunkline_protocol.version import __version__

pytestmark = pytest.mark.release
ROOT = Path(__file__).resolve().parents[2]
IMPORTS = {
    "": ["trunkline", "trunkline_protocol"],
    "broker": ["trunkline_broker.daemon", "trunkline_broker.cli.main"],
    "workers": ["trunkline_workers.host", "trunkline_workers.http"],
    "metrics": ["trunkline_broker.measured.metrics"],
    "traces": ["trunkline_protocol", "opentelemetry.sdk"],
    "top": ["trunkline_broker.cli.main"],
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)  # noqa: S603
    return out


def test_the_wheel_has_everything_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert __version__ in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"trunkline", "trunkline_broker", "trunkline_protocol", "trunkline_workers"}
    for top in tops:
        assert f"{top}/py.typed" in names
    assert "trunkline_protocol/SPEC.md" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "w")]
    subprocess.run(command, cwd=source, check=True, capture_output=True)  # noqa: S603
    (again,) = (tmp_path / "w").glob("*.whl")
    (first,) = built.glob("*.whl")
    names = [sorted(zipfile.ZipFile(wheel).namelist()) for wheel in (first, again)]
    assert names[0] == names[1]


@pytest.mark.parametrize("extra", IMPORTS)
def test_each_extra_installs_into_a_clean_environment(
    built: Path, tmp_path: Path, extra: str
) -> None:
    (wheel,) = built.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)  # noqa: S603
    python = tmp_path / "venv" / "bin" / "python"
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, wanted], check=True, capture_output=True)  # noqa: S603
    code = "; ".join(f"import {name}" for name in IMPORTS[extra])
    subprocess.run([python, "-W", "error", "-c", code], check=True, cwd=tmp_path)  # noqa: S603
    version = [python, "-c", "import trunkline; print(trunkline.__version__)"]
    told = subprocess.run(version, check=True, capture_output=True, text=True)  # noqa: S603
    assert told.stdout.strip() == __version__
