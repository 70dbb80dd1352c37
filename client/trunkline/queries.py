"""What the answers of queries look like as values; SPEC.md section 7."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.models import LlmModelInfo, LlmProviderInfo, LlmResolvedModelInfo
from trunkline_protocol.options import LlmCallConfig
from trunkline_protocol.retry_policy import ResolvedRetryPolicy, policy_from_dict

T = TypeVar("T")


class Asker(Protocol):
    """Whatever can put one question."""

    async def query(self, op: str, argument: object = None, *, provider: str = "") -> Any:
        """Return the decoded answer."""
        ...


async def list_providers(asker: Asker) -> list[LlmProviderInfo]:
    """Ask for the registered routes."""
    op = "listProviders"
    return [_read(op, LlmProviderInfo.from_dict, item) for item in _list(op, await asker.query(op))]


async def models(asker: Asker) -> list[str]:
    """Ask for the names of the registered routes."""
    op = "models"
    return [_text(op, item) for item in _list(op, await asker.query(op))]


async def list_models(asker: Asker, provider: str) -> list[LlmModelInfo]:
    """Ask a route for its catalog."""
    op = "listModels"
    answer = await asker.query(op, provider=provider)
    return [_read(op, LlmModelInfo.from_dict, item) for item in _list(op, answer)]


async def resolve_model_info(asker: Asker, provider: str, model: str) -> LlmResolvedModelInfo:
    """Ask a route for one exact model."""
    op = "resolveModelInfo"
    answer = await asker.query(op, {"model": model}, provider=provider)
    return _read(op, LlmResolvedModelInfo.from_dict, answer)


async def resolve_call_config(asker: Asker, config: LlmCallConfig) -> LlmCallConfig:
    """Ask a route to materialize its defaults."""
    op = "resolveCallConfig"
    answer = await asker.query(op, config.to_dict(), provider=config.provider)
    return _read(op, LlmCallConfig.from_dict, answer)


async def provider_retry_policy(asker: Asker, provider: str) -> ResolvedRetryPolicy:
    """Ask for the policy captured with a route."""
    op = "providerRetryPolicy"
    answer = await asker.query(op, provider=provider)
    return _read(op, policy_from_dict, answer)


async def status(asker: Asker) -> dict[str, Any]:
    """Ask for the status document."""
    return dict(_read("status", dict[str, Any], await asker.query("status")))


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


def _text(op: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise RemoteProtocolError(f"{op}: the answer is no list of texts")
