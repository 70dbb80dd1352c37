"""What an application hands over is judged by name, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trunkline import arguments
from trunkline.marker import mark_agent_loop_request
from trunkline.ticket import Ticket
from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.ids import CallId

NO_TEXTS: tuple[Any, ...] = (None, 5, b"x", [], {}, "\ud800", "x" * 257)


def _seconds(field: str, value: Any) -> object:
    return arguments.seconds(field, value, 9)


def _choice(field: str, value: Any) -> object:
    return arguments.choice(field, value, ("a", "b"))


CASES: list[tuple[Callable[[str, Any], object], tuple[Any, ...]]] = [
        (arguments.name, NO_TEXTS),
        (_seconds, (
            None, True, 0, -1, 9.5, float("nan"), float("inf"), "1", [],
        )),
        (_choice, (*NO_TEXTS, "c", "")),
        (arguments.flag, (None, 0, 1, "x", [])),
        (arguments.function, (None, 5, "f", [])),
        (arguments.path, (None, 5, [], "\0", "\ud800", {})),
        (arguments.mapping, (None, 5, "f", [], {1: 2}, {b"x": 1}, {"a": 1, None: 2})),
    ]  # fmt: skip


@pytest.mark.parametrize(("check", "values"), CASES)
def test_what_is_wrong_is_told_by_name(
    check: Callable[[str, Any], object], values: tuple[Any, ...]
) -> None:
    """Never by another exception, and never by showing the value."""
    for value in values:
        with pytest.raises(LocalProtocolError, match=r"^field: "):
            check("field", value)


def test_what_is_right_passes() -> None:
    assert arguments.name("field", "") == ""
    assert arguments.name("field", "é" * 256) == "é" * 256
    assert arguments.seconds("field", 9, 9) == 9
    arguments.choice("field", "b", ("a", "b"))
    arguments.function("field", print)
    assert arguments.path("field", "a/b") == Path("a/b")
    assert arguments.path("field", Path("a")) == Path("a")
    assert arguments.mapping("field", {"a": 1}) == {"a": 1}


def test_only_a_request_is_marked() -> None:
    with pytest.raises(LocalProtocolError, match="options"):
        mark_agent_loop_request({"provider": "p"})  # type: ignore[arg-type]


CALL_HEX = "0a" * 16


def test_a_ticket_is_read_back_and_nothing_else_is_one() -> None:
    """A broker drops a frame with an id of another length, and the reader would wait for ever."""
    ticket = Ticket(CallId(b"c" * 16), b"t" * 16, "a/b", "m.1 é")
    assert Ticket.parse(ticket.text()) == ticket
    wrong: tuple[Any, ...] = (
        None, 5, b"x", [], "", "x", "a.b.c", "0a.00.p/m", f"{CALL_HEX}..p/m", f"{CALL_HEX}.00./",
        f"{CALL_HEX}.{'00' * 65}.p/m", f"{CALL_HEX}.00.{'p' * 257}/m", f"{CALL_HEX}.00.p/m/n",
        f"{CALL_HEX}.00.\ud800/m",
    )  # fmt: skip
    for text in wrong:
        with pytest.raises(LocalProtocolError, match="ticket"):
            Ticket.parse(text)
