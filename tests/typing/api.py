"""What an agent's author writes, as the type checker of that author sees it; it is never run."""

from __future__ import annotations

from typing import assert_type

import trunkline


async def stream_chunks(llm: trunkline.LlmRuntime) -> str:
    """Every chunk has a type that can be told apart."""
    text = ""
    async with llm.stream(provider="local", model="m", messages="hello") as stream:
        async for chunk in stream:
            assert_type(chunk, trunkline.StreamChunk)
            match chunk:
                case trunkline.TextDelta():
                    text += assert_type(chunk.text, str)
                case trunkline.Finish():
                    assert_type(chunk.reason, trunkline.FinishReason)
                    assert_type(chunk.reason.failure, trunkline.LlmFailure | None)
                case trunkline.Usage():
                    assert_type(chunk.usage, trunkline.TokenUsage)
                case trunkline.BlockStart() | trunkline.BlockEnd():
                    pass
                case trunkline.ReasoningDelta() | trunkline.ToolCallDelta():
                    pass
        assert_type(stream.finish, trunkline.FinishReason | None)
        assert_type(stream.usage, trunkline.TokenUsage | None)
        assert_type(stream.message(), trunkline.Message)
    return text


async def generate(llm: trunkline.LlmRuntime, message: trunkline.Message) -> str:
    """A result is assembled, and its failure is data or an error, as one likes."""
    options = trunkline.GenerateOptions(provider="local", model="m", messages=(message,))
    result = await llm.generate(options)
    assert_type(result, trunkline.GenerateResult)
    assert_type(result.failure, trunkline.LlmFailure | None)
    try:
        return assert_type(result.raise_for_failure().text, str)
    except trunkline.LlmError as exc:
        assert_type(exc.failure, trunkline.LlmFailure)
        return exc.failure.code


async def stream_blocks(llm: trunkline.LlmRuntime) -> None:
    """Blocks come whole."""
    async for block in llm.stream_blocks(provider="local", model="m", messages="hello"):
        assert_type(block, trunkline.ContentBlock)
        assert_type(block.type, str)


async def look_around() -> None:
    """Catalogs are lists of values."""
    async with trunkline.connect(name="typed") as llm:
        assert_type(llm, trunkline.LlmRuntime)
        providers = assert_type(await llm.list_providers(), list[trunkline.LlmProviderInfo])
        assert_type(await llm.list_models(providers[0].id), list[trunkline.LlmModelInfo])
        info = await llm.resolve_model_info(providers[0].id, "m")
        assert_type(info, trunkline.LlmResolvedModelInfo)
