"""The registry of one worker: rules between its handles, order, and the pinned scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from trunkline_protocol.failure import LlmError
from trunkline_workers.core import registry as registry_module
from trunkline_workers.core.registry import Registry, Route

_INFO: dict[str, Any] = {"id": "x", "name": "X"}


def empty() -> Registry[str]:
    return Registry()


def empty_of_objects() -> Registry[object]:
    return Registry()


def routes(*providers: str) -> list[Route]:
    return [Route(provider, _INFO, {"mode": "always"}) for provider in providers]


def entries(*providers: str) -> list[dict[str, object]]:
    return [{"provider": provider} for provider in providers]


def code_of(change: Callable[[], object]) -> str:
    with pytest.raises(LlmError) as caught:
        change()
    return caught.value.code


def listed(registry: Registry[str]) -> list[str]:
    return [route.provider for item in registry.adapters for route in item.routes]


def test_routes_have_an_owner_and_what_was_captured() -> None:
    registry = empty().with_adapter(1, "A", routes("a", "b")).with_adapter(2, "B", routes("c"))
    assert listed(registry) == ["a", "b", "c"]
    assert (registry.owner("b"), registry.owner("c"), registry.owner("d")) == ("A", "B", None)
    assert registry.route("b") == routes("b")[0]
    assert registry.route("d") is None


def test_a_route_has_one_adapter() -> None:
    registry = empty().with_adapter(1, "A", routes("a"))
    assert code_of(lambda: registry.with_adapter(2, "A", routes("b", "a"))) == "DUPLICATE_ADAPTER"
    assert code_of(lambda: registry.with_adapter(2, "B", routes("b", "b"))) == "DUPLICATE_ADAPTER"
    other = registry.with_adapter(2, "B", routes("b"))
    assert code_of(lambda: other.with_routes(2, routes("a"))) == "DUPLICATE_ADAPTER"


def test_a_replacement_may_keep_drop_and_reorder_and_moves_to_the_end() -> None:
    registry = empty().with_adapter(1, "A", routes("a", "b")).with_adapter(2, "B", routes("c"))
    assert listed(registry.with_routes(1, routes("b", "a"))) == ["c", "b", "a"]
    bare = registry.with_routes(1, [])
    assert (listed(bare), bare.has(1)) == (["c"], True)


def test_a_disposed_handle_can_not_be_replaced() -> None:
    registry = empty().with_adapter(1, "A", routes("a")).without(1)
    assert not registry.has(1)
    assert code_of(lambda: registry.with_routes(1, [])) == "REGISTRATION_DISPOSED"
    assert code_of(lambda: registry.with_entries(1, [])) == "REGISTRATION_DISPOSED"
    assert registry.without(1) == registry


def test_directory_entries_are_declared_once() -> None:
    registry = empty().with_directory(1, entries("x", "y"))
    assert code_of(lambda: registry.with_directory(2, entries("y"))) == "DUPLICATE_DIRECTORY"
    assert code_of(lambda: registry.with_directory(2, entries("z", "z"))) == "DUPLICATE_DIRECTORY"
    replaced = registry.with_directory(2, entries("z")).with_entries(1, entries("y"))
    assert [item.handle for item in replaced.directory] == [2, 1]
    assert replaced.without(2).to_wire().directory == ({"entries": entries("y"), "since": 3},)


def test_discovery_has_one_offer_per_namespace() -> None:
    registry = empty().with_discovery(1, "ns")
    assert code_of(lambda: registry.with_discovery(2, "ns")) == "DUPLICATE_DISCOVERY"
    assert code_of(lambda: registry.with_discovery(2, "")) == "INVALID_DISCOVERY"
    assert registry.with_discovery(2, "other").to_wire().discovery == ("ns", "other")


def test_the_wire_form_numbers_adapter_instances() -> None:
    one, two = object(), object()
    registry = (
        empty_of_objects()
        .with_adapter(1, one, routes("a"))
        .with_adapter(2, two, routes("b"))
        .with_adapter(3, one, routes("c"))
    )
    wire = registry.to_wire()
    assert [item["adapter"] for item in wire.adapters] == [0, 1, 0]
    assert wire.adapters[0]["routes"] == [{"info": _INFO, "policy": {"mode": "always"}}]


def test_registrations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "MAX_HANDLES", 1)
    registry = empty().with_discovery(1, "ns")
    assert code_of(lambda: registry.with_adapter(2, "A", routes("a"))) == "INVALID_ADAPTER"
