"""The configuration that nobody wrote: a provider for each key."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_broker import onboarding
from trunkline_broker.config import Document
from trunkline_broker.onboarding import PROVIDERS, builtin, worker_section
from trunkline_broker.onboarding import has_library as real_has_library


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library and the local model, whatever is installed here."""
    monkeypatch.setattr(onboarding, "has_library", lambda _: False)
    monkeypatch.setattr(onboarding, "has_local_model", lambda: False)


def workers(environ: dict[str, str]) -> dict[str, Any]:
    tree = builtin(environ)
    checkable = {name: _tuples(section) for name, section in tree["worker"].items()}
    Document.model_validate({"worker": checkable})
    return tree["worker"]


def _tuples(section: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in section.items()}


def test_nothing_at_all_is_the_scripted_adapter() -> None:
    """There is something to call on any machine."""
    assert workers({}) == {"scripted": {"adapter": "scripted", "providers": ["scripted"]}}


def test_every_key_serves_its_provider() -> None:
    """Each gets the one variable that holds its key, and no other provider's."""
    found = workers({each.variables[0]: "k" for each in PROVIDERS})
    assert list(found) == [each.name for each in PROVIDERS]
    for each in PROVIDERS:
        assert found[each.name]["env"] == [each.variables[0]]
        assert found[each.name]["options"]["apiKeyEnv"] == each.variables[0]
    routes = [route for section in found.values() for route in section["providers"]]
    assert len(set(routes)) == len(routes)


def test_a_blank_key_is_none() -> None:
    """An exported empty variable serves nobody."""
    assert list(workers({"OPENAI_API_KEY": "  "})) == ["scripted"]


def test_the_other_variable_of_a_provider() -> None:
    """The first one that is set counts."""
    assert workers({"GOOGLE_API_KEY": "k"})["google"]["options"]["apiKeyEnv"] == "GOOGLE_API_KEY"


def test_the_way_to_the_outside_world_is_passed_on() -> None:
    """Behind a proxy a worker needs its address."""
    found = workers({"OPENAI_API_KEY": "k", "HTTPS_PROXY": "http://proxy:3128"})
    assert found["openai"]["env"] == ["OPENAI_API_KEY", "HTTPS_PROXY"]


def test_the_library_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows the provider's own API; without it the chat endpoint serves."""
    anthropic = PROVIDERS[0]
    bare = worker_section(anthropic, "ANTHROPIC_API_KEY", {})
    assert bare["adapter"] == "chat_completions"
    assert bare["options"]["requireKey"] is True
    monkeypatch.setattr(onboarding, "has_library", lambda _: True)
    full = worker_section(anthropic, "ANTHROPIC_API_KEY", {})
    assert (full["adapter"], full["options"]["profile"]) == ("pydantic_ai", "anthropic")


@pytest.mark.parametrize("is_installed", [True, False])
def test_bedrock_is_called_in_the_region_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    """By boto3 and the library, or by its chat-completions endpoint."""
    monkeypatch.setattr(onboarding, "has_library", lambda _: is_installed)
    environ = {"AWS_BEARER_TOKEN_BEDROCK": "k", "AWS_REGION": "eu-west-1"}
    options = workers(environ)["bedrock"]["options"]
    assert options.get("region") == ("eu-west-1" if is_installed else None)
    assert is_installed or "bedrock-runtime.eu-west-1." in options["baseUrl"]
    assert "us-east-1" in str(workers({"AWS_BEARER_TOKEN_BEDROCK": "k"})["bedrock"]["options"])


def test_the_local_model_is_served_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the keys, if it is installed."""
    monkeypatch.setattr(onboarding, "has_local_model", lambda: True)
    assert list(workers({"XAI_API_KEY": "k"})) == ["xai", "local"]


def test_the_profiles_are_those_of_the_workers() -> None:
    """The table names what the adapters know, and the hosts that they call."""
    chat = pytest.importorskip("trunkline_workers.adapters.chat_completions.profiles").PROFILES
    library = pytest.importorskip("trunkline_workers.adapters.pydantic_ai.profiles").PROFILES
    for each in PROVIDERS:
        if each.profile:
            known = chat[each.profile]
            assert known.key_env in each.variables
            assert known.route == (each.route or each.name)
            assert each.host in known.base_url
        if each.library_profile:
            known = library[each.library_profile]
            assert known.key_env in each.variables
            assert each.host in known.base_url
            assert each.host in each.base_url


def test_a_library_that_is_half_installed_is_none() -> None:
    """Both parts are needed; a missing package around a name is no error."""
    assert not real_has_library("no_such_package.part")
