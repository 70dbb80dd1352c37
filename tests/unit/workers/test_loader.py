"""Finding adapters and plugins by name."""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from trunkline_workers import loader
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter
from trunkline_workers.loader import AdapterNotFoundError, load_entry

SCRIPTED = "trunkline_workers.adapters.scripted.adapter:ScriptedAdapter"
FILE = """
from dataclasses import dataclass
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter

@dataclass
class Helper:
    n: "int" = 1

class Mine(ScriptedAdapter):
    pass

async def setup(runtime, context):
    return None

VALUE = 5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("name", ["scripted", SCRIPTED])
def test_an_adapter_by_builtin_name_or_module(name: str) -> None:
    assert load_entry(name).adapter is ScriptedAdapter


@pytest.mark.parametrize("name", sorted(loader.BUILTIN))
def test_every_builtin_name_leads_to_a_module_of_ours(name: str) -> None:
    assert loader.BUILTIN[name].startswith("trunkline_workers.adapters.")


def test_an_adapter_from_a_file(file: Path) -> None:
    entry = load_entry(f"{file}:Mine")
    assert entry.adapter is not None
    assert isinstance(entry.adapter.create(AdapterContext("p")), ScriptedAdapter)
    assert entry.setup is None


def test_a_plugin_is_an_async_function(file: Path) -> None:
    entry = load_entry(f"{file}:setup")
    assert entry.adapter is None
    assert entry.setup is not None


def test_an_installed_package_offers_an_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", SCRIPTED, loader.ENTRY_POINT_GROUP)
    monkeypatch.setattr(loader, "entry_points", lambda group: [point])
    assert load_entry("mine").adapter is ScriptedAdapter


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nothing", "known: chat_completions, local, pydantic_ai, scripted"),
        ("no_such_module:Class", "no module 'no_such_module'"),
        ("trunkline_workers.adapters.none:Class", "no module"),
        ("trunkline_workers.adapter:Nothing", "has no 'Nothing'"),
        ("trunkline_workers.adapter:AdapterContext", "not a subclass"),
        ("/nowhere/file.py:Class", "no file /nowhere/file.py"),
        (":Class", "no adapter ':Class'"),
    ],
)
def test_a_name_that_leads_nowhere_says_how_far_it_led(name: str, text: str) -> None:
    with pytest.raises(AdapterNotFoundError) as caught:
        load_entry(name)
    assert text in str(caught.value)


def test_a_missing_dependency_of_an_adapter_shows_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "needs.py"
    path.write_text("import a_package_that_is_not_there\n")
    with pytest.raises(ModuleNotFoundError):
        load_entry(f"{path}:X")


def test_a_file_in_a_package_finds_what_stands_beside_it(tmp_path: Path) -> None:
    """It is a module of its package, wherever the worker was started."""
    package = tmp_path / "trunkline_test_packed"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("NAME = 'beside'\n")
    code = (
        "from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter\n"
        "from trunkline_test_packed.other import NAME\n"
        "class Packed(ScriptedAdapter):\n    name = NAME\n"
    )
    (package / "adapter.py").write_text(code)
    path = list(sys.path)
    try:
        entry = load_entry(f"{package}/adapter.py:Packed")
    finally:
        sys.path[:] = path
    assert entry.adapter is not None
    assert vars(entry.adapter)["name"] == "beside"


def test_a_file_that_is_saved_twice_in_a_second_is_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytecode of the first text would pass for that of another one of the same length."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "quick.py"
    for word in ("one", "two"):
        file.write_text(f"WORD = {word!r}\n")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        assert word == loader.import_file(file).WORD
