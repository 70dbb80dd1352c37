"""The pydantic_ai adapter in its own interpreter, through the broker, four providers at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack

import pytest
import trunkline
from trunkline_protocol.attribution import user_agent

from tests.support.broker import running_broker
from tests.support.library import REASON, library_python
from tests.support.raw_http import Answer, RawServer
from tests.support.recorded import ANTHROPIC, CONVERSE, GEMINI, RESPONSES, SIGNATURE, Recording
from tests.support.timing import SLOW

pytestmark = pytest.mark.integration
FOUR = (ANTHROPIC, CONVERSE, GEMINI, RESPONSES)
START_S = 60.0  # the library takes seconds to import, more on a busy machine

SECTION = """\
[worker.{profile}]
adapter = "pydantic_ai"
python = "{python}"
env = ["LIBRARY_KEY"]
start_timeout_s = {start_s}
options = {{ profile = "{profile}", baseUrl = "{url}", apiKeyEnv = "LIBRARY_KEY" }}
"""


def _config(python: str, servers: dict[str, RawServer]) -> str:
    sections = [
        SECTION.format(
            profile=each.profile,
            python=python,
            url=servers[each.profile].url + each.path,
            start_s=START_S * SLOW,
        )
        for each in FOUR
    ]
    return "\n".join(sections)


async def _turn(
    llm: trunkline.LlmRuntime, recording: Recording, *messages: trunkline.Message
) -> trunkline.Message:
    """Play one turn; return the assistant's message as a conversation keeps it."""
    assembler = trunkline.BlockAssembler()
    provider, model = recording.profile, recording.model
    async for chunk in llm.stream(provider=provider, model=model, messages=list(messages)):
        assembler.push(chunk)
    assert assembler.finish.kind == "stop", assembler.finish
    source = {"kind": "model", "provider": provider, "model": model}
    assert assembler.replay_state is not None
    return trunkline.Message.from_dict(
        {
            "id": "a",
            "role": "assistant",
            "content": [block.to_dict() for block in assembler.blocks()],
            "source": {**source, "replayState": assembler.replay_state.to_dict()},
        }
    )


def _says(text: str) -> trunkline.Message:
    content = [{"type": "text", "text": text}]
    return trunkline.Message.from_dict(
        {"id": "u", "role": "user", "content": content, "source": {"kind": "user"}}
    )


async def test_four_providers_through_the_broker() -> None:
    """Blocks, usage, attribution, signatures going back, a cancel that reaches the provider.

    And a page of some proxy instead of a stream, whose failure arrives as what it is.
    """
    python = library_python()
    if python is None:
        pytest.skip(REASON)
    async with AsyncExitStack() as stack:
        servers = {
            each.profile: await stack.enter_async_context(RawServer(Answer(_signed(each))))
            for each in FOUR
        }
        broker = stack.enter_context(
            running_broker(
                _config(python, servers),
                # The SDKs warn of models that will be withdrawn; a warning is no error there.
                {"LIBRARY_KEY": "not-a-real-key", "PYTHONWARNINGS": ""},
            )
        )
        for each in FOUR:
            await asyncio.to_thread(broker.until_ready, each.profile, START_S * SLOW)
        llm = await stack.enter_async_context(trunkline.connect(broker.endpoint))
        for each in FOUR:
            server = servers[each.profile]
            first = await _turn(llm, each, _says("Hello."))
            assert [block.type for block in first.content] == ["reasoning", "text"]
            await _turn(llm, each, _says("Hello."), first, _says("Again."))
            assert server.exchanges[0].headers["user-agent"] == user_agent()
            assert SIGNATURE.encode() in server.exchanges[1].body
            await _cancel_reaches(llm, each, server)
            await _a_page_is_malformed(llm, each, server)


async def _a_page_is_malformed(
    llm: trunkline.LlmRuntime, recording: Recording, server: RawServer
) -> None:
    server.serve(Answer((b"<html>Sign in</html>",)))
    provider, model = recording.profile, recording.model
    result = await llm.generate(provider=provider, model=model, messages="Hello.")
    assert result.failure is not None
    assert (result.failure.code, result.attempts) == ("MALFORMED_RESPONSE", 1)
    assert "Sign in" in result.failure.message


async def _cancel_reaches(
    llm: trunkline.LlmRuntime, recording: Recording, server: RawServer
) -> None:
    number = server.serve(Answer(recording.text[: recording.begun], end="open"))
    stream = llm.stream(provider=recording.profile, model=recording.model, messages="Hello.")
    async with stream:
        await anext(aiter(stream))
    exchange = await server.exchange(number)
    await asyncio.wait_for(exchange.closed.wait(), 1.0 * SLOW)


def _signed(recording: Recording) -> list[bytes]:
    """Return an answer whose text is signed, which Gemini does on a later part."""
    if recording is not GEMINI:
        return list(recording.text)
    return [
        each.replace(b'"there."', f'"there.", "thoughtSignature": "{SIGNATURE}"'.encode())
        for each in recording.text
    ]


def test_no_other_process_imports_the_library() -> None:
    """Neither the worker package nor an agent pulls it in."""
    code = (
        "import sys, trunkline, trunkline_workers.host, trunkline_workers.loader;"
        " print([name for name in sys.modules if name.startswith('pydantic_ai')])"
    )
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
