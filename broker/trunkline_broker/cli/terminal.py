"""The consoles of the commands: results on stdout, everything about them on stderr.

`rich` is imported when the first line is written, not when a command is only looked up. It obeys
`NO_COLOR` and writes no escapes into pipes. No text steers the terminal, whatever it holds, and
none makes a command fail because the terminal's encoding lacks a character.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Final, NoReturn

from trunkline_protocol.printable import STEERING

from trunkline_broker.cli.exits import ExitCode

if TYPE_CHECKING:
    from rich.console import Console


PIPE_COLUMNS: Final = 400


class CommandError(Exception):
    """A command ends with one line for people and an exit code for scripts."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.code = code


@cache
def out() -> Console:
    """Return the console of results."""
    from trunkline_broker.cli.plain_console import PlainConsole

    return PlainConsole(width=_width())


def _width() -> int | None:
    """Return the columns of results: as wide as they get where a program reads them.

    Rich would fold tables to 80 columns, which cuts the names that somebody greps for.
    """
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return None if is_known else PIPE_COLUMNS


@cache
def err() -> Console:
    """Return the console of remarks."""
    from trunkline_broker.cli.plain_console import PlainConsole

    return PlainConsole(stderr=True)


def print_json(value: object) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json_text(value, indent=2) + "\n")


def json_text(value: object, indent: int | None = None) -> str:
    """Return JSON in which every character that could steer a terminal is escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=_json_form)
    return STEERING.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def accept_every_character() -> None:
    """Have stdout and stderr write what their encoding lacks as an escape, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _json_form(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else str(value)


def fail(text: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """End the command.

    Raises:
        CommandError: always.
    """
    raise CommandError(text, code)
