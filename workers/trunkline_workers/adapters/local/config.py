"""The options of the local adapter; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from trunkline_protocol.retry_policy import ResolvedRetryPolicy, resolve_retry_policy

from trunkline_workers.adapters.chat_completions.config import ChatConfig, read_config
from trunkline_workers.http import ClientOptions
from trunkline_workers.options_reader import OptionsReader

# SmolLM2's own window is 8,192; half of it keeps four conversations small in memory.
DEFAULT_CONTEXT: Final = 4096
DEFAULT_SLOTS: Final = 4
# A small model may repeat itself for ever; calls that set no limit get this one.
DEFAULT_MAX_TOKENS: Final = 512
_ERRORS_ONLY: Final = 1  # of the engine's log, which goes to the worker's output file


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """What the local adapter is configured with.

    Attributes:
        model_path: GGUF file of the user; `None`: the installed small model.
        context_window: tokens of one conversation, request and response.
        slots: conversations generated at the same time; more wait.
        max_tokens: output limit of calls that set none.
        threads: of the engine; `None`: half of the cores.
        verbosity: of the engine's log, 0 to 5.
        idle_s: silence of the engine that counts as a stall.
        retry_policy: captured with the route.
    """

    model_path: str | None = None
    context_window: int = DEFAULT_CONTEXT
    slots: int = DEFAULT_SLOTS
    max_tokens: int = DEFAULT_MAX_TOKENS
    threads: int | None = None
    verbosity: int = _ERRORS_ONLY
    idle_s: float = 300.0
    retry_policy: ResolvedRetryPolicy | None = None

    def chat(self, base_url: str) -> ChatConfig:
        """Return the configuration of the adapter that speaks to the engine's server."""
        config = read_config(
            {
                "profile": "llama.cpp",
                "baseUrl": base_url,
                "images": "none",
                "contextWindow": self.context_window,
                "defaultMaxTokens": self.max_tokens,
                "streamIdleTimeoutMs": self.idle_s * 1000,
                "listModels": False,
                "apiKeyEnv": "TRUNKLINE_LOCAL_HAS_NO_KEY",
            }
        )
        request = replace(config.profile.request, efforts={})  # the small model has none
        return replace(
            config,
            profile=replace(config.profile, request=request),
            # Loopback: a proxy of the environment must not come between. The engine's server
            # closes after every stream, whatever its headers say, so a connection kept for the
            # next call may be gone when that comes.
            client=ClientOptions(max_connections=1024, trust_env=False, keep_alive=False),
        )


def read_local_config(options: Mapping[str, object]) -> LocalConfig:
    """Read the options table.

    Raises:
        ValueError: an option is unknown or wrong; the text names it.
    """
    reader = OptionsReader(options)
    raw_path = reader.text("modelPath")
    other_path = reader.text("model_path")
    policy: ResolvedRetryPolicy | None = None
    if reader.raw("retryPolicy") is not None:
        policy = resolve_retry_policy(reader.table("retryPolicy"), "retryPolicy")
    config = LocalConfig(
        model_path=raw_path or other_path,
        context_window=reader.count("contextWindow", DEFAULT_CONTEXT) or DEFAULT_CONTEXT,
        slots=reader.count("slots", DEFAULT_SLOTS) or DEFAULT_SLOTS,
        max_tokens=reader.count("defaultMaxTokens", DEFAULT_MAX_TOKENS) or DEFAULT_MAX_TOKENS,
        threads=reader.count("threads"),
        verbosity=reader.count("verbosity", _ERRORS_ONLY) or _ERRORS_ONLY,
        idle_s=reader.seconds("streamIdleTimeoutMs", 300.0) or 300.0,
        retry_policy=policy,
    )
    reader.finish()
    return config
