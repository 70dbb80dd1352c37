"""Which pools a changed file concerns."""

from __future__ import annotations

from pathlib import Path

from trunkline_broker.cli.watch_plan import Affected, Watched, WatchPlan

ROOT = Path("/src")
CONFIG = ROOT / "trunkline.toml"
ACME = Watched("acme", frozenset({ROOT / "acme.env"}), frozenset({ROOT / "acme"}))
ECHO = Watched("echo", frozenset({ROOT / "echo.py", ROOT / "shared.env"}))
TWIN = Watched("twin", frozenset({ROOT / "shared.env"}), frozenset({ROOT / "acme" / "part"}))
PLAN = WatchPlan((ACME, ECHO, TWIN), frozenset({CONFIG}))


def test_a_python_file_anywhere_below_a_folder_counts() -> None:
    """Other files there do not: a worker may write them, and would be swapped for it."""
    deep = ROOT / "acme" / "wire" / "sse.py"
    assert PLAN.affected([deep]) == Affected(("acme",), text="sse.py")
    assert not PLAN.concerns(ROOT / "acme" / "journal.jsonl")
    assert not PLAN.concerns(ROOT / "acme" / "__pycache__" / "sse.cpython-311.pyc")
    assert not PLAN.concerns(ROOT / "acme.py")


def test_a_single_file_counts_and_its_neighbours_do_not() -> None:
    assert PLAN.affected([ROOT / "echo.py"]).pools == ("echo",)
    assert PLAN.affected([ROOT / "other.py", ROOT / "acme.env.swp"]) == Affected()


def test_each_pool_is_named_once_in_the_order_of_the_configuration() -> None:
    """However many files changed, and whoever shares them."""
    changed = [ROOT / "acme" / "part" / "a.py", ROOT / "acme" / "b.py", ROOT / "shared.env"]
    assert PLAN.affected(changed).pools == ("acme", "echo", "twin")


def test_the_configuration_is_told_apart() -> None:
    affected = PLAN.affected([CONFIG, ROOT / "echo.py"])
    assert affected.is_config
    assert affected.pools == ("echo",)
    assert affected.text == "echo.py, trunkline.toml"


def test_a_long_list_of_changes_is_cut() -> None:
    """A checkout changes hundreds; a name that comes twice is said once."""
    changed = [ROOT / "acme" / where / f"{name}.py" for name in "abcde" for where in ("x", "y")]
    assert PLAN.affected(changed).text == "a.py, b.py, c.py and 2 more"


def test_directories_are_watched_not_files() -> None:
    """Single files by their directory alone: it may be somebody's home."""
    assert PLAN.folders() == (ROOT / "acme", ROOT / "acme" / "part")
    assert PLAN.places() == (ROOT,)
    assert WatchPlan(()).folders() == WatchPlan(()).places() == ()
