"""A frame whose sender waits is refused by a name that ends its waiting."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_protocol import codec, frames
from trunkline_protocol.codec import Direction
from trunkline_protocol.failure import RemoteProtocolError

from tests.support.golden import BORN, CALL, CLIENT, EPOCH, KEY, QUERY

OPEN: dict[str, Any] = {
    "call": CALL, "attempt": 3, "streamKey": KEY, "provider": "p", "model": "m",
}  # fmt: skip
QUERY_FIELDS: dict[str, Any] = {"query": QUERY, "op": "status"}
REGISTRATIONS: dict[str, Any] = {"request": 5, "adapters": []}


def refusal(frame: Any, envelope: dict[str, Any], way: Direction) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as refused:
        codec.decode([frame.KIND, codec.pack_body(envelope)], way)
    return refused.value


@pytest.mark.parametrize("wrong", ["a\x1b[2J", "\ud800", "a\nb", "\u202e", "x" * 257, 5, None])
@pytest.mark.parametrize("field", ["provider", "model"])
def test_a_wrong_open_is_refused_by_its_call(field: str, wrong: object) -> None:
    way = Direction.CLIENT_TO_BROKER
    refused = refusal(frames.Open, {**OPEN, field: wrong}, way)
    assert refused.about == {"call": CALL, "attempt": 3}
    answer = frames.Refused(refused.code, str(refused), **refused.about)
    parts = codec.encode(answer)
    assert codec.decode(parts, Direction.BROKER_TO_CLIENT) == answer


def test_a_wrong_question_and_wrong_registrations_are_refused_by_their_number() -> None:
    for way in (Direction.CLIENT_TO_BROKER, Direction.WORKER_TO_BROKER):
        assert refusal(frames.Query, {**QUERY_FIELDS, "op": "\x00"}, way).about == {"query": QUERY}
    for wrong in ({"discovery": [5]}, {"discovery": ["\ud800"]}, {"adapters": 5}):
        refused = refusal(
            frames.Registrations, {**REGISTRATIONS, **wrong}, Direction.WORKER_TO_BROKER
        )
        assert refused.about == {"request": 5}


@pytest.mark.parametrize("wrong", [{"call": b"x"}, {"attempt": -1}, {"attempt": 2**63}])
def test_what_can_not_be_read_is_not_named(wrong: dict[str, Any]) -> None:
    assert refusal(frames.Open, {**OPEN, **wrong}, Direction.CLIENT_TO_BROKER).about == {}


def test_frames_that_nobody_waits_for_are_refused_without_a_name() -> None:
    """A client repeats its totals, and a refusal would end its stream."""
    wrong = {"call": CALL, "attempt": 0, "received": -1, "consumed": 0, "consumedBytes": 0}
    assert refusal(frames.Credit, wrong, Direction.CLIENT_TO_BROKER).about == {}


def test_texts_for_people_lose_what_steers_a_terminal() -> None:
    hello = {"protocol": [1, 0], "client": CLIENT, "pid": 1, "name": "a\x1b[2J\ud800\n"}
    way = Direction.CLIENT_TO_BROKER
    frame = codec.decode([b"HELLO", codec.pack_body(hello)], way)
    assert isinstance(frame, frames.Hello)
    assert frame.name == "a\ufffd[2J\ufffd\ufffd"
    bye = codec.decode([b"BYE", codec.pack_body({"reason": "a\nb\x07\ud800"})], way)
    assert bye == frames.Bye("a\nb\ufffd\ufffd")


def test_a_path_need_not_be_utf_8() -> None:
    """Run directories may have any name that the file system allows."""
    given = frames.Registered(EPOCH, "ipc:///run/\udcff/lane", BORN, attachments_dir="/run/\udcff")
    assert codec.decode(codec.encode(given), Direction.BROKER_TO_WORKER) == given
