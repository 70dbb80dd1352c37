"""JSON values that refuse every change and still are what they were."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import msgpack
import pytest
from trunkline_protocol.frozen import FrozenDict, FrozenList, freeze, nests_deeper, thaw
from trunkline_protocol.limits import MAX_BODY_DEPTH

VALUE = {"a": [1, {"b": None}], "c": "x"}


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


def test_a_frozen_value_equals_the_plain_one_and_is_detached() -> None:
    source = copy.deepcopy(VALUE)
    frozen = freeze(source)
    source["a"] = "changed"
    assert frozen == VALUE
    assert isinstance(frozen, FrozenDict)
    assert isinstance(frozen["a"], FrozenList)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("__setitem__", ("a", 1)),
        ("__delitem__", ("a",)),
        ("__ior__", ({},)),
        ("clear", ()),
        ("pop", ("a",)),
        ("popitem", ()),
        ("setdefault", ("z", 1)),
        ("update", ({"z": 1},)),
    ],
)
def test_a_frozen_map_refuses_every_change(method: str, arguments: tuple[object, ...]) -> None:
    frozen = freeze(VALUE)
    with pytest.raises(TypeError, match="frozen"):
        getattr(frozen, method)(*arguments)
    assert frozen == VALUE


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("__setitem__", (0, 1)),
        ("__delitem__", (0,)),
        ("__iadd__", ([1],)),
        ("__imul__", (2,)),
        ("append", (1,)),
        ("extend", ([1],)),
        ("insert", (0, 1)),
        ("remove", (1,)),
        ("pop", ()),
        ("clear", ()),
        ("sort", ()),
        ("reverse", ()),
    ],
)
def test_a_frozen_list_refuses_every_change(method: str, arguments: tuple[object, ...]) -> None:
    frozen = freeze([1, 2])
    with pytest.raises(TypeError, match="frozen"):
        getattr(frozen, method)(*arguments)
    assert frozen == [1, 2]


def test_frozen_values_pass_msgpack_json_and_copies() -> None:
    frozen = freeze(VALUE)
    assert msgpack.unpackb(msgpack.packb(frozen)) == VALUE
    assert json.loads(json.dumps(frozen)) == VALUE
    assert copy.deepcopy(frozen) == VALUE
    assert isinstance(copy.deepcopy(frozen), FrozenDict)
    assert isinstance(copy.copy(FrozenList([1])), FrozenList)


def test_thawing_gives_plain_values_and_turns_tuples_into_lists() -> None:
    thawed = thaw(freeze({"a": (1, (2,))}))
    assert thawed == {"a": [1, [2]]}
    assert type(thawed) is dict
    assert type(thawed["a"]) is list


@pytest.mark.parametrize("function", [freeze, thaw])
def test_depth_is_bounded_and_a_cycle_is_too_deep(function: Callable[[object], object]) -> None:
    assert function(nested(MAX_BODY_DEPTH)) == nested(MAX_BODY_DEPTH)
    with pytest.raises(ValueError, match="nested deeper"):
        function(nested(MAX_BODY_DEPTH + 1))
    cycle: dict[str, object] = {}
    cycle["self"] = cycle
    with pytest.raises(ValueError, match="nested deeper"):
        function(cycle)


@pytest.mark.parametrize(
    ("value", "levels"),
    [(1, 0), ({}, 1), ([1], 1), ({"a": [1, {"b": 2}]}, 3), ((1, (2,)), 2)],
)
def test_depth_of_a_value(value: object, levels: int) -> None:
    assert not nests_deeper(value, levels)
    assert levels == 0 or nests_deeper(value, levels - 1)


def test_a_value_in_itself_is_too_deep() -> None:
    circle: list[object] = []
    circle.append(circle)
    assert nests_deeper(circle, 1000)
