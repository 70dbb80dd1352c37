"""One line of text for an exception and everything behind it; for people, never parsed.

The message first, members of a group in brackets, then the causes after colons. Nothing that an
exception's own code does can escape from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

_WORDS: Final = {True: "true", False: "false", None: "null"}
UNRENDERABLE: Final = "<unrenderable value>"
CIRCULAR: Final = "<circular cause>"


def error_chain(value: object) -> str:
    """Render a raised value with its members and its chain of explicit causes.

    A cause that only repeats the message is left out. A value that is its own cause or member
    shows as `<circular cause>`, one whose text can't be had as `<unrenderable value>`.
    """
    return _render(value, [])


def _render(value: object, path: list[object]) -> str:
    if any(each is value for each in path):
        return CIRCULAR
    path.append(value)
    try:
        return _render_error(value, path) if isinstance(value, BaseException) else _plain(value)
    # The code of a foreign exception class runs here and may raise anything, deep recursion
    # included; only this node is lost.
    except Exception:  # noqa: BLE001
        return UNRENDERABLE
    finally:
        path.pop()


def _render_error(error: BaseException, path: list[object]) -> str:
    message = error_message(error) or type(error).__name__
    members = cast("object", getattr(error, "exceptions", None))
    inner = ""
    if isinstance(members, list | tuple) and members:
        inner = "; ".join(_render(each, path) for each in cast("list[object]", members))
        inner = f" [{inner}]"
    # A cause that is no exception can only stand in an attribute of that name.
    cause = vars(error).get("cause", error.__cause__)
    text = "" if cause is None else _render(cause, path)
    return f"{message}{inner}" if text in {"", message} else f"{message}{inner}: {text}"


def error_message(error: BaseException) -> str:
    """Return the text of one exception without its class, its causes or its members."""
    if isinstance(error, BaseExceptionGroup):
        return error.message  # str() of a group adds the number of its members
    return str(error)


def _plain(value: object) -> str:
    """Render a value that is no exception."""
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    if isinstance(value, Mapping):
        message = cast("Mapping[object, object]", value).get("message")
        if isinstance(message, str):
            return message
    return str(cast("object", value))
