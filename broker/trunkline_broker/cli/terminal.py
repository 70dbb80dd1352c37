"""What the commands write on: results on stdout, everything about them on stderr.

`rich` is imported when the first line is written, not when a command is only looked up. It obeys
`NO_COLOR` and writes no escapes into pipes.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Final, NoReturn

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
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, width=_width())


def _width() -> int | None:
    """Return the columns of results: as wide as they get where a program reads them.

    Rich would fold tables to 80 columns, which cuts the names that somebody greps for.
    """
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return None if is_known else PIPE_COLUMNS


@cache
def err() -> Console:
    """Return the console of remarks."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=_json_form) + "\n")


def _json_form(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else str(value)


def fail(text: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """End the command.

    Raises:
        CommandError: always.
    """
    raise CommandError(text, code)
