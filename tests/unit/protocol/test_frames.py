"""The frame classes as a whole: directions, keys, immutability."""

from __future__ import annotations

import re
from dataclasses import MISSING, FrozenInstanceError, fields
from typing import Any, get_args

import pytest
from trunkline_protocol import codec, frames, limits
from trunkline_protocol.codec import Direction

from tests.support import golden

ALL = get_args(frames.Frame)


def test_kinds_are_distinct_ascii_and_short() -> None:
    """A kind is its own name on the wire."""
    kinds = [frame.KIND for frame in ALL]
    assert len(set(kinds)) == len(kinds)
    for kind in kinds:
        assert kind.decode("ascii").isupper()
        assert len(kind) <= limits.MAX_KIND_BYTES


def test_directions_are_those_of_the_spec() -> None:
    """SPEC 2.2 lists the kinds of each direction."""
    spec = (golden.VECTORS.parent / "SPEC.md").read_text(encoding="utf-8")
    section = spec.split("### 2.2 Kinds")[1].split("## 3.")[0]
    heads = {
        "Client → broker": Direction.CLIENT_TO_BROKER,
        "Broker → client": Direction.BROKER_TO_CLIENT,
        "Worker → broker": Direction.WORKER_TO_BROKER,
        "Broker → worker": Direction.BROKER_TO_WORKER,
    }
    for head, direction in heads.items():
        line = section.split(head + ": `")[1].split("`")[0]
        assert set(line.split()) == {kind.decode() for kind in codec.DIRECTIONS[direction]}


def _optional(key: str, default: object) -> str:
    return key if default is MISSING else f"{key}?"


def _said_of_fields() -> dict[str, list[str]]:
    """Read the table of SPEC 2.3: kind, or list of a kind, to its fields."""
    spec = (golden.VECTORS.parent / "SPEC.md").read_text(encoding="utf-8")
    said: dict[str, list[str]] = {}
    for line in spec.split("### 2.3 Fields")[1].split("## 3.")[0].splitlines():
        head, row = line.split("|")[1:3] if line.startswith("|") else ("", "")
        for name in re.findall(r"`\w+` of `\w+`", head) or re.findall(r"`\w+`", head):
            assert name not in said
            said[name] = re.findall(r"`([^`]+)`", row)
    return said


def test_the_spec_names_every_field() -> None:
    """SPEC 2.3 has a row for each kind and each list of entries: fields, order, which may miss."""
    known: dict[str, list[str]] = {}
    for frame in golden.EXAMPLES:
        kind = frame.KIND.decode()
        spec = codec.DIRECTIONS[golden.directions(frame)[0]][frame.KIND]
        known[f"`{kind}`"] = [_optional(item.key, item.default) for item in spec.fields]
        for item in spec.fields:
            if item.is_list:
                entry = getattr(frame, item.attribute)[0]
                keys: Any = golden.plain(entry)
                known[f"`{item.key}` of `{kind}`"] = [
                    _optional(key, part.default)
                    for key, part in zip(keys, fields(entry), strict=True)
                ]
    assert {frame.KIND for frame in golden.EXAMPLES} == {frame.KIND for frame in ALL}
    assert _said_of_fields() == known


@pytest.mark.parametrize("frame", golden.EXAMPLES, ids=lambda f: f.KIND.decode())
def test_frames_do_not_change(frame: frames.Frame) -> None:
    """A frame is a fact."""
    name = fields(frame)[0].name
    with pytest.raises(FrozenInstanceError):
        setattr(frame, name, None)


def test_tokens_are_not_shown() -> None:
    """Whoever knows the token of a call may take it over; that of a worker, its place."""
    with_token = [frame for frame in golden.EXAMPLES if hasattr(frame, "token")]
    assert len({frame.KIND for frame in with_token}) >= 4
    for frame in with_token:
        assert "token" not in repr(frame)


def test_only_the_named_kinds_have_a_body() -> None:
    """SPEC section 2."""
    with_body = {f.KIND for f in ALL if any(item.name == "body" for item in fields(f))}
    assert with_body == {b"OPEN", b"START", b"QUERY", b"REPLY", b"SNAPSHOT"}


@pytest.mark.parametrize("frame", golden.EXAMPLES, ids=lambda f: f.KIND.decode())
def test_minimal_form_survives(frame: frames.Frame) -> None:
    """Every field with a default may be missing on the wire."""
    small = golden.minimal(frame)
    for direction in golden.directions(small):
        decoded = codec.decode(codec.encode(small), direction)
        assert golden.plain(decoded) == golden.plain(small)  # lists of maps decode as tuples
