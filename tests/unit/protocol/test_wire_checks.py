"""One decoded value → one field: what each check takes and refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from trunkline_protocol import limits
from trunkline_protocol import wire_checks as check
from trunkline_protocol.frames import CallRef, HeldCall
from trunkline_protocol.ids import Epoch, Generation

from tests.support.golden import CALL

LONG_NAME = "x" * (limits.MAX_NAME_BYTES + 1)
LONG_TEXT = "x" * (limits.MAX_TEXT_BYTES + 1)
LONG_LIST = [0] * (limits.MAX_LIST_ENTRIES + 1)


def nested(depth: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


ACCEPTED: list[tuple[Callable[[object], Any], object, object]] = [
    (check.uint, 0, 0),
    (check.uint, 2**63 - 1, 2**63 - 1),
    (check.number, 0, 0.0),
    (check.number, 1.5, 1.5),
    (check.boolean, False, False),
    (check.name, "", ""),
    (check.name, LONG_NAME[1:], LONG_NAME[1:]),
    (check.text, LONG_TEXT[1:], LONG_TEXT[1:]),
    (check.text, "a\n\x1b", "a\n\ufffd"),
    (check.label, "a\n\x1b", "a\ufffd\ufffd"),
    (check.place, "/run/\udcff", None),
    (check.binary, b"x" * 64, b"x" * 64),
    (check.client_id, b"x" * 16, b"x" * 16),
    (check.stream_key, b"x" * 8, b"x" * 8),
    (check.recovery, "policy", "policy"),
    (check.role, "standby", "standby"),
    (check.version, (1, 0), (1, 0)),
    (check.version, [1, 0, "later"], (1, 0)),
    (check.generation, [5, 6], Generation(Epoch(5), 6)),
    (check.names, ["a", "b"], ("a", "b")),
    (check.names, LONG_LIST[:0], ()),
    (check.lease_ids, [b"x" * 16], (b"x" * 16,)),
    (check.mapping, {"a": [1, (2.5, None), {"b": b"x", "c": True}]}, None),
    (check.mapping, nested(limits.MAX_DEPTH), None),
    (check.mappings, [{}, {"a": 1}], ({}, {"a": 1})),
    (check.list_of(CallRef), [[CALL, 3, "later"]], (CallRef(CALL, 3),)),
    (check.list_of(CallRef), [], ()),
]

REFUSED: list[tuple[Callable[[object], Any], object]] = [
    (check.uint, -1),
    (check.uint, 2**63),
    (check.uint, True),
    (check.uint, 1.0),
    (check.number, -0.5),
    (check.number, float("nan")),
    (check.number, float("inf")),
    (check.number, True),
    (check.number, "1"),
    (check.boolean, 1),
    (check.name, LONG_NAME),
    (check.name, "a\nb"),
    (check.names, ["\ud800"]),
    (check.label, LONG_NAME),
    (check.label, 5),
    (check.place, LONG_TEXT),
    (check.name, b"x"),
    (check.text, LONG_TEXT),
    (check.text, None),
    (check.binary, b"x" * 65),
    (check.binary, "x"),
    (check.call_id, b"x" * 15),
    (check.call_id, "x" * 16),
    (check.recovery, "always"),
    (check.role, ["serving"]),
    (check.version, [1]),
    (check.version, [1, -1]),
    (check.version, 1),
    (check.generation, [1, "x"]),
    (check.names, LONG_LIST),
    (check.names, "ab"),
    (check.names, ["a", 1]),
    (check.lease_ids, [b"x"]),
    (check.mapping, []),
    (check.mapping, {1: 2}),
    (check.mapping, {"a": {b"b": 1}}),
    (check.mapping, {"a": [{("x",): 1}]}),
    (check.mapping, {"a": msgpack.ExtType(5, b"x")}),
    (check.mapping, {"a": msgpack.Timestamp(1)}),
    (check.mapping, nested(limits.MAX_DEPTH + 1)),
    (check.mappings, [{}, 1]),
    (check.list_of(CallRef), [[CALL]]),
    (check.list_of(CallRef), [[CALL, -1]]),
    (check.list_of(CallRef), [CALL]),
    (check.list_of(CallRef), {}),
    (check.list_of(HeldCall), [[CALL, 0, CALL, b"x" * 8, "r", 0, 1]]),
]


@pytest.mark.parametrize(("test", "value", "expected"), ACCEPTED)
def test_accepted(test: Callable[[object], Any], value: object, expected: object) -> None:
    """Good values come back as the field."""
    assert test(value) == (value if expected is None else expected)


@pytest.mark.parametrize(("test", "value"), REFUSED)
def test_refused(test: Callable[[object], Any], value: object) -> None:
    """Bad values raise `ValueError` with text that says what was expected."""
    with pytest.raises(ValueError, match=r"^(a|an|at|exactly|nested|one|true) "):
        test(value)
