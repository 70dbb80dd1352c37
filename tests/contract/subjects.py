"""The adapters of this repository as subjects of the contract."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from trunkline_protocol.options import GenerateOptions
from trunkline_workers.adapter import AdapterContext, LlmAdapter
from trunkline_workers.adapters.chat_completions.adapter import ChatCompletionsAdapter
from trunkline_workers.adapters.local.adapter import LocalAdapter
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter
from trunkline_workers.testing import (
    EMPTY,
    FAILURE,
    REPLAY,
    STALL,
    TEXT,
    TOOLS,
    UNSUPPORTED,
    FakeProvider,
    HttpSubject,
    Reply,
    Subject,
    scenario_requests,
)

from tests.support.recorded import ARGUMENTS, GROQ, OPENROUTER_TOOLS, Recording

UNKNOWN_OPTION = {"logitBias": {"50256": -100}}  # no adapter has a field for it
IDLE_S = 0.5
FAST: Mapping[str, object] = {
    "apiKeyEnv": "KEY",
    "firstByteTimeoutMs": IDLE_S * 1000,
    "streamIdleTimeoutMs": IDLE_S * 1000,
}
ENVIRON = {"KEY": "not-a-real-key"}


@asynccontextmanager
async def opened(adapter: LlmAdapter) -> AsyncGenerator[None]:
    """Open an adapter, and close it afterwards."""
    await adapter.open()
    try:
        yield
    finally:
        await adapter.close()


@asynccontextmanager
async def scripted() -> AsyncGenerator[Subject]:
    """The fake provider that ships: it has no wire, so nothing of the wire is shown."""
    call = {"id": "c", "name": "weather", "arguments": ARGUMENTS}
    scripts: dict[str, dict[str, Any]] = {
        TEXT: {"reasoning_chunks": 2},
        TOOLS: {"chunks": 1, "tool_calls": [call], "chunk_chars": 4},
        STALL: {"steps": [{"stall": True}]},
        FAILURE: {"steps": [{"raise": {"code": "SERVER"}}]},
        UNSUPPORTED: {"steps": [{"raise": {"code": "UNSUPPORTED"}}]},
        EMPTY: {"steps": [{"raise": {"code": "EMPTY_RESPONSE"}}]},
        REPLAY: {},
    }
    requests = {name: _asks(json.dumps({"script": it})) for name, it in scripts.items()}
    adapter = ScriptedAdapter()
    async with opened(adapter):
        yield Subject(adapter, requests, tool_arguments=ARGUMENTS)


@asynccontextmanager
async def chat_completions() -> AsyncGenerator[Subject]:
    """The adapter of chat completions, by the profile that takes replay state back."""
    replies = {**GROQ.replies(), TOOLS: Reply(OPENROUTER_TOOLS)}
    async with FakeProvider(replies) as provider:
        options = {**FAST, "profile": "openrouter", "baseUrl": f"{provider.url}/v1"}
        adapter = ChatCompletionsAdapter.create(
            AdapterContext("chat", options=options, environ=ENVIRON)
        )
        requests = scenario_requests("openrouter", "some/model", unsupported=UNKNOWN_OPTION)
        async with opened(adapter):
            yield HttpSubject(
                adapter, provider, requests, tool_arguments=ARGUMENTS, idle_limit_s=IDLE_S
            )


class LocalSubject(Subject):
    """The local model; its requests can be counted but not seen."""

    def open_requests(self) -> int | None:
        chat: Any = getattr(self.adapter, "_chat", None)
        return chat.connections_in_use


@asynccontextmanager
async def local() -> AsyncGenerator[Subject]:
    """The local model: it never stalls, so a long answer stands for a stall."""
    adapter = LocalAdapter.create(AdapterContext("local"))
    requests = {
        TEXT: _asks("Say hello.", maxTokens=12),
        STALL: _asks("Count from one to a thousand, one number per line.", maxTokens=900),
        FAILURE: _asks("word " * 20_000),
        UNSUPPORTED: _asks("Say hello.", **UNKNOWN_OPTION),
    }
    async with opened(adapter):
        yield LocalSubject(adapter, requests)


@asynccontextmanager
async def pydantic_ai(recording: Recording) -> AsyncGenerator[Subject]:
    """The adapter of the library, speaking one provider's API."""
    from trunkline_workers.adapters.pydantic_ai.adapter import PydanticAiAdapter

    async with FakeProvider(recording.replies()) as provider:
        options = {**FAST, "profile": recording.profile, "baseUrl": provider.url + recording.path}
        adapter = PydanticAiAdapter.create(
            AdapterContext("library", options=options, environ=ENVIRON)
        )
        requests = scenario_requests(recording.profile, recording.model, unsupported=UNKNOWN_OPTION)
        async with opened(adapter):
            yield HttpSubject(
                adapter,
                provider,
                requests,
                tool_arguments=recording.arguments,
                idle_limit_s=IDLE_S,
            )


def _asks(text: str, **fields: Any) -> GenerateOptions:
    content = [{"type": "text", "text": text}]
    message = {"id": "u", "role": "user", "content": content, "source": {"kind": "user"}}
    return GenerateOptions.from_dict(
        {"provider": "p", "model": "m", "messages": [message], **fields}
    )
