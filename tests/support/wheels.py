"""Wheels made by hand, so that pip installs a package of a test without an index."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from trunkline_broker.cli.venvs import provide_trunkline


def a_wheel(
    directory: Path, name: str, version: str, code: str, *, adapter: str | None = None
) -> Path:
    """Write the wheel of a package with one module; `adapter` is its class that is an adapter."""
    info = f"{name}-{version}.dist-info"
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", code)
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        if adapter is not None:
            point = f"[trunkline.adapters]\n{name} = {name}:{adapter}\n"
            wheel.writestr(f"{info}/entry_points.txt", point)
        wheel.writestr(f"{info}/RECORD", "")
    return path


def worker_venv(directory: Path, wheels: Path, *packages: str) -> Path:
    """Make a venv for a worker with these packages; returns its directory.

    What Trunkline itself needs comes from the interpreter of the tests, behind the venv's own
    packages; it has none of `packages`.
    """
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
    subprocess.run(  # noqa: S603  # our own wheels
        [*command, "--no-index", "--no-deps", "--find-links", str(wheels), *packages],
        check=True,
        capture_output=True,
    )
    provide_trunkline(directory)
    site = next(directory.glob("lib/python*/site-packages"))
    dependencies = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "zz-dependencies.pth").write_text(f"{dependencies}\n")
    return directory
