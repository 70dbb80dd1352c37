"""What workers register: reading it, and who serves which route (SPEC 2.1, 7).

A worker's `REGISTRATIONS` is absolute and goes in whole or not at all. Whether a worker lives,
drains or waits as standby is decided elsewhere: this file is told who serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from trunkline_protocol.codes import Code
from trunkline_protocol.frames import Registrations
from trunkline_protocol.ids import Generation, PoolName
from trunkline_protocol.retry_policy import (
    DEFAULT_RETRY_POLICY,
    ResolvedRetryPolicy,
    policy_from_dict,
)

from trunkline_broker.core.claims import Claims, Entry
from trunkline_broker.core.directory import (
    A_NAME,
    DirectoryEntry,
    directory_entries,
    is_filled_name,
    namespaces,
    since,
)
from trunkline_broker.core.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Route:
    """What was captured of one route when it was registered.

    Attributes:
        id: provider key.
        name: for people.
        policy: decides on retries of attempts that this registration serves.
        policy_map: the same as it came, for `ACCEPTED` and queries.
    """

    id: str
    name: str
    policy: ResolvedRetryPolicy
    policy_map: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Offer:
    """One `REGISTRATIONS`, checked on its own."""

    routes: tuple[Entry[Route], ...]
    directory: tuple[Entry[DirectoryEntry], ...]
    discovery: tuple[Entry[None], ...]


EMPTY_OFFER = Offer((), (), ())


def read_offer(frame: Registrations) -> Offer:
    """Check a `REGISTRATIONS` on its own.

    Raises:
        Refusal: `INVALID_ADAPTER`, `DUPLICATE_ADAPTER`, `INVALID_DIRECTORY`,
            `DUPLICATE_DIRECTORY`, `INVALID_DISCOVERY` or `DUPLICATE_DISCOVERY`.
    """
    routes: dict[str, Entry[Route]] = {}
    for adapter in frame.adapters:
        number = adapter.get("adapter")
        if type(number) is not int:
            raise Refusal(Code.INVALID_ADAPTER, "adapter: a number is required")
        mark = since(adapter, number)
        for raw in _list(adapter.get("routes")):
            route = _route(raw)
            if route.id in routes:
                raise Refusal(Code.DUPLICATE_ADAPTER, f"route {route.id!r} is registered twice")
            routes[route.id] = Entry(route.id, mark, route)
    return Offer(
        tuple(routes.values()), directory_entries(frame.directory), namespaces(frame.discovery)
    )


def _list(value: object) -> tuple[object, ...]:
    if isinstance(value, list | tuple):
        return tuple(cast("Iterable[object]", value))
    raise Refusal(Code.INVALID_ADAPTER, "routes: a list is required")


def _route(raw: object) -> Route:
    fields = cast("dict[str, object]", raw) if isinstance(raw, dict) else {}
    info, policy = fields.get("info"), fields.get("policy")
    if not isinstance(info, dict):
        raise Refusal(Code.INVALID_ADAPTER, "info: a map is required")
    known = cast("dict[str, object]", info)
    route_id, name = known.get("id"), known.get("name")
    if not is_filled_name(route_id):
        raise Refusal(Code.INVALID_ADAPTER, f"info.id: {A_NAME} is required")
    if not is_filled_name(name):
        raise Refusal(Code.INVALID_ADAPTER, f"info.name of {route_id!r}: {A_NAME} is required")
    return Route(route_id, name, *_policy(route_id, policy))


def _policy(route_id: str, raw: object) -> tuple[ResolvedRetryPolicy, Mapping[str, Any]]:
    if raw is None:
        return DEFAULT_RETRY_POLICY, DEFAULT_RETRY_POLICY.to_dict()
    if not isinstance(raw, dict):
        raise Refusal(Code.INVALID_ADAPTER, f"policy of {route_id!r}: a map is required")
    fields = cast("dict[str, Any]", raw)
    try:
        policy = policy_from_dict(fields)
    except ValueError as exc:
        raise Refusal(Code.INVALID_ADAPTER, f"policy of {route_id!r}: {exc}") from exc
    return policy, policy.to_dict()  # what else stands there has no bound, and clients get it


class Registry:
    """Routes, directory and discovery of all pools."""

    __slots__ = ("directory", "discovery", "routes")

    def __init__(self) -> None:
        self.routes: Claims[Route] = Claims()
        self.directory: Claims[DirectoryEntry] = Claims()
        self.discovery: Claims[None] = Claims()

    def check(self, pool: PoolName, offer: Offer) -> None:
        """Compare an offer with what other pools own.

        Raises:
            Refusal: `DUPLICATE_ADAPTER`, `DUPLICATE_DIRECTORY` or `DUPLICATE_DISCOVERY`.
        """
        for claims, entries, code, what in (
            (self.routes, offer.routes, Code.DUPLICATE_ADAPTER, "route"),
            (self.directory, offer.directory, Code.DUPLICATE_DIRECTORY, "directory entry"),
            (self.discovery, offer.discovery, Code.DUPLICATE_DISCOVERY, "discovery namespace"),
        ):
            key = claims.conflict(pool, [entry.key for entry in entries])
            if key is not None:
                raise Refusal(code, f"{what} {key!r} belongs to another pool")

    def commit(
        self,
        pool: PoolName,
        generation: Generation,
        offer: Offer,
        instead_of: Generation | None = None,
    ) -> bool:
        """Put a checked offer in force in one step; return whether anything is different.

        Args:
            pool: owner.
            generation: worker that serves it from now on.
            offer: everything it registers.
            instead_of: worker (or suspended one) whose place it takes.
        """
        changed = self.routes.put(pool, generation, offer.routes, instead_of)
        changed |= self.directory.put(pool, generation, offer.directory, instead_of)
        return changed | self.discovery.put(pool, generation, offer.discovery, instead_of)

    def suspend(self, generation: Generation) -> None:
        """Keep the routes of a worker that will be replaced; calls for them wait."""
        for claims in (self.routes, self.directory, self.discovery):
            claims.suspend(generation)

    def drop(self, generation: Generation) -> bool:
        """Release everything of a worker; return whether something vanished."""
        changed = self.routes.drop(generation)
        changed |= self.directory.drop(generation)
        return changed | self.discovery.drop(generation)
