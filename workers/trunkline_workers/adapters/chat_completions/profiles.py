"""What is known of each provider that speaks chat completions, as data.

A profile holds an endpoint, a key variable and three sets of rules: how a response is read, how a
request is written, what the models can do. Nothing here does anything; options of a worker replace
single values. Sources are the providers' API pages as of November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

Body = Mapping[str, object]
InlineThinking = Literal["off", "tags", "prefilled"]
ImageForm = Literal["none", "data-url", "file"]


@dataclass(frozen=True, slots=True)
class ResponseRules:
    """How a response is read.

    Attributes:
        lenient: read the shapes outside DeepSeek's documented API: all names of the reasoning
            field, content parts, refusals, `message` for `delta`, other words for a finish reason.
        repairs_tool_calls: blank arguments become `{}`, a missing id is made up, a new id and name
            under a used index is a new call, a response with calls ends in `tool-calls` even if the
            provider says `stop`, and arguments that are no JSON are never reported as a call that
            can be run.
        inline_thinking: whether `<think>` at the start of the content is reasoning; `prefilled`:
            the prompt template has already opened it.
    """

    lenient: bool = True
    repairs_tool_calls: bool = True
    inline_thinking: InlineThinking = "off"


@dataclass(frozen=True, slots=True)
class RequestRules:
    """How a request is written.

    Attributes:
        efforts: what each reasoning effort adds to the body, in preferred order; empty: none.
        thinking: what `thinking` on or off adds to the body when no effort is asked for.
        no_thinking: effort for purposes that want none, or `None` to ask for nothing.
        reasoning_field: key that carries an assistant message's reasoning back, or `None`.
        returns_details: send `reasoning_details` and tool calls' `extra_content` back.
        max_tokens_field: key of the output limit.
        max_stop: most stop texts, or `None` without a limit.
        images: form in which an image goes out.
        stream_usage: ask for usage by `stream_options`.
        system_role: role of the system prompt.
    """

    efforts: Mapping[str, Body] = field(default_factory=dict[str, Body])
    thinking: Mapping[str, Body] = field(default_factory=dict[str, Body])
    no_thinking: str | None = None
    reasoning_field: str | None = None
    returns_details: bool = False
    max_tokens_field: str = "max_tokens"
    max_stop: int | None = None
    images: ImageForm = "none"
    stream_usage: bool = True
    system_role: str = "system"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of one model before anybody asks the provider."""

    id: str
    name: str
    context_window: int | None = None
    max_tokens: int | None = None
    images: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """One provider.

    Attributes:
        route: provider key that is registered when the configuration names none.
        name: for people.
        base_url: of the API, without `/chat/completions`; empty: must be configured.
        key_env: variable that holds the key; empty: none is known.
        needs_key: refuse to call without a key.
        response: how responses are read.
        request: how requests are written.
        models: advertised when the provider's own list is not asked for.
        lists_models: the provider answers `GET /models`.
    """

    route: str
    name: str
    base_url: str = ""
    key_env: str = ""
    needs_key: bool = True
    response: ResponseRules = field(default_factory=ResponseRules)
    request: RequestRules = field(default_factory=RequestRules)
    models: tuple[ModelFacts, ...] = ()
    lists_models: bool = True


_ON: Final[Body] = {"thinking": {"type": "enabled"}}
_OFF: Final[Body] = {"thinking": {"type": "disabled"}}

_DEEPSEEK: Final = Profile(
    route="deepseek-official",
    name="DeepSeek",
    base_url="https://api.deepseek.com",
    key_env="DEEPSEEK_API_KEY",
    # Its stream is exactly what it documents; calls and reasons are passed on as they come.
    response=ResponseRules(lenient=False, repairs_tool_calls=False),
    request=RequestRules(
        efforts={
            "off": _OFF,
            "low": {**_ON, "reasoning_effort": "low"},
            "high": {**_ON, "reasoning_effort": "high"},
            "max": {**_ON, "reasoning_effort": "max"},
        },
        thinking={"enabled": _ON, "disabled": _OFF},
        no_thinking="off",
        reasoning_field="reasoning_content",
    ),
)


def _effort_field(*efforts: str) -> dict[str, Body]:
    """Return efforts that the body names directly."""
    return {effort: {"reasoning_effort": effort} for effort in efforts}


_OPENAI: Final = Profile(
    route="openai",
    name="OpenAI",
    base_url="https://api.openai.com/v1",
    key_env="OPENAI_API_KEY",
    request=RequestRules(
        efforts=_effort_field("none", "minimal", "low", "medium", "high", "xhigh"),
        max_tokens_field="max_completion_tokens",
        max_stop=4,
        images="data-url",
    ),
)

_OPENROUTER: Final = Profile(
    route="openrouter",
    name="OpenRouter",
    base_url="https://openrouter.ai/api/v1",
    key_env="OPENROUTER_API_KEY",
    request=RequestRules(
        efforts={
            "none": {"reasoning": {"enabled": False}},
            **{
                effort: {"reasoning": {"effort": effort}}
                for effort in ("minimal", "low", "medium", "high", "xhigh")
            },
        },
        no_thinking=None,
        reasoning_field="reasoning",
        returns_details=True,
        images="data-url",
    ),
)

_TEMPLATE_EFFORTS: Final[Mapping[str, Body]] = {
    "off": {"chat_template_kwargs": {"enable_thinking": False}},
    "on": {"chat_template_kwargs": {"enable_thinking": True}},
}

_SELF_HOSTED: Final = RequestRules(efforts=_TEMPLATE_EFFORTS, images="data-url")

_VLLM: Final = Profile(
    route="vllm",
    name="vLLM",
    base_url="http://127.0.0.1:8000/v1",
    key_env="VLLM_API_KEY",
    needs_key=False,
    request=_SELF_HOSTED,
)

_SGLANG: Final = Profile(
    route="sglang",
    name="SGLang",
    base_url="http://127.0.0.1:30000/v1",
    key_env="SGLANG_API_KEY",
    needs_key=False,
    request=_SELF_HOSTED,
)

_LLAMA_CPP: Final = Profile(
    route="llama.cpp",
    name="llama.cpp",
    base_url="http://127.0.0.1:8080/v1",
    key_env="LLAMA_API_KEY",
    needs_key=False,
    request=_SELF_HOSTED,
)

_OLLAMA: Final = Profile(
    route="ollama",
    name="Ollama",
    base_url="http://127.0.0.1:11434/v1",
    key_env="OLLAMA_API_KEY",
    needs_key=False,
    request=RequestRules(efforts=_effort_field("none", "low", "medium", "high"), images="data-url"),
)

_CUSTOM: Final = Profile(
    route="custom",
    name="Custom endpoint",
    needs_key=False,
    request=RequestRules(images="data-url"),
)

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {
        "deepseek": _DEEPSEEK,
        "openai": _OPENAI,
        "openrouter": _OPENROUTER,
        "vllm": _VLLM,
        "sglang": _SGLANG,
        "llama.cpp": _LLAMA_CPP,
        "ollama": _OLLAMA,
        "custom": _CUSTOM,
    }
)
