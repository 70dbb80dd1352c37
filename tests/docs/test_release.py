"""The changelog, the list of licences and the wheel; installing is in `tests/release`."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
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
    sys.modules[spec.name] = module  # its dataclasses look there
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


ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CNRI-Python", "ISC", "MIT",
    "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib",
}  # fmt: skip


def listed() -> dict[str, str]:
    """Return the packages of the page with their licences."""
    text = (ROOT / "deploy" / "LICENCES.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    return {name: licence for name, licence, _ in rows if name != "package"}


def test_every_licence_is_one_that_may_be_shipped_with_ours() -> None:
    """Each is named, and none asks that whatever uses it be under the same licence."""
    for name, licence in listed().items():
        for each in re.split(r" AND | OR | WITH |[()]", licence):
            assert not each or each in ALLOWED, f"{name}: {licence}"


def test_the_page_of_licences_lists_what_we_ask_for() -> None:
    """What that brings along changes without us; `make audit` compares all of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = list(project["dependencies"])
    for extra in release().user_extras():
        asked += project["optional-dependencies"][extra]
    names = {re.split(r"[\[<>=; ]", each)[0] for each in asked} - {"trunkline"}
    assert names <= listed().keys()


def test_the_page_of_licences_says_what_the_packages_say() -> None:
    """Those of them that are installed here."""
    found = release().licences(["broker", "workers", "metrics", "top", "traces"])
    assert len(found) > 30
    known = listed()
    for package in found:
        assert package.licence == known.get(package.name, package.licence), package.name


def test_a_licence_is_found_wherever_it_is_said() -> None:
    """Some packages have its whole text where its name should be."""
    found = {package.name: package.licence for package in release().licences(["workers"])}
    assert found["httpx-aiohttp"] == "BSD-3-Clause"
    assert found["trunkline"] == "Apache-2.0"


def a_wheel(source: Path, place: Path) -> list[str]:
    """Build a wheel; return the names in it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)  # noqa: S603
    (wheel,) = place.glob("*.whl")
    assert __version__ in wheel.name
    return sorted(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_has_everything_and_nothing_else(tmp_path: Path) -> None:
    names = a_wheel(ROOT, tmp_path)
    tops = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"trunkline", "trunkline_broker", "trunkline_protocol", "trunkline_workers"}
    for top in tops:
        assert f"{top}/py.typed" in names
    assert "trunkline_protocol/SPEC.md" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_what_the_image_copies_is_enough_to_build_it(tmp_path: Path) -> None:
    """The engine sees those files alone."""
    context = tmp_path / "context"
    context.mkdir()
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (?!--)(.+)$", text, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            if (ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / source, context / target, ignore=ignored)
            else:
                shutil.copy(ROOT / source, context / target)
    assert a_wheel(context, tmp_path / "a") == a_wheel(ROOT, tmp_path / "b")
