"""Answers of queries as values; a broker that answers nonsense is told apart from a failure."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline import queries
from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.options import LlmCallConfig


class Asked:
    """Answers every question with one value, and remembers it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[tuple[str, object, str]] = []

    async def query(self, op: str, argument: object = None, *, provider: str = "") -> Any:
        """Return the value."""
        self.asked.append((op, argument, provider))
        return self.answer


INFO = {"provider": "p", "id": "m", "name": "M"}
CONFIG = LlmCallConfig(provider="p", model="m", max_tokens=3)


async def test_each_query_asks_the_right_one() -> None:
    """The route's worker where only it knows, the broker otherwise."""
    asked = Asked([{"id": "p", "name": "P"}])
    assert (await queries.list_providers(asked))[0].id == "p"
    assert asked.asked == [("listProviders", None, "")]
    asked = Asked(["p"])
    assert await queries.models(asked) == ["p"]
    asked = Asked([INFO])
    assert (await queries.list_models(asked, "p"))[0].id == "m"
    assert asked.asked == [("listModels", None, "p")]
    asked = Asked(INFO)
    assert (await queries.resolve_model_info(asked, "p", "m")).name == "M"
    assert asked.asked == [("resolveModelInfo", {"model": "m"}, "p")]
    asked = Asked(CONFIG.to_dict())
    assert await queries.resolve_call_config(asked, CONFIG) == CONFIG
    assert asked.asked == [("resolveCallConfig", CONFIG.to_dict(), "p")]
    asked = Asked({"mode": "always", "initialDelayMs": 1, "maxDelayMs": 2, "jitterRatio": 0})
    assert (await queries.provider_retry_policy(asked, "p")).mode == "always"
    assert asked.asked == [("providerRetryPolicy", None, "p")]
    assert await queries.status(Asked({"pid": 1})) == {"pid": 1}


async def test_nonsense_is_the_brokers_mistake() -> None:
    """The text names the operation."""
    with pytest.raises(RemoteProtocolError, match="listProviders"):
        await queries.list_providers(Asked({}))
    with pytest.raises(RemoteProtocolError, match="listProviders"):
        await queries.list_providers(Asked([5]))
    with pytest.raises(RemoteProtocolError, match="models"):
        await queries.models(Asked([5]))
    with pytest.raises(RemoteProtocolError, match="resolveModelInfo"):
        await queries.resolve_model_info(Asked({"id": 5}), "p", "m")
