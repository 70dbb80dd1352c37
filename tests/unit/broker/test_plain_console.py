"""No text from outside steers the terminal of a command, or makes the command fail."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.table import Table
from trunkline_broker.cli.plain_console import PlainConsole
from trunkline_broker.cli.terminal import accept_every_character, json_text
from trunkline_protocol.printable import STEERING

NASTY = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\ud800",
    "\u202e",
    "[/red]",
    "[red]a",
    ":smile:",
]


def written(text: str, *, in_table: bool) -> str:
    console = PlainConsole(width=80)
    kept = io.BytesIO()
    file = console.file = io.TextIOWrapper(kept, encoding="utf-8")  # it raises for half a pair
    if in_table:
        table = Table(title=text)
        table.add_column(text)
        table.add_row(text)
        console.print(table)
    else:
        console.print(f"name {text}", style="bold red")
    file.flush()
    return kept.getvalue().decode()


@pytest.mark.parametrize("in_table", [True, False])
@pytest.mark.parametrize("text", NASTY)
def test_a_text_is_only_text(text: str, *, in_table: bool) -> None:
    """Neither controls nor markup nor names of emoji."""
    shown = written(text, in_table=in_table)
    assert not STEERING.search(shown)
    assert STEERING.sub("\ufffd", text) in shown


@pytest.mark.parametrize("text", [*NASTY, "\x7f", "\u2028", "\U000e0041", "a\nb\tc"])
def test_json_stays_what_it_is_and_steers_nothing(text: str) -> None:
    made = json_text({text: [text]})
    assert not STEERING.search(made)
    assert json.loads(made) == {text: [text]}


def test_a_terminal_without_a_character_shows_its_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: io.BytesIO() for name in ("stdout", "stderr")}
    for name, file in kept.items():
        monkeypatch.setattr(sys, name, io.TextIOWrapper(file, encoding="ascii"))
    accept_every_character()
    for stream, file in zip((sys.stdout, sys.stderr), kept.values(), strict=True):
        assert stream.write("模型 \ud800") == 4
        stream.flush()
        assert file.getvalue() == b"\\u6a21\\u578b \\ud800"
