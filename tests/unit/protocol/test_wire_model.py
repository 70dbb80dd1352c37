"""The base of the models: frozen, camelCase outside, extras kept, errors without values."""

from __future__ import annotations

import copy

import pytest
from pydantic import ValidationError
from trunkline_protocol.frozen import FrozenDict
from trunkline_protocol.limits import MAX_BODY_DEPTH
from trunkline_protocol.wire_model import JsonValue, Number, Text, WireModel, first_error, plain


class Inner(WireModel):
    """A nested value."""

    long_name: Text


class Outer(WireModel):
    """A value with every kind of field."""

    inner: Inner
    many: tuple[Inner, ...] = ()
    number: Number | None = None
    free: JsonValue = None


FULL = {
    "inner": {"longName": "a"},
    "many": [{"longName": "b", "more": [1]}],
    "number": 1,
    "free": {"x": [1]},
    "extra": {"y": [None]},
}


def test_a_map_makes_the_round_trip_and_keeps_extras_and_number_types() -> None:
    outer = Outer.from_dict(FULL)
    assert outer.to_dict() == FULL
    assert type(outer.number) is int
    assert Outer.from_dict(outer.to_dict()) == outer
    assert Outer(inner=Inner(long_name="a"), number=1.0).to_dict() == {
        "inner": {"longName": "a"},
        "many": [],
        "number": 1.0,
    }


def test_an_absent_field_has_no_key_but_an_extra_null_stays() -> None:
    outer = Outer.from_dict({"inner": {"longName": "a"}, "number": None, "extra": None})
    assert outer.to_dict() == {"inner": {"longName": "a"}, "many": [], "extra": None}


def test_nothing_inside_can_be_changed_and_nothing_is_shared() -> None:
    source = copy.deepcopy(FULL)
    outer = Outer.from_dict(source)
    source["free"]["x"].append(2)  # type: ignore[index, union-attr]
    source["extra"]["y"].append(2)  # type: ignore[index, union-attr]
    assert outer.to_dict() == FULL
    outer.to_dict()["free"]["x"].append(3)  # type: ignore[index]
    assert outer.to_dict() == FULL
    with pytest.raises(ValidationError, match="frozen"):
        outer.number = 2
    assert isinstance(outer.model_extra, FrozenDict)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"inner": None}, "inner"),
        ({"inner": {"longName": 5}}, "inner.longName"),
        ({"many": [{"longName": "a"}, {}]}, "many.1.longName"),
        ({"number": "secret"}, "number"),
        ({"number": True}, "number"),
        ({"number": float("nan")}, "number"),
    ],
)
def test_an_error_names_the_field_and_never_shows_the_value(
    change: dict[str, object], names: str
) -> None:
    with pytest.raises(ValueError, match="^" + names.replace(".", r"\.")) as caught:
        Outer.from_dict({**FULL, **change})
    assert "secret" not in str(caught.value)


def test_a_value_that_is_too_deep_is_refused() -> None:
    deep: object = 0
    for _ in range(MAX_BODY_DEPTH + 1):
        deep = [deep]
    with pytest.raises(ValueError, match=r"free: .*nested deeper"):
        Outer.from_dict({**FULL, "free": deep})
    with pytest.raises(ValueError, match="nested deeper"):
        Outer.from_dict({**FULL, "extra": deep})


def test_an_error_of_the_whole_model_has_no_path() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(5)
    assert first_error(caught.value).startswith("Input should be")


def test_plain_values_are_detached() -> None:
    inner = Inner(long_name="a")
    assert plain((inner, 1)) == [{"longName": "a"}, 1]
