"""`record` beside the dataclass that it stands for."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest
from trunkline_protocol.record import record


@record
class Ours:
    """With a default, and a field that is not printed."""

    name: str
    count: int = 3
    secret: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Theirs:
    """The same."""

    name: str
    count: int = 3
    secret: bytes = field(default=b"", repr=False)


def test_it_is_built_compared_hashed_and_printed_alike() -> None:
    """By place and by name, with defaults; equal only to its own kind."""
    for arguments, named in ((("a",), {}), (("a", 4), {"secret": b"s"}), ((), {"name": "b"})):
        ours, theirs = Ours(*arguments, **named), Theirs(*arguments, **named)
        assert ours == Ours(*arguments, **named) != theirs
        assert hash(ours) == hash(theirs)
        assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
        assert ours.__match_args__ == theirs.__match_args__
    assert Ours("a") != Ours("b")
    assert [item.name for item in fields(Ours)] == [item.name for item in fields(Theirs)]


@pytest.mark.parametrize("arguments", [(), ("a", 1, b"", "too many")])
def test_a_wrong_number_of_arguments_is_refused(arguments: tuple[object, ...]) -> None:
    """As by any function."""
    with pytest.raises(TypeError, match="__init__"):
        Ours(*arguments)


def test_it_does_not_change_and_has_no_other_attributes() -> None:
    """Neither set nor deleted, and no place for more."""
    ours = Ours("a")
    with pytest.raises(FrozenInstanceError):
        ours.name = "b"
    with pytest.raises(FrozenInstanceError):
        del ours.name
    with pytest.raises(FrozenInstanceError):
        ours.other = 1
    assert not hasattr(ours, "__dict__")


def test_it_is_replaced_and_copied() -> None:
    """As values are."""
    ours = Ours("a", 4, b"s")
    assert replace(ours, count=5) == Ours("a", 5, b"s")
    for other in (copy.copy(ours), copy.deepcopy(ours)):
        assert other == ours
