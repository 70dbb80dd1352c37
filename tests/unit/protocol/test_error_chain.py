"""One line for an exception and all that stands behind it."""

from __future__ import annotations

import pytest
from trunkline_protocol.error_chain import CIRCULAR, UNRENDERABLE, error_chain, error_message


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (None, "null"),
        (True, "true"),
        (5, "5"),
        ({"message": "m", "code": "X"}, "m"),
        ({"message": 5}, "{'message': 5}"),
        (Hostile(), UNRENDERABLE),
        (ValueError("v"), "v"),
        (ValueError(), "ValueError"),
        (caused(ValueError("v"), OSError("o")), "v: o"),
        (caused(ValueError("v"), ValueError("v")), "v"),
        (ExceptionGroup("g", [ValueError("a"), OSError("b")]), "g [a; b]"),
        (
            caused(ExceptionGroup("g", [caused(ValueError("a"), OSError("x"))]), OSError("why")),
            "g [a: x]: why",
        ),
        (caused(ValueError("v"), OSError(Hostile())), f"v: {UNRENDERABLE}"),
    ],
)
def test_rendering(value: object, text: str) -> None:
    assert error_chain(value) == text


def test_a_cause_in_an_attribute_may_be_any_value() -> None:
    error = ValueError("outer")
    error.cause = False  # type: ignore[attr-defined]
    assert error_chain(error) == "outer: false"


def test_a_circle_is_named() -> None:
    error = ValueError("outer")
    error.cause = error  # type: ignore[attr-defined]
    assert error_chain(error) == f"outer: {CIRCULAR}"


def test_a_chain_too_long_for_the_stack_loses_its_tail_only() -> None:
    error = ValueError("0")
    for number in range(3_000):
        error = caused(ValueError(str(number)), error)  # type: ignore[assignment]
    assert error_chain(error).startswith("2999: 2998: ")


def test_the_implicit_context_is_no_cause() -> None:
    error = ValueError("second")
    error.__context__ = OSError("first")
    assert error_chain(error) == "second"


def test_the_message_of_a_group_has_no_count() -> None:
    assert error_message(ExceptionGroup("g", [ValueError("a")])) == "g"
