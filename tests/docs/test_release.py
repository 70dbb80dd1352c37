"""The changelog, the list of licences and the wheel; installing is in `tests/release`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from trunkline_protocol.version import __version__

ROOT = Path(__file__).resolve().parents[2]


def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "deploy" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_fragment_can_be_released() -> None:
    text = release().section("9.9.9", "2027-01-01", ROOT / "changes")
    assert text.startswith("## 9.9.9 (2027-01-01)\n\n### ")
    fragments = [path for path in (ROOT / "changes").glob("*.md") if path.name != "README.md"]
    assert text.count("\n- ") == len(fragments)


def test_a_release_goes_on_top_and_takes_its_fragments(tmp_path: Path) -> None:
    changes = tmp_path / "changes"
    changes.mkdir()
    (changes / "README.md").write_text("about")
    for version in ("1.0.0", "1.1.0"):
        (changes / f"{version}.fixed.md").write_text(f"A fix\nof {version}.\n")
        release().write_changelog(version, "2027-01-01", tmp_path)
    text = (tmp_path / "CHANGELOG.md").read_text()
    assert text.index("A fix of 1.1.0.") < text.index("A fix of 1.0.0.")
    assert text.count("# Changelog\n") == 1
    assert [path.name for path in changes.iterdir()] == ["README.md"]


def test_a_fragment_of_no_type_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.feature.md").write_text("y")
    with pytest.raises(ValueError, match=r"x\.feature\.md"):
        release().section("1", "d", tmp_path)


def test_every_dependency_has_a_licence_that_fits() -> None:
    """Of what users install; none of it is of the strong kind."""
    found = list(release().licences({"broker", "workers", "metrics", "top", "traces"}))
    assert {"trunkline", "pyzmq", "msgpack", "pydantic", "httpx"} <= {name for name, _, _ in found}
    for name, _, licence in found:
        assert licence != "unknown", name
        assert not licence.upper().startswith(("GPL", "AGPL", "GNU GENERAL", "GNU AFFERO")), name


def test_the_wheel_has_everything_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)  # noqa: S603
    (wheel,) = tmp_path.glob("*.whl")
    assert __version__ in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"trunkline", "trunkline_broker", "trunkline_protocol", "trunkline_workers"}
    for top in tops:
        assert f"{top}/py.typed" in names
    assert "trunkline_protocol/SPEC.md" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
