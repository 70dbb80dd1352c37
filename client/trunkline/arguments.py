"""What an application hands over, judged before anything is done with it; every error names it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.limits import MAX_NAME_BYTES
from trunkline_protocol.printable import is_name


def name(field: str, value: object) -> str:
    """Return a printable text of at most 256 characters, which may be empty.

    Raises:
        LocalProtocolError: no text, too long, or with a character that is not printable, such as a
            line feed, an escape or half a surrogate pair.
    """
    if not isinstance(value, str) or not is_name(value):
        raise LocalProtocolError(
            f"{field}: a printable text of at most {MAX_NAME_BYTES} characters is required"
        )
    return value


def seconds(field: str, value: object, at_most_s: float) -> float:
    """Return a duration in seconds.

    Raises:
        LocalProtocolError: no number, not above 0, or above `at_most_s`.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= at_most_s:
        return value
    raise LocalProtocolError(f"{field}: a number above 0, at most {at_most_s:g} s, is required")


def choice(field: str, value: object, allowed: tuple[str, ...]) -> None:
    """Make sure that a value is one of some texts.

    Raises:
        LocalProtocolError: it is not.
    """
    if not isinstance(value, str) or value not in allowed:
        raise LocalProtocolError(f"{field}: one of {', '.join(allowed)} is required")


def flag(field: str, value: object) -> None:
    """Make sure that a value is true or false.

    Raises:
        LocalProtocolError: it is neither; what only counts as one does not.
    """
    if not isinstance(value, bool):
        raise LocalProtocolError(f"{field}: true or false is required")


def function(field: str, value: object) -> None:
    """Make sure that a value can be called.

    Raises:
        LocalProtocolError: it can not.
    """
    if not callable(value):
        raise LocalProtocolError(f"{field}: a function is required")


def path(field: str, value: object) -> Path:
    """Return the path of a file.

    Raises:
        LocalProtocolError: it can't be one, whatever the file system holds.
    """
    try:
        made = Path(cast("str", value))
        os.fsencode(made)
    except (TypeError, UnicodeEncodeError):
        raise LocalProtocolError(f"{field}: the path of a file is required") from None
    if "\0" in str(made):
        raise LocalProtocolError(f"{field}: a path has no NUL")
    return made


def mapping(field: str, value: object) -> Mapping[str, Any]:
    """Return a map whose keys are texts.

    Raises:
        LocalProtocolError: no map, or with other keys.
    """
    if not isinstance(value, Mapping):
        raise LocalProtocolError(f"{field}: a map is required")
    if not all(isinstance(key, str) for key in cast("Mapping[object, object]", value)):
        raise LocalProtocolError(f"{field}: the keys of a map are texts")
    return cast("Mapping[str, Any]", value)
