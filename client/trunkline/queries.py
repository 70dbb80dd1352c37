"""The questions of a runtime: what they are called, what they ask, what their answers look like.

SPEC.md section 7 has the table. Each has a timeout, and cancelling the task that waits reaches
whoever works on the answer, down to the adapter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.options import LlmCallConfig, call_config_equals
from trunkline_protocol.retry_policy import ResolvedRetryPolicy, policy_from_dict

from trunkline import arguments, request

# Those who only make calls need none of these models, and each costs 0.3 ms to define (measured).
if TYPE_CHECKING:
    from trunkline_protocol.models import (
        LlmConfigurableProvider,
        LlmDiscoveredModel,
        LlmModelDiscoveryRequest,
        LlmModelInfo,
        LlmProviderInfo,
        LlmResolvedModelInfo,
    )

T = TypeVar("T")
DEFAULT_QUERY_TIMEOUT_S: Final = 30.0


class RuntimeQueries(ABC):
    """Everything a runtime can be asked.

    Each question raises `LlmError`: `TIMEOUT` if no answer came within `timeout_s` seconds,
    `OVERLOADED` beyond the bound on open questions, `ABORTED` when the runtime is closed meanwhile,
    `TRANSPORT` if the worker that was asked died; `LocalProtocolError` for a wrong argument, which
    it names, and where the runtime is not usable; `RemoteProtocolError` for a malformed answer.
    Only further codes are told below.
    """

    @abstractmethod
    async def query(
        self,
        op: str,
        argument: object = None,
        *,
        provider: str = "",
        timeout_s: float = DEFAULT_QUERY_TIMEOUT_S,
    ) -> Any:
        """Put one question and return the decoded answer."""

    async def list_providers(
        self, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S
    ) -> list[LlmProviderInfo]:
        """Return the routes with a registered adapter, in registration order."""
        from trunkline_protocol.models import LlmProviderInfo

        op = "listProviders"
        answer = await self.query(op, timeout_s=timeout_s)
        return [_read(op, LlmProviderInfo.from_dict, item) for item in _list(op, answer)]

    async def models(self, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S) -> list[str]:
        """Return the names of the routes with a registered adapter."""
        return _texts("models", await self.query("models", timeout_s=timeout_s))

    async def list_models(
        self, provider: str, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S
    ) -> list[LlmModelInfo]:
        """Return the models a route advertises; advisory, never a whitelist.

        Raises:
            LlmError: `NO_ADAPTER`, `INVALID_CATALOG`, or the adapter's own failure.
        """
        from trunkline_protocol.models import LlmModelInfo

        op = "listModels"
        answer = await self.query(
            op, provider=arguments.name("provider", provider), timeout_s=timeout_s
        )
        return [_read(op, LlmModelInfo.from_dict, item) for item in _list(op, answer)]

    async def resolve_model_info(
        self, provider: str, model: str, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S
    ) -> LlmResolvedModelInfo:
        """Return everything known of one exact model.

        Raises:
            LlmError: `NO_ADAPTER`, `INVALID_MODEL_INFO`, `INVALID_MODEL_CONTEXT`,
                `INVALID_MODEL_MAX_TOKENS`, `INVALID_MODEL_REASONING`, or the adapter's own failure.
        """
        from trunkline_protocol.models import LlmResolvedModelInfo

        op = "resolveModelInfo"
        argument = {"model": arguments.name("model", model)}
        route = arguments.name("provider", provider)
        answer = await self.query(op, argument, provider=route, timeout_s=timeout_s)
        return _read(op, LlmResolvedModelInfo.from_dict, answer)

    async def resolve_call_config(
        self,
        config: LlmCallConfig | Mapping[str, Any],
        *,
        timeout_s: float = DEFAULT_QUERY_TIMEOUT_S,
    ) -> LlmCallConfig:
        """Return a call config with the adapter's defaults filled in; nothing is ever clamped.

        It binds no later call: see `LlmRuntime.prepare_call`.

        Returns:
            The very `config` if nothing was filled in.

        Raises:
            LlmError: `UNSUPPORTED_REASONING_EFFORT`, and as `resolve_model_info`.
        """
        op = "resolveCallConfig"
        asked = request.config_from(config)
        route = arguments.name("provider", asked.provider)
        answer = await self.query(op, asked.to_dict(), provider=route, timeout_s=timeout_s)
        resolved = _read(op, LlmCallConfig.from_dict, answer)
        return asked if call_config_equals(asked, resolved) else resolved

    async def provider_retry_policy(
        self, provider: str, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S
    ) -> ResolvedRetryPolicy:
        """Return the policy captured when a route was registered.

        Raises:
            LlmError: `NO_ADAPTER`.
        """
        op = "providerRetryPolicy"
        answer = await self.query(
            op, provider=arguments.name("provider", provider), timeout_s=timeout_s
        )
        return _read(op, policy_from_dict, answer)

    async def list_configurable_providers(
        self, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S
    ) -> list[LlmConfigurableProvider]:
        """Return every route that configuration could activate, in the order of declaration."""
        from trunkline_protocol.models import LlmConfigurableProvider

        op = "listConfigurableProviders"
        answer = await self.query(op, timeout_s=timeout_s)
        return [_read(op, LlmConfigurableProvider.from_dict, item) for item in _list(op, answer)]

    async def list_model_discovery_namespaces(
        self, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S
    ) -> list[str]:
        """Return the settings namespaces for which `discover_models` finds somebody."""
        op = "listModelDiscoveryNamespaces"
        return _texts(op, await self.query(op, timeout_s=timeout_s))

    async def discover_models(
        self,
        settings_ns: str,
        draft: LlmModelDiscoveryRequest | Mapping[str, Any],
        *,
        timeout_s: float = DEFAULT_QUERY_TIMEOUT_S,
    ) -> list[LlmDiscoveredModel]:
        """Ask an endpoint that no configuration has stored yet for its models.

        Args:
            settings_ns: whose discovery serves the draft.
            draft: endpoint, protocol and credential; the credential travels to the one worker that
                asks and is stored nowhere.
            timeout_s: seconds.

        Returns:
            In the order of the endpoint, each id once.

        Raises:
            LlmError: `NO_DISCOVERY`: nobody serves the namespace; `INVALID_DISCOVERY`: neither a
                provider nor an endpoint is named; or the adapter's own failure.
        """
        from trunkline_protocol.models import LlmDiscoveredModel

        op = "discoverModels"
        argument = {
            "settingsNs": arguments.name("settings_ns", settings_ns),
            "request": request.draft_from(draft).to_dict(),
        }
        answer = await self.query(op, argument, timeout_s=timeout_s)
        return [_read(op, LlmDiscoveredModel.from_dict, item) for item in _list(op, answer)]

    async def status(self, *, timeout_s: float = DEFAULT_QUERY_TIMEOUT_S) -> dict[str, Any]:
        """Return the broker's status document."""
        answer = await self.query("status", timeout_s=timeout_s)
        return dict(_read("status", dict[str, Any], answer))


def _read(op: str, read: Callable[[Mapping[str, Any]], T], value: object) -> T:
    if isinstance(value, dict):
        try:
            return read(cast("Mapping[str, Any]", value))
        except ValueError as exc:
            raise RemoteProtocolError(f"{op}: {exc}") from None  # one text says it all
    raise RemoteProtocolError(f"{op}: the answer is no map")


def _list(op: str, value: object) -> list[object]:
    if isinstance(value, list):
        return cast("list[object]", value)
    raise RemoteProtocolError(f"{op}: the answer is no list")


def _texts(op: str, value: object) -> list[str]:
    items = _list(op, value)
    if all(isinstance(item, str) for item in items):
        return cast("list[str]", items)
    raise RemoteProtocolError(f"{op}: the answer is no list of texts")
