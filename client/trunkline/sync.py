"""`connect_sync`: the blocking form of everything, over the one asynchronous implementation.

An `LlmRuntime` lives on a loop in a thread of its own; every method here hands its arguments over
and waits. Any thread may call, and several may at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, Self, TypeVar, overload

from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.limits import CONNECT_TIMEOUT_S
from trunkline_protocol.models import (
    LlmConfigurableProvider,
    LlmDiscoveredModel,
    LlmModelDiscoveryRequest,
    LlmModelInfo,
    LlmProviderInfo,
    LlmResolvedModelInfo,
)
from trunkline_protocol.options import GenerateOptions, LlmCallConfig
from trunkline_protocol.retry_policy import ResolvedRetryPolicy

from trunkline import arguments
from trunkline.core.queues import QueueStatistics
from trunkline.errors import BrokerUnreachableError
from trunkline.events import Observer
from trunkline.portal import Portal
from trunkline.queries import DEFAULT_QUERY_TIMEOUT_S
from trunkline.runtime import Keys, LlmRuntime, Recovery, connect
from trunkline.stream import GenerateResult, RetryObserver
from trunkline.sync_listeners import (
    SyncGenerateListener,
    SyncStreamListener,
    contained,
    generate_listener,
    stream_listener,
)
from trunkline.sync_stream import (
    SyncAdapterUpdates,
    SyncAttachments,
    SyncBlockStream,
    SyncPreparedLlmCall,
    SyncStream,
)

T = TypeVar("T")


class SyncRuntime:
    """A connection to the broker for code without a loop; made by `trunkline.connect_sync`.

    Each method does what the method of `LlmRuntime` with its name does and raises what that raises;
    in a forked child `ForkedClientError`, and called by an observer `LocalProtocolError`, since it
    would wait for itself. Ctrl-C cancels what it interrupts. A signal handler may call any method.
    If the runtime's thread has ended, or has answered nothing for 30 s (an observer blocks it),
    every wait ends in `LocalProtocolError`.

    Attributes:
        endpoint: address of the broker.
        name: how the broker's status calls this client.
    """

    def __init__(self, runtime: LlmRuntime) -> None:
        self.endpoint = runtime.endpoint
        self.name = runtime.name
        self._runtime = runtime
        self._portal: Portal | None = None
        self._is_closed = False

    # --- life ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Connect; raises as `LlmRuntime.__aenter__`, with nothing left behind."""
        if self._portal is not None or self._is_closed:
            raise LocalProtocolError(
                "a runtime is connected once; call trunkline.connect_sync() again"
            )
        try:
            portal = self._portal = Portal()
        except OSError as exc:  # no descriptor is free
            self._is_closed = True
            text = f"cannot start the runtime's thread: {exc.strerror}"
            raise BrokerUnreachableError(text, self.endpoint) from exc
        try:
            portal.run(self._runtime.__aenter__)
        except BaseException:  # Ctrl-C too: its thread ends
            self._is_closed = True
            portal.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End every stream in `aborted`, every query in an error, and disconnect; idempotent."""
        portal = self._portal
        if portal is None or portal.is_foreign or self._is_closed:
            return
        if not portal.is_over:
            portal.check_usable()  # in the runtime's own thread nothing changes
        self._is_closed = True
        try:
            portal.let_go(self._runtime.aclose)
        finally:
            portal.close()

    def _entered(self) -> Portal:
        if self._portal is None:
            raise LocalProtocolError("not connected; use `with trunkline.connect_sync() as llm`")
        return self._portal

    def _run(self, job: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._entered().run(job)

    @property
    def counters(self) -> Mapping[str, int]:
        """How often something was dropped, refused or repeated, by name; for diagnosis."""
        return self._runtime.counters

    def queues(self) -> tuple[QueueStatistics, ...]:
        """As `LlmRuntime.queues`."""
        return self._entered().call(self._runtime.queues)

    # --- calls ---------------------------------------------------------------------------------

    def stream(
        self,
        options: GenerateOptions | Mapping[str, Any] | None = None,
        /,
        *,
        recovery: Recovery = "none",
        on_retry: RetryObserver | None = None,
        detachable: bool = False,
        **fields: Any,
    ) -> SyncStream:
        """As `LlmRuntime.stream`; `on_retry` is called in the runtime's thread."""
        portal = self._entered()
        made = portal.call(
            lambda: self._runtime.stream(
                options,
                recovery=recovery,
                on_retry=contained(on_retry),
                detachable=detachable,
                **fields,
            )
        )
        return SyncStream(portal, made)

    def attach(self, ticket: str) -> SyncStream:
        """As `LlmRuntime.attach`."""
        portal = self._entered()
        return SyncStream(portal, portal.call(lambda: self._runtime.attach(ticket)))

    def stream_blocks(
        self,
        options: GenerateOptions | Mapping[str, Any] | None = None,
        /,
        *,
        recovery: Recovery = "none",
        on_retry: RetryObserver | None = None,
        **fields: Any,
    ) -> SyncBlockStream:
        """As `LlmRuntime.stream_blocks`."""
        portal = self._entered()
        made = portal.call(
            lambda: self._runtime.stream_blocks(
                options, recovery=recovery, on_retry=contained(on_retry), **fields
            )
        )
        return SyncBlockStream(portal, made)

    def generate(
        self,
        options: GenerateOptions | Mapping[str, Any] | None = None,
        /,
        *,
        recovery: Recovery = "policy",
        on_retry: RetryObserver | None = None,
        **fields: Any,
    ) -> GenerateResult:
        """As `LlmRuntime.generate`."""
        return self._run(
            lambda: self._runtime.generate(
                options, recovery=recovery, on_retry=contained(on_retry), **fields
            )
        )

    def prepare_call(
        self,
        config: LlmCallConfig | Mapping[str, Any],
        *,
        timeout_s: float = DEFAULT_QUERY_TIMEOUT_S,
    ) -> SyncPreparedLlmCall:
        """As `LlmRuntime.prepare_call`."""
        portal = self._entered()
        prepared = portal.run(lambda: self._runtime.prepare_call(config, timeout_s=timeout_s))
        return SyncPreparedLlmCall(portal, prepared)

    # --- listeners and events ------------------------------------------------------------------

    @overload
    def use(
        self, waterfall: Literal["llm/stream"], listener: SyncStreamListener, /
    ) -> Callable[[], None]: ...
    @overload
    def use(
        self, waterfall: Literal["llm/generate"], listener: SyncGenerateListener, /
    ) -> Callable[[], None]: ...
    def use(self, waterfall: Any, listener: Any, /) -> Callable[[], None]:
        """As `LlmRuntime.use`, with blocking listeners.

        An `llm/stream` listener returns an iterable of chunks, mostly as a generator, and `next`
        an iterator; an `llm/generate` listener returns the result, and so does `next`. Each call
        runs its listeners in threads of their own; they may use this runtime.
        """
        portal = self._entered()
        arguments.function("listener", listener)
        wrap: Any = generate_listener if waterfall == "llm/generate" else stream_listener
        dispose = portal.call(lambda: self._runtime.use(waterfall, wrap(portal, listener)))
        return lambda: None if portal.is_over else portal.call(dispose)

    def on_adapters_updated(self, observer: Observer) -> Callable[[], None]:
        """As `LlmRuntime.on_adapters_updated`; called in the runtime's thread."""
        portal = self._entered()
        dispose = portal.call(lambda: self._runtime.on_adapters_updated(contained(observer)))
        return lambda: None if portal.is_over else portal.call(dispose)

    def adapters_updated(self) -> SyncAdapterUpdates:
        """As `LlmRuntime.adapters_updated`."""
        portal = self._entered()
        return SyncAdapterUpdates(portal, portal.call(self._runtime.adapters_updated))

    # --- attachments ---------------------------------------------------------------------------

    @property
    def attachments(self) -> SyncAttachments:
        """Where images go before a message can name them."""
        return SyncAttachments(self._entered(), lambda: self._runtime.attachments)

    # --- queries -------------------------------------------------------------------------------

    def query(
        self,
        op: str,
        argument: object = None,
        *,
        provider: str = "",
        timeout_s: float = DEFAULT_QUERY_TIMEOUT_S,
    ) -> Any:
        """As `LlmRuntime.query`."""
        return self._run(
            lambda: self._runtime.query(op, argument, provider=provider, timeout_s=timeout_s)
        )

    def list_providers(
        self, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S
    ) -> list[LlmProviderInfo]:
        """As `LlmRuntime.list_providers`."""
        return self._run(lambda: self._runtime.list_providers(timeout_s=timeout_s))

    def models(self, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S) -> list[str]:
        """As `LlmRuntime.models`."""
        return self._run(lambda: self._runtime.models(timeout_s=timeout_s))

    def list_models(
        self, provider: str, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S
    ) -> list[LlmModelInfo]:
        """As `LlmRuntime.list_models`."""
        return self._run(lambda: self._runtime.list_models(provider, timeout_s=timeout_s))

    def resolve_model_info(
        self, provider: str, model: str, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S
    ) -> LlmResolvedModelInfo:
        """As `LlmRuntime.resolve_model_info`."""
        return self._run(
            lambda: self._runtime.resolve_model_info(provider, model, timeout_s=timeout_s)
        )

    def resolve_call_config(
        self,
        config: LlmCallConfig | Mapping[str, Any],
        *,
        timeout_s: float = DEFAULT_QUERY_TIMEOUT_S,
    ) -> LlmCallConfig:
        """As `LlmRuntime.resolve_call_config`."""
        return self._run(lambda: self._runtime.resolve_call_config(config, timeout_s=timeout_s))

    def provider_retry_policy(
        self, provider: str, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S
    ) -> ResolvedRetryPolicy:
        """As `LlmRuntime.provider_retry_policy`."""
        return self._run(lambda: self._runtime.provider_retry_policy(provider, timeout_s=timeout_s))

    def list_configurable_providers(
        self, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S
    ) -> list[LlmConfigurableProvider]:
        """As `LlmRuntime.list_configurable_providers`."""
        return self._run(lambda: self._runtime.list_configurable_providers(timeout_s=timeout_s))

    def list_model_discovery_namespaces(
        self, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S
    ) -> list[str]:
        """As `LlmRuntime.list_model_discovery_namespaces`."""
        return self._run(lambda: self._runtime.list_model_discovery_namespaces(timeout_s=timeout_s))

    def discover_models(
        self,
        settings_ns: str,
        draft: LlmModelDiscoveryRequest | Mapping[str, Any],
        *,
        timeout_s: float = DEFAULT_QUERY_TIMEOUT_S,
    ) -> list[LlmDiscoveredModel]:
        """As `LlmRuntime.discover_models`."""
        return self._run(
            lambda: self._runtime.discover_models(settings_ns, draft, timeout_s=timeout_s)
        )

    def status(self, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S) -> dict[str, Any]:
        """As `LlmRuntime.status`."""
        return self._run(lambda: self._runtime.status(timeout_s=timeout_s))


def connect_sync(
    endpoint: str | None = None,
    *,
    name: str = "",
    timeout_s: float = CONNECT_TIMEOUT_S,
    keys: Keys | None = None,
) -> SyncRuntime:
    """Return a runtime to be used as `with trunkline.connect_sync() as llm:`; as `connect`."""
    return SyncRuntime(connect(endpoint, name=name, timeout_s=timeout_s, keys=keys))
