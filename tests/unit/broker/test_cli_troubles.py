"""What a status document says is wrong, in a line each."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_broker.cli.troubles import Trouble, troubles, writing_prompts

SLOT: dict[str, Any] = {"slot": 0, "load": {}}


def a_document(**fields: Any) -> dict[str, Any]:
    return {
        "pools": [{"name": "p", "slots": [SLOT]}],
        "measures": {
            "ledger": {"file": "/u", "written": 1, "waiting": 0, "lost": 0, "trouble": ""}
        },
        "counters": {"log.lost": 0},
        **fields,
    }


def of_prompts(count: int) -> list[dict[str, Any]]:
    slots = [{"slot": at, "load": {"debugPrompts": True}} for at in range(count)]
    return [{"name": "p", "slots": [*slots, {"slot": 99, "load": {}}]}]


def test_a_broker_that_is_well_has_none() -> None:
    assert list(troubles(a_document())) == []
    assert list(troubles({})) == []


@pytest.mark.parametrize(("late_ms", "said"), [(499, False), (1300, True), ("1300", False)])
def test_a_loop_that_stood_still_of_late_is_said(late_ms: object, said: bool) -> None:
    slots = [SLOT, {"slot": 1, "load": {"loopLateMs": late_ms}}]
    found = list(troubles(a_document(pools=[{"name": "p", "slots": slots}])))
    texts = ["the loop of p/1 stood still for 1.3 s of late, and with it all its streams"]
    assert [trouble.text for trouble in found] == (texts if said else [])
    assert all(trouble.is_past for trouble in found)


def test_workers_that_write_prompts_are_said_in_one_line() -> None:
    assert writing_prompts(a_document(pools=of_prompts(2))) == ["p/0", "p/1"]
    (one,) = troubles(a_document(pools=of_prompts(1)))
    assert one.text == "prompts and answers are written to the logs of: p/0"
    assert not one.is_past
    (many,) = troubles(a_document(pools=of_prompts(9)))
    assert many.text.endswith("p/0, p/1, p/2, p/3 and 5 more")


def test_how_the_last_attempt_of_a_provider_ended() -> None:
    """A refused key stays refused, a network may be there again, an agent errs for itself."""
    last = {"a": "AUTH", "b": "TRANSPORT", "c": "INVALID_REQUEST"}
    routes = [{"provider": "a", "pool": "w"}]
    one, two = troubles(a_document(measures={"lastFailures": last}, routes=routes))
    assert (one.text, one.is_past) == ("the last attempt on a ended in AUTH", False)
    assert (two.text, two.is_past) == ("the last attempt on b ended in TRANSPORT", True)
    assert one.fix == "correct the key of its worker, then trunkline swap w"
    assert two.fix.endswith("trunkline logs NAME")  # its route is gone


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"measures": {"unavailable": {"metrics": "in use"}}}, "no metrics: in use"),
        (
            {"measures": {"ledger": {"file": "/u", "trouble": "full", "waiting": 3, "lost": 0}}},
            "the usage ledger /u can't be written: full; 3 attempts wait",
        ),
    ],
)
def test_what_is_wrong_now(fields: dict[str, Any], text: str) -> None:
    (found,) = troubles(a_document(**fields))
    assert (found.text, found.is_past) == (text, False)
    assert found.fix


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"measures": {"ledger": {"lost": 2}}}, "the usage ledger has lost 2 attempts"),
        ({"measures": {"traces": {"sent": 1, "lost": 4}}}, "the collector did not take 4 spans"),
        (
            {"counters": {"log.lost": 5}},
            "could not be written, 5 times: lines of the broker's log",
        ),
    ],
)
def test_what_has_been_lost(fields: dict[str, Any], text: str) -> None:
    (found,) = troubles(a_document(**fields))
    assert found == Trouble(text, found.fix, is_past=True)
    assert found.fix
