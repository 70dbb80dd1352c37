"""How wide results are: as wide as the screen, and in a pipe as wide as they get."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from trunkline_broker.cli import terminal


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget the console of the test before, and leave none to the next."""
    terminal.out.cache_clear()
    yield
    terminal.out.cache_clear()


def test_a_table_in_a_pipe_is_not_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever greps for a long name finds it in one line."""
    from rich.table import Table

    monkeypatch.delenv("COLUMNS", raising=False)
    name = "a-name-as-long-as-a-path/" * 5
    table = Table(box=None)
    for head in ("worker", "adapter"):
        table.add_column(head, overflow="fold")
    table.add_row(name, name)
    terminal.out().print(table)
    assert sum(name in line for line in capsys.readouterr().out.splitlines()) == 1


def test_a_width_that_is_said_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal.out().width == 72
