"""`WorkerRuntime`: what code in a worker uses to register adapters, directory and discovery.

Every change is all or nothing: it is checked here, asked of the broker as a whole, and in force
when the broker has committed it. Before the worker is ready, changes are only collected; the first
request carries them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from trunkline_protocol.failure import Code, LlmError, LlmFailure
from trunkline_protocol.limits import MAX_NAME_BYTES
from trunkline_protocol.model_checks import check_directory
from trunkline_protocol.models import (
    LlmConfigurableProvider,
    LlmDiscoveredModel,
    LlmModelDiscoveryRequest,
    LlmProviderInfo,
)
from trunkline_protocol.retry_policy import DEFAULT_RETRY_POLICY

from trunkline_workers.adapter import LlmAdapter
from trunkline_workers.core.link import RegistrationSet
from trunkline_workers.core.registry import Registry, Route

Discover = Callable[[LlmModelDiscoveryRequest], Awaitable[Sequence[LlmDiscoveredModel]]]
"""Interrogates one endpoint; cancelled when the caller gives up."""

Submit = Callable[[RegistrationSet], Coroutine[Any, Any, LlmError | None]]
"""Asks the broker for a set and returns its refusal, if any."""

Spawn = Callable[[Coroutine[Any, Any, LlmError | None]], "asyncio.Task[LlmError | None]"]

AdapterRegistry = Registry[LlmAdapter]
_Change = Callable[[AdapterRegistry], AdapterRegistry]


class AdapterRegistration:
    """The routes of one `register_adapter`."""

    def __init__(self, runtime: WorkerRuntime, handle: int, adapter: LlmAdapter) -> None:
        self._runtime = runtime
        self._handle = handle
        self._adapter = adapter

    async def replace(self, providers: Sequence[str]) -> None:
        """Serve exactly these routes from now on, with the same adapter; none is legal.

        Raises:
            LlmError: `INVALID_ADAPTER`, `DUPLICATE_ADAPTER`, with the routes as they were;
                `REGISTRATION_DISPOSED`.
        """
        await self._runtime.change(
            lambda registry: registry.require(self._handle).with_routes(
                self._handle, captured_routes(providers, self._adapter)
            )
        )

    async def dispose(self) -> None:
        """Release every route; disposing twice changes nothing."""
        await self._runtime.withdraw(self._handle)


class DirectoryRegistration:
    """The entries of one `register_configurable_providers`."""

    def __init__(self, runtime: WorkerRuntime, handle: int) -> None:
        self._runtime = runtime
        self._handle = handle

    async def replace(self, entries: Sequence[LlmConfigurableProvider]) -> None:
        """Declare exactly these from now on.

        Raises:
            LlmError: `INVALID_DIRECTORY`, `DUPLICATE_DIRECTORY`, with the entries as they were;
                `REGISTRATION_DISPOSED`.
        """
        await self._runtime.change(
            lambda registry: registry.require(self._handle).with_entries(
                self._handle, _directory(entries, may_be_empty=True)
            )
        )

    async def dispose(self) -> None:
        """Withdraw every entry; disposing twice changes nothing."""
        await self._runtime.withdraw(self._handle)


class DiscoveryRegistration:
    """One `register_model_discovery`."""

    def __init__(self, runtime: WorkerRuntime, handle: int, settings_ns: str) -> None:
        self._runtime = runtime
        self._handle = handle
        self._settings_ns = settings_ns

    async def dispose(self) -> None:
        """Withdraw the offer; disposing twice changes nothing."""
        await self._runtime.withdraw(self._handle)


class WorkerRuntime:
    """The registry of this worker.

    Args:
        submit: asks the broker; never raises for a refusal.
        spawn: runs a request to its end even if who asked for it is cancelled meanwhile.
    """

    def __init__(self, submit: Submit, spawn: Spawn) -> None:
        self._submit = submit
        self._spawn = spawn
        self._registry: AdapterRegistry = Registry()
        self._discover: dict[int, Discover] = {}
        self._handles = 0
        self._is_published = False
        self._one_at_a_time = asyncio.Lock()

    # --- for adapters and plugins --------------------------------------------------------------

    async def register_adapter(
        self, providers: Sequence[str], adapter: LlmAdapter
    ) -> AdapterRegistration:
        """Register an adapter for routes; provider info and retry policy are captured now.

        Raises:
            LlmError: `INVALID_ADAPTER`: no routes, an empty name or bad provider info;
                `DUPLICATE_ADAPTER`: a route has an adapter. Nothing is registered then.
        """
        handle = self._next_handle()
        if not providers:
            raise _invalid("an adapter needs at least one provider route")
        await self.change(
            lambda registry: registry.with_adapter(
                handle, adapter, captured_routes(providers, adapter)
            )
        )
        return AdapterRegistration(self, handle, adapter)

    async def register_configurable_providers(
        self, entries: Sequence[LlmConfigurableProvider]
    ) -> DirectoryRegistration:
        """Declare routes that configuration could activate.

        Raises:
            LlmError: `INVALID_DIRECTORY` or `DUPLICATE_DIRECTORY`; nothing is declared then.
        """
        handle = self._next_handle()
        await self.change(
            lambda registry: registry.with_directory(
                handle, _directory(entries, may_be_empty=False)
            )
        )
        return DirectoryRegistration(self, handle)

    async def register_model_discovery(
        self, settings_ns: str, discover: Discover
    ) -> DiscoveryRegistration:
        """Offer to interrogate endpoints for a settings namespace.

        Raises:
            LlmError: `INVALID_DISCOVERY`: no namespace; `DUPLICATE_DISCOVERY`: it is taken.
        """
        handle = self._next_handle()
        self._discover[handle] = discover  # before the first request for it can arrive
        try:
            await self.change(lambda registry: registry.with_discovery(handle, settings_ns))
        except LlmError:
            del self._discover[handle]
            raise
        return DiscoveryRegistration(self, handle, settings_ns)

    # --- for the host --------------------------------------------------------------------------

    @property
    def registry(self) -> AdapterRegistry:
        """What is in force."""
        return self._registry

    def owned_providers(self, adapter: LlmAdapter) -> frozenset[str]:
        """Return the routes that this very instance serves now."""
        return frozenset(
            route.provider
            for registration in self._registry.adapters
            if registration.adapter is adapter
            for route in registration.routes
        )

    def discoverer(self, settings_ns: str) -> Discover | None:
        """Return what interrogates endpoints for a namespace."""
        for item in self._registry.discovery:
            if item.settings_ns == settings_ns:
                return self._discover.get(item.handle)
        return None

    async def publish(self) -> None:
        """Ask the broker for everything collected so far: the worker is ready.

        Raises:
            LlmError: the refusal.
        """
        self._is_published = True
        await self.change(lambda registry: registry)

    async def change(self, change: _Change) -> None:
        """Put a candidate in force once the broker has committed it.

        Safe to cancel: the request is carried out to its end, only nobody waits for it.

        Raises:
            LlmError: refused here or by the broker; nothing has changed.
        """
        refusal = await asyncio.shield(self._spawn(self._changed(change)))
        if refusal is not None:
            raise refusal

    async def withdraw(self, handle: int) -> None:
        """Release a handle; one that is released already changes nothing."""
        if self._registry.has(handle):
            await self.change(lambda registry: registry.without(handle))
            self._discover.pop(handle, None)

    async def _changed(self, change: _Change) -> LlmError | None:
        async with self._one_at_a_time:
            try:
                candidate = change(self._registry)
            except LlmError as exc:
                return exc
            if self._is_published:
                refusal = await self._submit(candidate.to_wire())
                if refusal is not None:
                    return refusal
            self._registry = candidate
            return None

    def _next_handle(self) -> int:
        self._handles += 1
        return self._handles


_MAX_INFO_CHARS: Final = 1024


def captured_routes(providers: Sequence[str], adapter: LlmAdapter) -> list[Route]:
    """Capture what an adapter says of each route now.

    Raises:
        LlmError: `INVALID_ADAPTER`: an empty or overlong name, or provider info that is wrong.
    """
    for provider in providers:
        if type(provider) is not str or not 0 < len(provider) <= MAX_NAME_BYTES:
            raise _invalid("a provider route needs a name")
    return [_captured(provider, adapter) for provider in providers]


def _captured(provider: str, adapter: LlmAdapter) -> Route:
    try:
        info = adapter.provider_info(provider)
        policy = adapter.provider_retry_policy(provider) or DEFAULT_RETRY_POLICY
    except LlmError:
        raise
    # Foreign code: whatever it raises means that this route cannot be described.
    except Exception as exc:
        raise _invalid(f"provider {provider!r} cannot be described: {exc}") from exc
    is_info = isinstance(info, LlmProviderInfo) and info.id == provider  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_info or not 0 < len(info.name) <= _MAX_INFO_CHARS:
        raise _invalid(f"invalid provider info for {provider!r}")
    return Route(provider, {"id": info.id, "name": info.name}, policy.to_dict())


def _directory(
    entries: Sequence[LlmConfigurableProvider], *, may_be_empty: bool
) -> list[dict[str, object]]:
    return [entry.to_dict() for entry in check_directory(entries, may_be_empty=may_be_empty)]


def _invalid(message: str) -> LlmError:
    return LlmError(LlmFailure(message, Code.INVALID_ADAPTER))
