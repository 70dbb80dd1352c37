"""The pydantic_ai adapter on a server of the tests: opened, asked, read to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.failure import LlmError, LlmFailure
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.adapter import AdapterContext

from tests.support.raw_http import RawServer
from tests.support.recorded import Recording

if TYPE_CHECKING:
    from trunkline_workers.adapters.pydantic_ai.adapter import PydanticAiAdapter

KEY = "sk-canary-0123456789"


@asynccontextmanager
async def adapter(
    recording: Recording, server: RawServer, said: list[str] | None = None, **options: Any
) -> AsyncIterator[PydanticAiAdapter]:
    """Open an adapter; what it reports goes into `said`."""
    from trunkline_workers.adapters.pydantic_ai.adapter import PydanticAiAdapter

    given = {
        "profile": recording.profile,
        "baseUrl": server.url + recording.path,
        "apiKeyEnv": "KEY",
        "firstByteTimeoutMs": 1500,
        "streamIdleTimeoutMs": 800,
        "finishGraceMs": 200,
        "trustEnv": False,
        **options,
    }
    report = ([] if said is None else said).append
    context = AdapterContext("t", options=given, environ={"KEY": KEY}, report=report)
    made = PydanticAiAdapter.create(context)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def asks(recording: Recording, *messages: Mapping[str, Any], **fields: Any) -> GenerateOptions:
    """Return a request for the recording's model."""
    return GenerateOptions.from_dict(
        {
            "provider": recording.profile,
            "model": fields.pop("model", recording.model),
            "messages": list(messages) or [user("Hello.")],
            **fields,
        }
    )


def user(text: str) -> dict[str, Any]:
    """Return a message of the application's side."""
    content = [{"type": "text", "text": text}]
    return {"id": "u", "role": "user", "content": content, "source": {"kind": "user"}}


def answered(recording: Recording, assembler: BlockAssembler, **changes: Any) -> dict[str, Any]:
    """Return the assistant message of an answer, as a conversation keeps it."""
    state = assembler.replay_state
    source = {"kind": "model", "provider": recording.profile, "model": recording.model}
    if state is not None:
        source["replayState"] = state.to_dict()  # type: ignore[assignment]
    content = [block.to_dict() for block in assembler.blocks()]
    message = {"id": "a", "role": "assistant", "content": content, "source": source}
    return {**message, **changes}


async def read(
    made: PydanticAiAdapter, options: GenerateOptions
) -> tuple[BlockAssembler, LlmFailure | None]:
    """Read one stream to its end; return what came of it."""
    assembler = BlockAssembler()
    try:
        async for chunks in made.stream(options):
            for chunk in chunks:
                assembler.push(chunk)
    except LlmError as exc:
        return assembler, exc.failure
    return assembler, assembler.finish.failure


def blocks(assembler: BlockAssembler) -> list[dict[str, object]]:
    """Return the blocks as maps."""
    return [block.to_dict() for block in assembler.blocks()]
