"""Making the library's models: one per key and model name, all on our HTTP client.

The library is imported here alone, and only the part a profile needs; it takes seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from trunkline_protocol.secret import SecretStr

from trunkline_workers.adapters.pydantic_ai.config import AdapterConfig
from trunkline_workers.adapters.pydantic_ai.converse import (
    Scribe,
    bearer,
    converse_class,
    new_client,
    signature_v4,
)
from trunkline_workers.adapters.pydantic_ai.profiles import Profile
from trunkline_workers.adapters.pydantic_ai.transport import bridged_client

_CACHED_MAX: Final = 256  # models of one worker; keys rotate, so old ones go
_NO_KEY: Final = "no-key"  # for models that are only asked about themselves, or signed otherwise
# An SDK builds its reader of these types at the first event, and stops the loop for a second.
_EVENT_TYPES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "anthropic": (
            "anthropic._models:construct_type",
            "anthropic.types.beta:BetaRawMessageStreamEvent",
        ),
        "openai": (
            "openai._models:construct_type",
            "openai.types.responses:ResponseStreamEvent",
        ),
    }
)
_UNKNOWN: Final = {"type": "unknown"}
_FIRST_EVENTS: Final = (
    {"type": "response.output_item.added", "item": _UNKNOWN},
    {"type": "response.completed", "response": {"tools": [_UNKNOWN], "tool_choice": _UNKNOWN}},
    {"type": "content_block_start", "content_block": _UNKNOWN},
    {"type": "content_block_delta", "delta": _UNKNOWN},
)
# What the library's extras install, by the name of its module.
_PACKAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "anthropic": "anthropic",
        "bedrock": "boto3",
        "google": "google.genai",
        "groq": "groq",
        "mistral": "mistralai",
        "openai": "openai",
    }
)
_CONVERSE: Final = "bedrock-converse"


def part(path: str) -> Any:
    """Return `module:name` of the library; typed loosely, since it need not be installed."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _warm(extra: str) -> None:
    """Have an SDK read some events, so that the first ones of a call cost no more than others."""
    if extra not in _EVENT_TYPES:
        return
    # These are not the SDK's public names; without them the first event is only slow.
    with contextlib.suppress(ImportError, AttributeError):
        construct, union = map(part, _EVENT_TYPES[extra])
        for event in _FIRST_EVENTS:
            construct(type_=union, value=event)


def missing(profile: Profile) -> str:
    """Say what is not installed here that a profile needs; empty if all is. Imports nothing."""
    for name in ("pydantic_ai", _PACKAGES[profile.extra]):
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            return (
                f"{name} is not installed; install it into this worker's interpreter:"
                f" pip install 'pydantic-ai-slim[{profile.extra}]'"
            )
    return ""


class Models:
    """The models of one worker.

    Args:
        config: of the worker.
        environ: of the worker.
    """

    def __init__(self, config: AdapterConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        self._environ = environ
        self._class: Any = None
        self._provider: Callable[[str], Any] | None = None
        self._providers: dict[SecretStr, Any] = {}
        self._models: dict[tuple[SecretStr, str], Any] = {}

    def load(self) -> None:
        """Import the library; blocks for seconds, so it is called in a thread.

        Raises:
            ImportError: the library, or the part for this provider, is missing.
        """
        if self._config.name == _CONVERSE:
            self._class = converse_class(part)
            self._provider = _converse(self._config, self._environ)
        else:
            self._class = part(self._config.profile.model)
            self._provider = _PROVIDERS[self._config.name](self._config)
        _warm(self._config.profile.extra)

    def get(self, name: str, key: SecretStr | None = None) -> Any:
        """Return the model of that name.

        Args:
            name: as the application gives it.
            key: that its requests carry; `None`: it is only asked about itself.
        """
        shown = SecretStr(_NO_KEY) if key is None else key
        model = self._models.get((shown, name))
        if model is None:
            self._make_room()
            model = self._class(name, provider=self._provider_for(shown))
            self._models[shown, name] = model
        return model

    def known(self) -> list[str]:
        """Return the names of the provider's models that the library knows."""
        profile = self._config.profile
        prefix = f"{profile.catalog}:"
        names: tuple[str, ...] = part("pydantic_ai.models:known_model_names")()
        return [
            name.removeprefix(prefix)
            for name in names
            if name.startswith(prefix) and profile.catalog_part in name
        ]

    def _provider_for(self, key: SecretStr) -> Any:
        provider = self._providers.get(key)
        if provider is None:
            if self._provider is None:
                raise AssertionError("models are made after load()")
            provider = self._providers[key] = self._provider(key.get_secret_value())
        return provider

    def _make_room(self) -> None:
        if len(self._models) >= _CACHED_MAX:
            self._models.clear()
            self._providers.clear()


def _anthropic(config: AdapterConfig) -> Callable[[str], Any]:
    provider = part("pydantic_ai.providers.anthropic:AnthropicProvider")
    client = part("anthropic:AsyncAnthropic")
    http = bridged_client(importlib.import_module("httpx2"))

    def make(key: str) -> Any:
        sdk = client(api_key=key, base_url=config.base_url, http_client=http, max_retries=0)
        return provider(anthropic_client=sdk)

    return make


def _bedrock(config: AdapterConfig) -> Callable[[str], Any]:
    provider = part("pydantic_ai.providers.anthropic:AnthropicProvider")
    client = part("anthropic:AsyncAnthropicBedrockMantle")
    http = bridged_client(importlib.import_module("httpx2"))

    def make(key: str) -> Any:
        sdk = client(api_key=key, base_url=config.base_url, http_client=http, max_retries=0)
        return provider(anthropic_client=sdk)

    return make


def _google(config: AdapterConfig) -> Callable[[str], Any]:
    provider = part("pydantic_ai.providers.google:GoogleProvider")
    http = bridged_client(importlib.import_module("httpx2"))

    def make(key: str) -> Any:
        return provider(api_key=key, base_url=config.base_url, http_client=http)

    return make


def _openai(config: AdapterConfig) -> Callable[[str], Any]:
    provider = part("pydantic_ai.providers.openai:OpenAIProvider")
    client = part("openai:AsyncOpenAI")
    http = bridged_client(importlib.import_module("httpx2"))

    def make(key: str) -> Any:
        sdk = client(api_key=key, base_url=config.base_url, http_client=http, max_retries=0)
        return provider(openai_client=sdk)

    return make


def _mistral(config: AdapterConfig) -> Callable[[str], Any]:
    provider = part("pydantic_ai.providers.mistral:MistralProvider")
    http = bridged_client(importlib.import_module("httpx2"))

    def make(key: str) -> Any:
        return provider(api_key=key, base_url=config.base_url, http_client=http)

    return make


def _groq(config: AdapterConfig) -> Callable[[str], Any]:
    provider = part("pydantic_ai.providers.groq:GroqProvider")
    client = part("groq:AsyncGroq")
    http = bridged_client(importlib.import_module("httpx"))

    def make(key: str) -> Any:
        sdk = client(api_key=key, base_url=config.base_url, http_client=http, max_retries=0)
        return provider(groq_client=sdk)

    return make


def _converse(config: AdapterConfig, environ: Mapping[str, str]) -> Callable[[str], Any]:
    provider = part("pydantic_ai.providers.bedrock:BedrockProvider")
    client = new_client(part, config.base_url, config.region)
    without_key = signature_v4(part, config.region, environ)

    def make(key: str) -> Any:
        sign = without_key if key == _NO_KEY else bearer(key)
        return provider(bedrock_client=Scribe(client, sign))

    return make


_PROVIDERS: Final[Mapping[str, Callable[[AdapterConfig], Callable[[str], Any]]]] = MappingProxyType(
    {
        "anthropic": _anthropic,
        "bedrock": _bedrock,
        "google": _google,
        "openai-responses": _openai,
        "xai": _openai,
        "mistral": _mistral,
        "groq": _groq,
    }
)
