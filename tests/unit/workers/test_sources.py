"""Which files an adapter is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trunkline_workers
from trunkline_workers.loader import AdapterNotFoundError
from trunkline_workers.sources import EXIT_FOUND, EXIT_NOTHING, Sources, adapter_sources, main

OURS = Path(trunkline_workers.__file__).parent / "adapters"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory on the path; nothing in it can be imported."""
    for name in (
        "single_adapter.py",
        "broken_llm/__init__.py",
        "broken_llm/deep/__init__.py",
        "broken_llm/deep/adapter.py",
        "names_llm/vendor/__init__.py",
        "names_llm/vendor/adapter.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("this is no Python")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_file_stands_for_itself_also_before_it_is_written(root: Path) -> None:
    for name in ("single_adapter.py", "coming.py"):
        assert adapter_sources(f"{root / name}:X") == Sources(files=(root / name,))


def test_a_relative_file_begins_at_the_working_directory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    assert adapter_sources("single_adapter.py:X").files == (root / "single_adapter.py",)


def test_a_file_in_a_package_stands_for_all_of_it(root: Path) -> None:
    file = root / "broken_llm" / "deep" / "adapter.py"
    assert adapter_sources(f"{file}:X") == Sources(folders=(root / "broken_llm",))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("broken_llm.deep.adapter", Sources(folders=(Path("broken_llm"),))),
        ("names_llm.vendor.adapter", Sources(folders=(Path("names_llm/vendor"),))),
        ("single_adapter", Sources(files=(Path("single_adapter.py"),))),
    ],
)
def test_a_module_stands_for_its_top_package(root: Path, module: str, expected: Sources) -> None:
    """Found without being imported: it may be broken. Below a namespace the next level counts."""
    found = adapter_sources(f"{module}:X")
    assert found.files == tuple(root / path for path in expected.files)
    assert found.folders == tuple(root / path for path in expected.folders)


@pytest.mark.parametrize("name", ["scripted", "trunkline_workers.adapters.scripted.adapter:X"])
def test_one_of_ours_stands_for_its_own_folder(name: str) -> None:
    assert adapter_sources(name) == Sources(folders=(OURS / "scripted",))


@pytest.mark.parametrize("name", ["nosuch", "nosuch_llm.adapter:X", "names_llm.nosuch:X"])
def test_what_is_nowhere_is_said(root: Path, name: str) -> None:
    assert root.is_dir()
    with pytest.raises(AdapterNotFoundError, match="nosuch"):
        adapter_sources(name)


def test_the_command_writes_json_or_one_line(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"{root / 'single_adapter.py'}:X"]) == EXIT_FOUND
    said = capsys.readouterr()
    assert json.loads(said.out) == {"files": [str(root / "single_adapter.py")], "folders": []}
    assert main(["nosuch"]) == EXIT_NOTHING
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
