"""Reading configurable providers and discovery namespaces."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_broker.core.directory import directory_entries, namespaces, since
from trunkline_broker.core.refusal import Refusal


def an_entry(**changes: object) -> dict[str, Any]:
    return {
        "provider": "x",
        "displayName": "X",
        "settingsNs": "ns",
        "settingsPath": ["a"],
        "newer": 1,
        **changes,
    }


def test_entries_are_kept_as_they_came() -> None:
    """Keys of newer versions survive; a registration may be empty."""
    entries = directory_entries([{"entries": [an_entry()]}, {"entries": ()}])
    assert [(entry.key, entry.value) for entry in entries] == [("x", an_entry())]


@pytest.mark.parametrize(
    "registration",
    [
        {},
        {"entries": "x"},
        {"entries": [1]},
        {"entries": [an_entry(provider="")]},
        {"entries": [an_entry(displayName=None)]},
        {"entries": [an_entry(settingsNs=1)]},
        {"entries": [an_entry(settingsPath="x")]},
        {"entries": [an_entry(settingsPath=["a", ""])]},
        {"entries": [an_entry(), an_entry(), an_entry(settingsNs="")]},
    ],
)
def test_a_bad_entry_is_refused_before_a_duplicate(registration: dict[str, Any]) -> None:
    """Whatever the bytes held, the answer is a code."""
    with pytest.raises(Refusal) as refused:
        directory_entries([registration])
    assert refused.value.code == "INVALID_DIRECTORY"


def test_a_provider_is_declared_once() -> None:
    """Also over two registrations of one worker."""
    with pytest.raises(Refusal) as refused:
        directory_entries([{"entries": [an_entry()]}, {"entries": [an_entry()]}])
    assert refused.value.code == "DUPLICATE_DIRECTORY"
    assert refused.value.failure()["code"] == "DUPLICATE_DIRECTORY"


def test_namespaces() -> None:
    """Not empty and not twice."""
    assert [entry.key for entry in namespaces(["a", "b"])] == ["a", "b"]
    for names, code in ((["a", ""], "INVALID_DISCOVERY"), (["a", "a"], "DUPLICATE_DISCOVERY")):
        with pytest.raises(Refusal) as refused:
            namespaces(names)
        assert refused.value.code == code


def test_a_registration_says_since_when_it_is_as_it_is() -> None:
    """A worker that does not is taken by the number of the registration."""
    assert since({"since": 7}, 2) == 7
    assert since({}, 2) == 2
    assert since({"since": "x"}, 2) == 2
