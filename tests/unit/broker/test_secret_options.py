"""Secrets in the options of a worker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trunkline_broker.config import WorkerSection
from trunkline_broker.secret_options import concealed, masked, revealed
from trunkline_protocol.secret import STARS, SecretStr

KEY = "sk-" + "canary" * 4


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"apiKey": "x"}, {"apiKey": STARS}),
        ({"apiKeyEnv": "OPENAI_API_KEY"}, {"apiKeyEnv": "OPENAI_API_KEY"}),
        ({"apiKeyFile": "/run/key"}, {"apiKeyFile": "/run/key"}),
        ({"maxTokens": 5, "password": 3}, {"maxTokens": 5, "password": 3}),
        ({"headers": {"x-any": "y"}}, {"headers": {"x-any": STARS}}),
        ({"deep": [{"clientSecret": "x"}]}, {"deep": [{"clientSecret": STARS}]}),
        ({"note": KEY}, {"note": STARS}),
        ({"baseUrl": "https://me:pw@host/v1?k=1"}, {"baseUrl": f"https://{STARS}@host/v1?{STARS}"}),
        ({"token": ""}, {"token": ""}),
        ({"proxy": "Basic bWU6cHc="}, {"proxy": STARS}),
    ],
)
def test_secrets_are_masked(options: dict[str, Any], shown: dict[str, Any]) -> None:
    assert masked(options) == shown


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"apiKey": "x", "headers": {"authorization": "Bearer y"}, "n": [1, {"token": "z"}]},
        {"note": KEY, "baseUrl": "https://host/v1", "flag": True},
    ],
)
def test_what_was_concealed_reaches_the_worker_whole(options: dict[str, Any]) -> None:
    assert revealed(concealed(options)) == options
    assert concealed(concealed(options)) == concealed(options)


def test_a_section_shows_and_writes_stars() -> None:
    """In its repr, as JSON, and as the values that other code would print."""
    section = WorkerSection(adapter="scripted", options={"apiKey": "canary", "deep": {"note": KEY}})
    assert section.options["apiKey"] == SecretStr("canary")
    shown = (
        repr(section)
        + section.model_dump_json()
        + json.dumps(section.model_dump(mode="json"))
        + str(section.model_dump())
    )
    assert "canary" not in shown
    assert shown.count(STARS) >= 4
