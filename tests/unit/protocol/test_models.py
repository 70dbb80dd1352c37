"""Metadata of providers and models."""

from __future__ import annotations

import pytest
from trunkline_protocol.models import (
    LlmConfigurableProvider,
    LlmDiscoveredModel,
    LlmModelDiscoveryRequest,
    LlmProviderInfo,
    LlmResolvedModelInfo,
)
from trunkline_protocol.wire_model import WireModel

MAPS: list[tuple[type[WireModel], dict[str, object]]] = [
    (LlmProviderInfo, {"id": "p", "name": "P"}),
    (
        LlmResolvedModelInfo,
        {
            "provider": "p",
            "id": "m",
            "name": "M",
            "description": "d",
            "inputModalities": ["text", "image"],
            "context": {"contextWindow": 10},
            "defaultMaxTokens": 5,
            "reasoning": {"efforts": [{"id": "a", "name": "A"}], "defaultEffort": "a"},
        },
    ),
    (
        LlmConfigurableProvider,
        {
            "provider": "p",
            "displayName": "P",
            "settingsNs": "n",
            "settingsPath": ["a"],
            "declared": False,
        },
    ),
    (
        LlmModelDiscoveryRequest,
        {"provider": "p", "baseURL": "https://x.test", "api": "a", "apiKey": "k"},
    ),
    (LlmDiscoveredModel, {"id": "m", "name": "", "contextWindow": -1, "maxTokens": 1.5}),
]


@pytest.mark.parametrize(("kind", "data"), MAPS)
def test_every_model_makes_the_round_trip(kind: type[WireModel], data: dict[str, object]) -> None:
    assert kind.from_dict(data).to_dict() == data


def test_a_key_is_never_shown() -> None:
    request = LlmModelDiscoveryRequest(base_url="https://x.test", api_key="secret")
    assert "secret" not in repr(request)
    assert request.to_dict()["baseURL"] == "https://x.test"
