"""Profiles and the options that change them."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_protocol.retry_policy import NormalRetryPolicy
from trunkline_workers.adapters.chat_completions.config import read_config
from trunkline_workers.adapters.chat_completions.profiles import PROFILES
from trunkline_workers.adapters.local.config import read_local_config


def test_every_profile_but_custom_needs_no_option() -> None:
    """A profile's name is a whole configuration."""
    for name in PROFILES.keys() - {"custom"}:
        config = read_config({"profile": name})
        assert config.base_url.startswith("http")
        assert config.key_env


def test_routes_are_distinct() -> None:
    """No two profiles would register the same route."""
    assert len({profile.route for profile in PROFILES.values()}) == len(PROFILES)
    assert PROFILES["deepseek"].route == "deepseek-official"


def test_options_replace_single_values() -> None:
    """Quirks, limits and the client can be set."""
    config = read_config(
        {
            "baseUrl": "https://host/v1/",
            "apiKeyFile": "/run/key",
            "inlineThinking": "tags",
            "reasoningField": "reasoning",
            "streamIdleTimeoutMs": 1500,
            "totalTimeoutMs": 60_000.5,
            "maxConnections": 3,
            "efforts": {"low": {"think": 1}},
            "models": [{"id": "m", "contextWindow": 10, "images": True}],
            "retryPolicy": {"mode": "normal", "maxRetries": 2},
        }
    )
    assert config.base_url == "https://host/v1"
    assert config.profile.response.inline_thinking == "tags"
    assert config.profile.request.reasoning_field == "reasoning"
    assert (config.limits.idle_s, config.limits.total_s) == (1.5, 60.0005)
    assert config.client.max_connections == 3
    assert config.profile.request.efforts == {"low": {"think": 1}}
    assert config.profile.models[0].context_window == 10
    assert not config.profile.lists_models
    assert isinstance(config.retry_policy, NormalRetryPolicy)
    assert config.retry_policy.max_retries == 2


def test_http2_uses_httpx_itself() -> None:
    """The aiohttp transport has no HTTP/2."""
    assert read_config({"baseUrl": "https://h", "http2": True}).client.transport == "httpx"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"baseURL": "https://h"},
            ["baseURL: unknown option", "did you mean baseUrl", "allowed: "],
        ),
        ({"zzz": 1, "baseUrl": "https://h"}, ["zzz: unknown option; allowed: ", "profile"]),
        ({"profile": "open-ai"}, ["profile: one of ", "openai"]),
        ({}, ["baseUrl: required"]),
        ({"baseUrl": "ftp://h"}, ["baseUrl: "]),
        ({"baseUrl": "https://u:p@h"}, ["baseUrl: ", "credentials"]),
        ({"profile": "openai", "streamIdleTimeoutMs": 0}, ["streamIdleTimeoutMs: ", "above 0"]),
        ({"profile": "openai", "streamIdleTimeoutMs": float("inf")}, ["streamIdleTimeoutMs: "]),
        ({"profile": "openai", "totalTimeoutMs": True}, ["totalTimeoutMs: "]),
        ({"profile": "openai", "maxConnections": 0}, ["maxConnections: "]),
        ({"profile": "openai", "lenient": "yes"}, ["lenient: true or false"]),
        ({"profile": "openai", "headers": {"a": 1}}, ["headers: a table of texts"]),
        ({"profile": "openai", "models": [{"name": "x"}]}, ["models[0].id: required"]),
        ({"profile": "openai", "models": [{"id": "x", "y": 1}]}, ["models[0].y: unknown option"]),
        ({"profile": "openai", "models": {}}, ["models: a list of tables"]),
        ({"profile": "openai", "efforts": {"low": 1}}, ["efforts: "]),
        ({"profile": "openai", "thinking": "enabled"}, ["thinking: allowed: nothing"]),
        ({"profile": "deepseek", "thinking": "on"}, ["thinking: allowed: enabled, disabled"]),
        ({"profile": "deepseek", "reasoningEffort": "medium"}, ["allowed: off, low, high, max"]),
        (
            {"profile": "deepseek", "thinking": "disabled", "reasoningEffort": "max"},
            ["reasoningEffort: allowed: off"],
        ),
        ({"profile": "openai", "http2": True, "transport": "aiohttp"}, ["transport: "]),
        ({"profile": "openai", "retryPolicy": {"mode": "x"}}, ["retryPolicy.mode"]),
        ({"profile": "openai", "reasoningField": 3}, ["reasoningField: "]),
        ({"profile": "openai", "apiKeyEnv": ""}, ["apiKeyEnv: "]),
    ],
)
def test_wrong_options_name_the_key(options: dict[str, Any], said: list[str]) -> None:
    """Every error starts with the key and says what is allowed."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        read_config(options)
    assert all(part in str(caught.value) for part in said), str(caught.value)


def test_local_options() -> None:
    """The local adapter has its own few."""
    config = read_local_config({"modelPath": "/m.gguf", "slots": 2, "threads": 1})
    assert (config.model_path, config.slots, config.threads) == ("/m.gguf", 2, 1)
    chat = config.chat("http://127.0.0.1:1/v1")
    assert not chat.client.trust_env
    assert chat.default_max_tokens == config.max_tokens
    with pytest.raises(ValueError, match=r"model: unknown option; did you mean modelPath"):
        read_local_config({"model": "x"})
