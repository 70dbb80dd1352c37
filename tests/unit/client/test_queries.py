"""Answers of queries as values; a broker that answers nonsense is told apart from a failure."""

from __future__ import annotations

from typing import Any, cast

import pytest
from trunkline.queries import DEFAULT_QUERY_TIMEOUT_S, RuntimeQueries
from trunkline_protocol.failure import LocalProtocolError, RemoteProtocolError
from trunkline_protocol.options import LlmCallConfig


class Asked(RuntimeQueries):
    """Answers every question with one value, and remembers it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[tuple[str, object, str]] = []
        self.timeouts: list[float] = []

    async def query(
        self,
        op: str,
        argument: object = None,
        *,
        provider: str = "",
        timeout_s: float = DEFAULT_QUERY_TIMEOUT_S,
    ) -> Any:
        """Return the value."""
        self.asked.append((op, argument, provider))
        self.timeouts.append(timeout_s)
        return self.answer


ENTRY = {"provider": "p", "displayName": "P", "settingsNs": "n", "settingsPath": ["a"]}
INFO = {"provider": "p", "id": "m", "name": "M"}
CONFIG = LlmCallConfig(provider="p", model="m", max_tokens=3)


async def test_each_query_asks_the_right_one() -> None:
    """The route's worker where only it knows, the broker otherwise."""
    asked = Asked([{"id": "p", "name": "P"}])
    assert (await asked.list_providers())[0].id == "p"
    assert asked.asked == [("listProviders", None, "")]
    asked = Asked(["p"])
    assert await asked.models() == ["p"]
    asked = Asked([INFO])
    assert (await asked.list_models("p"))[0].id == "m"
    assert asked.asked == [("listModels", None, "p")]
    asked = Asked(INFO)
    assert (await asked.resolve_model_info("p", "m")).name == "M"
    assert asked.asked == [("resolveModelInfo", {"model": "m"}, "p")]
    asked = Asked(CONFIG.to_dict())
    assert await asked.resolve_call_config(CONFIG) is CONFIG  # nothing was filled in
    assert asked.asked == [("resolveCallConfig", CONFIG.to_dict(), "p")]
    asked = Asked({"mode": "always", "initialDelayMs": 1, "maxDelayMs": 2, "jitterRatio": 0})
    assert (await asked.provider_retry_policy("p")).mode == "always"
    assert asked.asked == [("providerRetryPolicy", None, "p")]
    assert await Asked({"pid": 1}).status() == {"pid": 1}
    asked = Asked([ENTRY])
    assert (await asked.list_configurable_providers())[0].to_dict() == ENTRY
    assert asked.asked == [("listConfigurableProviders", None, "")]
    assert await Asked(["ns"]).list_model_discovery_namespaces() == ["ns"]
    asked = Asked([{"id": "m"}])
    draft = {"baseURL": "http://e", "apiKey": "k"}
    assert (await asked.discover_models("ns", draft, timeout_s=3))[0].id == "m"
    assert asked.asked == [("discoverModels", {"settingsNs": "ns", "request": draft}, "")]
    assert asked.timeouts == [3]


async def test_a_wrong_argument_is_named_and_never_sent() -> None:
    asked = Asked([])
    with pytest.raises(LocalProtocolError, match=r"^provider: "):
        await asked.list_models("p" * 257)
    with pytest.raises(LocalProtocolError, match=r"^model: "):
        await asked.resolve_model_info("p", cast("str", 5))
    with pytest.raises(LocalProtocolError, match=r"^settings_ns: "):
        await asked.discover_models("n" * 257, {})
    with pytest.raises(LocalProtocolError, match=r"^apiKey: ") as seen:
        await asked.discover_models("ns", {"apiKey": ["secret"]})
    assert "secret" not in str(seen.value)
    assert asked.asked == []


async def test_nonsense_is_the_brokers_mistake() -> None:
    """The text names the operation."""
    with pytest.raises(RemoteProtocolError, match="listProviders"):
        await Asked({}).list_providers()
    with pytest.raises(RemoteProtocolError, match="listProviders"):
        await Asked([5]).list_providers()
    with pytest.raises(RemoteProtocolError, match="models"):
        await Asked([5]).models()
    with pytest.raises(RemoteProtocolError, match="resolveModelInfo"):
        await Asked({"id": 5}).resolve_model_info("p", "m")
