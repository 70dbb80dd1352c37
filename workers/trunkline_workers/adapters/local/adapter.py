"""llama.cpp in the worker process, spoken to over HTTP and SSE on loopback.

The engine is the `xllamacpp` wheel. Its own `Server` listens on a free port of 127.0.0.1, and the
chat-completions adapter speaks to it like to any other provider, so that the code real providers
use is exercised by a real server. Generation runs in threads of the engine, the loop stays free.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from trunkline_protocol.chunks import StreamChunk
from trunkline_protocol.failure import Code, LlmError
from trunkline_protocol.models import LlmModelInfo, LlmProviderInfo, LlmResolvedModelInfo
from trunkline_protocol.options import GenerateOptions
from trunkline_protocol.retry_policy import ResolvedRetryPolicy

from trunkline_workers.adapter import AdapterContext, LlmAdapter
from trunkline_workers.adapters.chat_completions.adapter import ChatCompletionsAdapter
from trunkline_workers.adapters.local.config import LocalConfig, read_local_config
from trunkline_workers.adapters.local.model_file import find_model

ROUTE: Final = "local"
SETUP_HINT: Final = "run `trunkline setup local`"


class LocalAdapter(LlmAdapter):
    """Serves one GGUF model on this machine."""

    def __init__(self, config: LocalConfig, context: AdapterContext) -> None:
        self._config = config
        self._context = context
        self._server: Any = None  # xllamacpp has no types
        self._chat: ChatCompletionsAdapter | None = None

    @classmethod
    def create(cls, context: AdapterContext) -> LocalAdapter:
        """Build the adapter from the worker's options."""
        return cls(read_local_config(context.options), context)

    @property
    def base_url(self) -> str:
        """URL of the engine's server, for diagnostics; empty while it is not open."""
        return "" if self._server is None else str(self._server.listening_address)

    def default_providers(self) -> Sequence[str]:
        """Name the one route."""
        return (ROUTE,)

    async def open(self) -> None:
        """Load the model and start the engine's server (about 0.6 s for the small model).

        Raises:
            LlmError: engine or model is missing or can't be loaded; the text says how to get them.
        """
        path = find_model(self._config.model_path)
        if path is None:
            wanted = self._config.model_path or "no model is installed"
            raise LlmError.of(f"local model not found: {wanted}; {SETUP_HINT}", Code.UNSUPPORTED)
        try:
            engine = importlib.import_module("xllamacpp")
        except ImportError as exc:
            text = f"the local engine is not installed (xllamacpp: {exc}); {SETUP_HINT}"
            raise LlmError.of(text, Code.UNSUPPORTED) from exc
        try:
            self._server = await asyncio.to_thread(self._start, engine, str(path))
        except Exception as exc:  # whatever the engine raises for a file it can't load
            text = f"the local model {path.name} could not be loaded: {exc}"
            raise LlmError.of(text, Code.UNSUPPORTED) from exc
        self._chat = ChatCompletionsAdapter(self._config.chat(f"{self.base_url}/v1"), self._context)
        await self._chat.open()

    def _start(self, engine: Any, path: str) -> Any:
        """Start the engine; blocks until the model is loaded."""
        config = self._config
        params = engine.CommonParams()
        params.model.path = path
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.n_parallel = config.slots
        params.n_ctx = config.context_window * config.slots
        params.n_predict = config.max_tokens
        params.verbosity = config.verbosity
        params.ui = False
        params.endpoint_slots = True
        params.cache_ram_mib = 0
        for threads in (params.cpuparams, params.cpuparams_batch):
            threads.n_threads = config.threads or _default_threads()
            threads.poll = 0  # its threads must not spin while the others wait for a core
        return engine.Server(params)

    async def close(self) -> None:
        """Stop the engine; streams that are still open are cut."""
        chat, self._chat = self._chat, None
        if chat is not None:
            await chat.close()
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(_drop, [server])
            del server

    def provider_info(self, provider: str) -> LlmProviderInfo:
        """Describe the route."""
        return LlmProviderInfo(id=provider, name="Local model")

    def provider_retry_policy(self, provider: str) -> ResolvedRetryPolicy | None:
        """Return the configured policy."""
        del provider
        return self._config.retry_policy

    async def list_models(self, provider: str) -> Sequence[LlmModelInfo]:
        """List the one model that is loaded."""
        path = find_model(self._config.model_path)
        if path is None:
            return ()
        return (
            LlmModelInfo(
                provider=provider, id=path.stem, name=path.stem, input_modalities=("text",)
            ),
        )

    async def resolve_model(self, provider: str, model: str) -> LlmResolvedModelInfo:
        """Resolve the model; any id means the loaded one."""
        return await self._opened().resolve_model(provider, model)

    def stream(self, options: GenerateOptions) -> AsyncIterator[list[StreamChunk]]:
        """Stream one model call."""
        return self._opened().stream(options)

    def _opened(self) -> ChatCompletionsAdapter:
        if self._chat is None:
            raise AssertionError("the adapter is used before open() or after close()")
        return self._chat


def _default_threads() -> int:
    """Return half of the cores.

    The engine's threads wait for one another after every step. Where other programs run too, one
    thread per core is the slowest choice: measured on two busy cores, 3 tokens/s with two threads
    and 35 with one.
    """
    return max(1, len(os.sched_getaffinity(0)) // 2)


def _drop(held: list[Any]) -> None:
    """Let go of the last reference to a server: its destructor stops the engine and blocks."""
    held.clear()
