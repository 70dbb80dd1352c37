"""The user's view of the client: type-checked strictly, never run.

A change that breaks this file breaks programs of users.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, assert_never, assert_type

import trunkline
from trunkline import (
    BlockEnd,
    BlockStart,
    Code,
    ContentBlock,
    Finish,
    FinishReason,
    GenerateOptions,
    GenerateResult,
    LlmCallConfig,
    LlmError,
    LlmFailure,
    LlmModelInfo,
    LlmProviderInfo,
    LlmResolvedModelInfo,
    LlmRuntime,
    Message,
    ReasoningDelta,
    ResolvedRetryPolicy,
    RetryEvent,
    ServedBy,
    Stream,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    Usage,
    UserMessageSource,
    create_user_message,
)
from trunkline_protocol.content import TextBlock


def shown(chunk: StreamChunk) -> str:
    """The union is closed: every kind is handled, and the checker knows."""
    match chunk:
        case TextDelta() | ReasoningDelta():
            return assert_type(chunk.text, str)
        case ToolCallDelta():
            return chunk.name or chunk.arguments_delta
        case BlockStart():
            return chunk.block_type
        case BlockEnd():
            assert_type(chunk.block, Mapping[str, object] | None)
            return ""
        case Usage():
            return str(assert_type(chunk.usage, TokenUsage).output_tokens)
        case Finish():
            return assert_type(chunk.reason, FinishReason).kind
        case _:
            assert_never(chunk)


def on_retry(event: RetryEvent) -> None:
    """An observer."""
    print(event.type, event.retry.delay_ms, event.retry.failure.code)  # noqa: T201  a user's program


async def streaming(llm: LlmRuntime, options: GenerateOptions) -> None:
    """Every way to read a stream."""
    async for chunk in llm.stream(options):
        assert_type(chunk, StreamChunk)
    async with llm.stream(provider="p", model="m", messages="hi", max_tokens=5) as stream:
        assert_type(stream, Stream)
        async for chunk in stream:
            shown(chunk)
        async for chunks in stream.batches():
            assert_type(chunks, list[StreamChunk])
    assert_type(stream.finish, FinishReason | None)
    assert_type(stream.usage, TokenUsage | None)
    assert_type(stream.served_by, ServedBy | None)
    assert_type(stream.retry_policy, ResolvedRetryPolicy | None)
    assert_type(stream.message(), Message)
    assert_type(stream.attempts, int)
    stream.cancel()
    async with llm.stream_blocks(options, recovery="policy", on_retry=on_retry) as blocks:
        async for block in blocks:
            assert_type(block, ContentBlock)
            assert_type(block.type, str)


async def generating(llm: LlmRuntime) -> str:
    """One call, assembled; failing is data unless asked otherwise."""
    messages = [create_user_message([TextBlock(text="hi")], UserMessageSource())]
    result = await llm.generate({"provider": "p", "model": "m", "messages": messages})
    assert_type(result, GenerateResult)
    whole = GenerateOptions(provider="p", model="m", messages=tuple(messages))
    assert_type(await llm.generate(whole, recovery="none"), GenerateResult)
    failure = assert_type(result.failure, LlmFailure | None)
    if failure is not None and failure.code == Code.RATE_LIMIT:
        return failure.message
    try:
        return result.raise_for_failure().text
    except LlmError as exc:
        return exc.code


async def asking(llm: LlmRuntime) -> None:
    """Every query."""
    assert_type(await llm.list_providers(), list[LlmProviderInfo])
    assert_type(await llm.models(), list[str])
    assert_type(await llm.list_models("p"), list[LlmModelInfo])
    assert_type(await llm.resolve_model_info("p", "m"), LlmResolvedModelInfo)
    config = LlmCallConfig(provider="p", model="m")
    assert_type(await llm.resolve_call_config(config), LlmCallConfig)
    assert_type(await llm.provider_retry_policy("p"), ResolvedRetryPolicy)
    assert_type(await llm.status(), dict[str, Any])
    assert_type(llm.queues(), tuple[trunkline.QueueStatistics, ...])
    assert_type(await llm.list_configurable_providers(), list[trunkline.LlmConfigurableProvider])
    assert_type(await llm.list_model_discovery_namespaces(timeout_s=3), list[str])
    found = await llm.discover_models("ns", {"baseURL": "https://gateway.example"})
    assert_type(found, list[trunkline.LlmDiscoveredModel])


async def preparing(llm: LlmRuntime, options: GenerateOptions) -> None:
    """Resolve first, dispatch later."""
    async with await llm.prepare_call({"provider": "p", "model": "m"}) as prepared:
        assert_type(prepared.config, LlmCallConfig)
        assert_type(prepared.retry_policy, ResolvedRetryPolicy)
        assert_type(prepared.context, trunkline.LlmModelContext | None)
        assert_type(prepared.input_modalities, tuple[str, ...] | None)
        assert_type(prepared.stream(options), Stream)


async def listening(llm: LlmRuntime) -> None:
    """Listeners and events."""

    async def through(
        options: GenerateOptions, next_: trunkline.NextStream
    ) -> AsyncIterator[StreamChunk]:
        print(options.model)  # noqa: T201  a user's program
        async for chunk in next_():
            yield assert_type(chunk, StreamChunk)

    async def around(options: GenerateOptions, next_: trunkline.NextResult) -> GenerateResult:
        return await next_(options.model_copy(update={"provider": "other"}))

    assert_type(llm.use("llm/stream", through), Callable[[], None])
    llm.use("llm/generate", around)
    llm.on_adapters_updated(lambda: None)
    async with llm.adapters_updated() as updates:
        async for update in updates:
            assert_type(update, None)


def blocking(options: GenerateOptions) -> None:
    """The same without a loop."""
    with trunkline.connect_sync(name="agent") as llm:
        assert_type(llm, trunkline.SyncRuntime)
        for chunk in llm.stream(options):
            assert_type(chunk, StreamChunk)
        with llm.stream(options) as stream:
            assert_type(stream, trunkline.SyncStream)
        assert_type(llm.generate(options), GenerateResult)
        assert_type(llm.models(), list[str])
        for block in llm.stream_blocks(options):
            assert_type(block, ContentBlock)


async def main() -> None:
    """The shape of a program."""
    try:
        async with trunkline.connect(name="agent", timeout_s=1.0) as llm:
            assert_type(llm, LlmRuntime)
            await generating(llm)
    except trunkline.BrokerUnreachableError as exc:
        print(exc.endpoint)  # noqa: T201  a user's program
