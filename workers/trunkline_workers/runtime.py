"""`WorkerRuntime`: what code in a worker uses to register adapters, directory and discovery.

Every change is all or nothing: it is checked here, asked of the broker as a whole, and in force
when the broker has committed it. Before the worker is ready, changes are only collected; the first
request carries them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, Final, TypeGuard

from trunkline_protocol.codec import Direction, decode, encode
from trunkline_protocol.failure import Code, LlmError, LlmFailure, RemoteProtocolError
from trunkline_protocol.frames import Registrations
from trunkline_protocol.limits import MAX_LIST_ENTRIES, MAX_NAME_BYTES
from trunkline_protocol.model_checks import check_directory
from trunkline_protocol.models import (
    LlmConfigurableProvider,
    LlmDiscoveredModel,
    LlmModelDiscoveryRequest,
    LlmProviderInfo,
)
from trunkline_protocol.retry_policy import (
    DEFAULT_RETRY_POLICY,
    AlwaysRetryPolicy,
    NormalRetryPolicy,
    policy_from_dict,
)

from trunkline_workers import foreign
from trunkline_workers.adapter import LlmAdapter
from trunkline_workers.boundary import Redact, cleaned
from trunkline_workers.core.link import RegistrationSet
from trunkline_workers.core.registry import Registry, Route
from trunkline_workers.foreign import class_name

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
        clean: takes secrets out of the texts of refusals.
    """

    def __init__(self, submit: Submit, spawn: Spawn, clean: Redact = str) -> None:
        self._submit = submit
        self._clean = clean
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
        await self.change(
            lambda registry: registry.with_adapter(
                handle, adapter, captured_routes(providers, adapter, may_be_empty=False)
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
            LlmError: `INVALID_DISCOVERY`: the namespace is not a name, or `discover` cannot be
                called; `DUPLICATE_DISCOVERY`: it is taken.
        """
        handle = self._next_handle()
        if not is_name(settings_ns):
            text = f"model discovery: settings_ns must be {NAME_RULE}"
            raise LlmError.of(text, Code.INVALID_DISCOVERY)
        if not callable(discover):
            text = f"model discovery for {settings_ns!r}: discover must be an async function"
            raise LlmError.of(text, Code.INVALID_DISCOVERY)
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

        Args:
            change: makes the candidate. It may call adapter code; whatever that raises is refused
                and changes nothing.

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
                candidate = foreign.call(change, self._registry)
                wanted = candidate.to_wire()
                check_decodable(wanted)
            except LlmError as exc:
                return LlmError(cleaned(exc.failure, self._clean))
            if self._is_published:
                refusal = await self._submit(wanted)
                if refusal is not None:
                    return refusal
            self._registry = candidate
            return None

    def _next_handle(self) -> int:
        self._handles += 1
        return self._handles


def check_decodable(wanted: RegistrationSet) -> None:
    """Refuse a set of registrations that a broker could not decode.

    Raises:
        LlmError: `INVALID_ADAPTER`: a value has no form in a frame, or the frame is too large.
    """
    try:
        decode(encode(Registrations(0, *wanted)), Direction.WORKER_TO_BROKER)
    except (RemoteProtocolError, TypeError, ValueError, OverflowError) as exc:
        raise _invalid(f"these registrations have no form that a broker reads: {exc}") from exc


_MAX_INFO_CHARS: Final = 1024
_MAX_ROUTES: Final = MAX_LIST_ENTRIES
NAME_RULE: Final = f"a printable text of 1 to {MAX_NAME_BYTES} bytes"


def is_name(value: object) -> TypeGuard[str]:
    """Return whether a value may name a route or a namespace: printable text, not too long."""
    return (
        type(value) is str
        and value.isprintable()
        and 0 < len(value.encode(errors="replace")) <= MAX_NAME_BYTES
    )


def captured_routes(
    providers: Sequence[str], adapter: LlmAdapter, *, may_be_empty: bool = True
) -> list[Route]:
    """Capture what an adapter says of each route now.

    Raises:
        LlmError: `INVALID_ADAPTER`: a name that is none, or provider info or policy that is wrong.
        BaseException: what a list of the adapter's own making raises.
    """
    if isinstance(providers, str | bytes) or not isinstance(providers, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _invalid("provider routes must be a list of names")
    names = list(islice(providers, _MAX_ROUTES + 1))
    if len(names) > _MAX_ROUTES:
        raise _invalid(f"an adapter has at most {_MAX_ROUTES} provider routes")
    if not names and not may_be_empty:
        raise _invalid("an adapter needs at least one provider route")
    for provider in names:
        if not is_name(provider):
            raise _invalid(f"a provider route needs a name: {NAME_RULE}")
    if not isinstance(adapter, LlmAdapter):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _invalid(f"{class_name(adapter)} is not an LlmAdapter")
    return [_captured(provider, adapter) for provider in names]


def _captured(provider: str, adapter: LlmAdapter) -> Route:
    try:
        info, policy = foreign.call(_described, provider, adapter)
    except LlmError as exc:
        text = f"provider {provider!r} cannot be described: {exc.failure.message}"
        code = exc.code if exc.code != Code.UNKNOWN else Code.INVALID_ADAPTER
        raise LlmError(LlmFailure(text, code)) from exc
    return Route(provider, info, policy)


def _described(provider: str, adapter: LlmAdapter) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return plain values of what an adapter says of a route; reading them runs its code."""
    info = adapter.provider_info(provider)
    if not isinstance(info, LlmProviderInfo):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _invalid("provider_info must return an LlmProviderInfo")
    name: object = info.name
    if info.id != provider:
        raise _invalid("the id of its provider info is another one")
    if type(name) is not str or not 0 < len(name) <= _MAX_INFO_CHARS or not name.isprintable():
        raise _invalid(f"its name must be a printable text of 1 to {_MAX_INFO_CHARS} characters")
    policy = adapter.provider_retry_policy(provider) or DEFAULT_RETRY_POLICY
    if not isinstance(policy, NormalRetryPolicy | AlwaysRetryPolicy):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _invalid("provider_retry_policy must return a retry policy or None")
    try:
        checked = policy_from_dict(policy.to_dict())
    except ValueError as exc:
        raise _invalid(str(exc)) from exc
    return {"id": provider, "name": name}, checked.to_dict()


def _directory(
    entries: Sequence[LlmConfigurableProvider], *, may_be_empty: bool
) -> list[dict[str, object]]:
    listed = list(islice(entries, _MAX_ROUTES + 1))
    if len(listed) > _MAX_ROUTES:
        text = f"a directory has at most {_MAX_ROUTES} entries"
        raise LlmError.of(text, Code.INVALID_DIRECTORY)
    checked = [entry.to_dict() for entry in check_directory(listed, may_be_empty=may_be_empty)]
    for number, entry in enumerate(checked):
        if not is_name(entry["provider"]) or not is_name(entry["settingsNs"]):
            text = f"directory entry {number}: provider and settingsNs must each be {NAME_RULE}"
            raise LlmError.of(text, Code.INVALID_DIRECTORY)
    return checked


def _invalid(message: str) -> LlmError:
    return LlmError(LlmFailure(message, Code.INVALID_ADAPTER))
