"""What this worker registers: adapters with their routes, directory entries, model discovery.

An immutable value: every change yields a candidate that the caller asks the broker for and puts in
force once it is committed, so nothing is ever half registered. The same rules hold in the broker
between pools; here they hold between the handles of one worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar

from trunkline_protocol.failure import Code, LlmError, LlmFailure

from trunkline_workers.core.link import RegistrationSet

A = TypeVar("A")

_DISPOSED: Final = "this registration was disposed"
MAX_HANDLES: Final = 1024  # registrations of one worker; its routes pass MAX_LIST_ENTRIES never


class Route(NamedTuple):
    """One route with what was captured when it was registered."""

    provider: str
    info: Mapping[str, Any]
    policy: Mapping[str, Any]


class Registration(NamedTuple, Generic[A]):
    """The routes of one handle; they may be none after a replacement.

    `since` tells the broker which registrations are as they were: it rises with each change.
    """

    handle: int
    adapter: A
    routes: tuple[Route, ...]
    since: int


class DirectoryEntries(NamedTuple):
    """The configurable providers of one handle."""

    handle: int
    entries: tuple[Mapping[str, Any], ...]
    since: int


class Discovery(NamedTuple):
    """The settings namespace of one handle."""

    handle: int
    settings_ns: str


@dataclass(frozen=True, slots=True)
class Registry(Generic[A]):
    """Everything registered, in registration order; a replacement moves to the end."""

    adapters: tuple[Registration[A], ...] = ()
    directory: tuple[DirectoryEntries, ...] = ()
    discovery: tuple[Discovery, ...] = ()

    # --- questions -----------------------------------------------------------------------------

    def owner(self, provider: str) -> A | None:
        """Return the adapter that serves a route."""
        for registration in self.adapters:
            if any(route.provider == provider for route in registration.routes):
                return registration.adapter
        return None

    def route(self, provider: str) -> Route | None:
        """Return a route with what was captured."""
        routes = (route for registration in self.adapters for route in registration.routes)
        return next((route for route in routes if route.provider == provider), None)

    def has(self, handle: int) -> bool:
        """Tell whether a handle is registered, with or without routes."""
        every = (*self.adapters, *self.directory, *self.discovery)
        return any(entry.handle == handle for entry in every)

    def to_wire(self) -> RegistrationSet:
        """Return the content of the `REGISTRATIONS` frame."""
        known: list[A] = []
        adapters: list[Mapping[str, Any]] = []
        for registration in self.adapters:
            number = _number(known, registration.adapter)
            routes = [{"info": route.info, "policy": route.policy} for route in registration.routes]
            adapters.append({"adapter": number, "routes": routes, "since": registration.since})
        directory = tuple(
            {"entries": list(item.entries), "since": item.since} for item in self.directory
        )
        return RegistrationSet(
            tuple(adapters), directory, tuple(item.settings_ns for item in self.discovery)
        )

    def require(self, handle: int) -> Registry[A]:
        """Return this registry, if a handle is registered.

        Raises:
            LlmError: `REGISTRATION_DISPOSED`.
        """
        if not self.has(handle):
            raise LlmError(LlmFailure(_DISPOSED, Code.REGISTRATION_DISPOSED))
        return self

    # --- candidates ----------------------------------------------------------------------------

    def with_adapter(self, handle: int, adapter: A, routes: Sequence[Route]) -> Registry[A]:
        """Return the registry with a new registration.

        Raises:
            LlmError: `DUPLICATE_ADAPTER`: a route is registered or named twice.
        """
        self._check_bound()
        self._check_routes(handle, routes)
        added = Registration(handle, adapter, tuple(routes), self._next_since())
        return replace(self, adapters=(*self.adapters, added))

    def with_routes(self, handle: int, routes: Sequence[Route]) -> Registry[A]:
        """Return the registry with other routes of a handle; they move to the end of the list.

        Raises:
            LlmError: `DUPLICATE_ADAPTER`; `REGISTRATION_DISPOSED`.
        """
        found = next(item for item in self.require(handle).adapters if item.handle == handle)
        self._check_routes(handle, routes)
        others = tuple(item for item in self.adapters if item.handle != handle)
        replaced = found._replace(routes=tuple(routes), since=self._next_since())
        return replace(self, adapters=(*others, replaced))

    def with_directory(self, handle: int, entries: Sequence[Mapping[str, Any]]) -> Registry[A]:
        """Return the registry with the configurable providers of a new handle.

        Raises:
            LlmError: `DUPLICATE_DIRECTORY`: a provider is declared already, or named twice.
        """
        self._check_bound()
        self._check_entries(handle, entries)
        added = DirectoryEntries(handle, tuple(entries), self._next_since())
        return replace(self, directory=(*self.directory, added))

    def with_entries(self, handle: int, entries: Sequence[Mapping[str, Any]]) -> Registry[A]:
        """Return the registry with other configurable providers of a handle.

        Raises:
            LlmError: `DUPLICATE_DIRECTORY`; `REGISTRATION_DISPOSED`.
        """
        self.require(handle)
        self._check_entries(handle, entries)
        others = tuple(item for item in self.directory if item.handle != handle)
        replaced = DirectoryEntries(handle, tuple(entries), self._next_since())
        return replace(self, directory=(*others, replaced))

    def with_discovery(self, handle: int, settings_ns: str) -> Registry[A]:
        """Return the registry with model discovery for one namespace.

        Raises:
            LlmError: `INVALID_DISCOVERY`: no namespace; `DUPLICATE_DISCOVERY`: it is taken.
        """
        self._check_bound()
        if settings_ns == "":
            _fail(Code.INVALID_DISCOVERY, "model discovery needs a settings namespace")
        if any(item.settings_ns == settings_ns for item in self.discovery):
            _fail(Code.DUPLICATE_DISCOVERY, f"{settings_ns!r} has model discovery already")
        return replace(self, discovery=(*self.discovery, Discovery(handle, settings_ns)))

    def without(self, handle: int) -> Registry[A]:
        """Return the registry without a handle; an unknown one changes nothing."""
        return Registry(
            tuple(item for item in self.adapters if item.handle != handle),
            tuple(item for item in self.directory if item.handle != handle),
            tuple(item for item in self.discovery if item.handle != handle),
        )

    def _next_since(self) -> int:
        every = (*self.adapters, *self.directory)
        return 1 + max((registration.since for registration in every), default=0)

    def _check_bound(self) -> None:
        if len(self.adapters) + len(self.directory) + len(self.discovery) >= MAX_HANDLES:
            _fail(Code.INVALID_ADAPTER, f"a worker has at most {MAX_HANDLES} registrations")

    def _check_routes(self, handle: int, routes: Sequence[Route]) -> None:
        taken = {
            route.provider
            for registration in self.adapters
            if registration.handle != handle
            for route in registration.routes
        }
        for route in routes:
            if route.provider in taken:
                _fail(
                    Code.DUPLICATE_ADAPTER,
                    f"an adapter is already registered for provider {route.provider!r}",
                )
            taken.add(route.provider)

    def _check_entries(self, handle: int, entries: Sequence[Mapping[str, Any]]) -> None:
        taken = {
            entry["provider"]
            for item in self.directory
            if item.handle != handle
            for entry in item.entries
        }
        for entry in entries:
            if entry["provider"] in taken:
                _fail(
                    Code.DUPLICATE_DIRECTORY,
                    f"provider {entry['provider']!r} is declared already",
                )
            taken.add(entry["provider"])


def _number(known: list[A], adapter: A) -> int:
    """Number the adapter instances: routes of one instance share its replay state."""
    for number, other in enumerate(known):
        if other is adapter:
            return number
    known.append(adapter)
    return len(known) - 1


def _fail(code: str, message: str) -> NoReturn:
    raise LlmError(LlmFailure(message, code))
