"""What is known of each provider reached through the library, as data; it imports nothing of it.

Sources are the providers' API pages and pydantic-ai 2.68, November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Profile:
    """One provider.

    Attributes:
        route: provider key that is registered when the configuration names none.
        name: for people.
        model: `module:class` of the library's model.
        key_env: variable that holds the key.
        base_url: of the API; `{region}` in it is the region of AWS.
        catalog: prefix of the provider's models in the library's list of known ones.
        catalog_part: that a name in this list has if this API serves it.
        settings: of the library, for every request.
        thinking_settings: of the library, for models that think.
        unasked_settings: of the library, for models that think and calls that name no effort.
        interleaves: deltas of a tool call may come after the next call has begun.
        signatures_are_base64: the library decodes a thought signature before it sends it.
        needs_key: a call without a key is refused; else there may be other credentials.
        extra: pip extra of `pydantic-ai-slim`.
    """

    route: str
    name: str
    model: str
    key_env: str
    base_url: str
    catalog: str
    catalog_part: str = ""
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    thinking_settings: Mapping[str, object] = field(default_factory=dict[str, object])
    unasked_settings: Mapping[str, object] = field(default_factory=dict[str, object])
    interleaves: bool = False
    signatures_are_base64: bool = False
    needs_key: bool = True
    extra: str = ""


_RESPONSES: Final = "pydantic_ai.models.openai:OpenAIResponsesModel"
# Nothing is kept at the provider; encrypted reasoning travels with the conversation instead.
_STATELESS: Final = MappingProxyType({"openai_store": False})

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {
        "anthropic": Profile(
            route="anthropic",
            name="Anthropic",
            model="pydantic_ai.models.anthropic:AnthropicModel",
            key_env="ANTHROPIC_API_KEY",
            base_url="https://api.anthropic.com",
            catalog="anthropic",
            extra="anthropic",
        ),
        "google": Profile(
            route="google",
            name="Google Gemini",
            model="pydantic_ai.models.google:GoogleModel",
            key_env="GEMINI_API_KEY",
            base_url="https://generativelanguage.googleapis.com",
            catalog="google",
            unasked_settings=MappingProxyType(
                {"google_thinking_config": {"include_thoughts": True}}
            ),
            signatures_are_base64=True,
            extra="google",
        ),
        "openai-responses": Profile(
            route="openai-responses",
            name="OpenAI Responses",
            model=_RESPONSES,
            key_env="OPENAI_API_KEY",
            base_url="https://api.openai.com/v1",
            catalog="openai",
            settings=_STATELESS,
            thinking_settings=MappingProxyType({"openai_reasoning_summary": "auto"}),
            extra="openai",
        ),
        # The library's own model of xAI speaks gRPC, where neither the attribution nor the closing
        # of a connection is in our hands; the provider serves the Responses API too.
        "xai": Profile(
            route="xai",
            name="xAI",
            model=_RESPONSES,
            key_env="XAI_API_KEY",
            base_url="https://api.x.ai/v1",
            catalog="xai",
            settings=_STATELESS,
            extra="openai",
        ),
        "mistral": Profile(
            route="mistral",
            name="Mistral",
            model="pydantic_ai.models.mistral:MistralModel",
            key_env="MISTRAL_API_KEY",
            base_url="https://api.mistral.ai",
            catalog="mistral",
            interleaves=True,
            extra="mistral",
        ),
        "groq": Profile(
            route="groq",
            name="Groq",
            model="pydantic_ai.models.groq:GroqModel",
            key_env="GROQ_API_KEY",
            base_url="https://api.groq.com",
            catalog="groq",
            thinking_settings=MappingProxyType({"groq_reasoning_format": "parsed"}),
            interleaves=True,
            extra="groq",
        ),
        # Claude models, by the Messages API with a bearer key.
        "bedrock": Profile(
            route="bedrock",
            name="Amazon Bedrock",
            model="pydantic_ai.models.anthropic:AnthropicModel",
            key_env="AWS_BEARER_TOKEN_BEDROCK",
            base_url="https://bedrock-mantle.{region}.api.aws/anthropic",
            catalog="bedrock",
            catalog_part="anthropic.",
            extra="anthropic",
        ),
        # All its models, with a bearer key or any credentials of AWS.
        "bedrock-converse": Profile(
            route="bedrock-converse",
            name="Amazon Bedrock (Converse)",
            model="pydantic_ai.models.bedrock:BedrockConverseModel",
            key_env="AWS_BEARER_TOKEN_BEDROCK",
            base_url="https://bedrock-runtime.{region}.amazonaws.com",
            catalog="bedrock",
            needs_key=False,
            extra="bedrock",
        ),
    }
)
