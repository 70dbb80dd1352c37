"""Playing a script: chunks of the described response, with its steps at their places."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    FinishReason,
    ReasoningDelta,
    ReplayEnvelope,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    Usage,
)
from trunkline_protocol.failure import LlmError, LlmFailure

from trunkline_workers.adapters.scripted.content import piece
from trunkline_workers.adapters.scripted.script import EXCEPTIONS, Script, Step, Steps

Item = Any  # a chunk, a list of chunks, or what a `garbage` step says


class _EndOfStream(Exception):  # noqa: N818  it is no error: the script says `end`
    """Ends the stream without a finish."""


async def play(script: Script) -> AsyncIterator[Item]:
    """Yield what the script says, in its order and at its pace.

    Raises:
        BaseException: whatever a `raise` step names.
    """
    try:
        if script.steps is not None:
            async for item in _perform_all(script.steps):
                yield item
            return
        async for item in _play_response(script):
            yield item
        async for item in _perform_all(script.after):
            yield item
    except _EndOfStream:
        return


async def _play_response(script: Script) -> AsyncIterator[Item]:
    """Yield the described response; steps at a number come before the chunk of that number."""
    await _sleep(script.first_delay_ms)
    number = 0
    for batch in _batches(script):
        if script.pace_ms and number:
            await _sleep(script.pace_ms)
        if not script.at:
            number += len(batch)
            yield batch if script.batch > 1 else batch[0]
            continue
        for chunk in batch:
            async for item in _perform_all(script.at.get(number, ())):
                yield item
            number += 1
            yield chunk


def _batches(script: Script) -> Iterator[list[StreamChunk]]:
    """Gather the chunks of the response into lists of `batch`."""
    if script.is_constant and script.text is None and not script.reasoning_chunks:
        yield from _constant_batches(script)
        return
    batch: list[StreamChunk] = []
    for chunk in _chunks(script):
        batch.append(chunk)
        if len(batch) >= script.batch:
            yield batch
            batch = []
    if batch:
        yield batch


def _constant_batches(script: Script) -> Iterator[list[StreamChunk]]:
    """Hand out one delta again and again: what remains is the cost of everything else."""
    yield [BlockStart(0, "text")]
    delta = TextDelta(0, piece(0, script.chunk_chars, script.seed))
    full: list[StreamChunk] = [delta] * script.batch
    for _ in range(script.chunks // script.batch):
        yield full
    if rest := script.chunks % script.batch:
        yield full[:rest]
    yield [BlockEnd(0, {"type": "text", "text": script.whole_text})]
    yield from ([chunk] for chunk in _closing(script))


def _chunks(script: Script) -> Iterator[StreamChunk]:
    index = 0
    if script.reasoning_chunks:
        yield BlockStart(index, "reasoning")
        thought: list[str] = []
        for number in range(script.reasoning_chunks):
            thought.append(piece(number, script.chunk_chars, script.seed + 1))
            yield ReasoningDelta(index, thought[-1])
        yield BlockEnd(index, {"type": "reasoning", "text": "".join(thought)})
        index += 1
    if script.text != "" and (script.chunks or script.text is not None):
        yield BlockStart(index, "text")
        for part in _text_pieces(script):
            yield TextDelta(index, part)
        yield BlockEnd(index, {"type": "text", "text": script.whole_text})
        index += 1
    for call in script.tool_calls:
        yield from _tool_call(index, call, script.chunk_chars)
        index += 1
    yield from _closing(script)


def _text_pieces(script: Script) -> Iterator[str]:
    chars = script.chunk_chars
    if script.text is not None:
        for start in range(0, len(script.text), chars):
            yield script.text[start : start + chars]
        return
    for number in range(script.chunks):
        yield piece(0 if script.is_constant else number, chars, script.seed)


def _tool_call(index: int, call: Mapping[str, str], chars: int) -> Iterator[StreamChunk]:
    arguments = call["arguments"]
    yield BlockStart(index, "tool-call")
    yield ToolCallDelta(index, call["id"], arguments[:chars], call["name"])
    for start in range(chars, len(arguments), chars):
        yield ToolCallDelta(index, call["id"], arguments[start : start + chars])
    yield BlockEnd(index, {"type": "tool-call", **call})


def _closing(script: Script) -> Iterator[StreamChunk]:
    """Yield usage and finish as the script wants them."""
    if isinstance(script.usage, Mapping):
        yield Usage(TokenUsage.from_dict(script.usage))
    elif script.usage:
        reasoning = script.reasoning_chunks
        yield Usage(TokenUsage(1, script.chunks + reasoning, reasoning_tokens=reasoning or None))
    if script.finish is False:
        return
    kind = "tool-calls" if script.tool_calls else "stop"
    reason = {"kind": kind} if isinstance(script.finish, bool) else script.finish
    replay = script.replay_state
    yield Finish(
        FinishReason.from_dict(reason),
        None if replay is None else ReplayEnvelope.from_dict(replay),
    )


# --- steps ----------------------------------------------------------------------------------


async def _perform_all(steps: Steps) -> AsyncIterator[Item]:
    for step in steps:
        async for item in _perform(step):
            yield item


async def _perform(step: Step) -> AsyncIterator[Item]:
    name, argument = step
    match name:
        case "chunk" | "chunks" | "garbage":
            yield argument
        case "huge_block":
            text = piece(0, argument)
            yield [
                BlockStart(0, "text"),
                TextDelta(0, text),
                BlockEnd(0, {"type": "text", "text": text}),
            ]
        case "raise":
            raise _exception(argument)
        case "end":
            raise _EndOfStream
        case _:
            await _wait(name, argument)


async def _wait(name: str, argument: Any) -> None:
    """Do a step that emits nothing."""
    match name:
        case "sleep_ms":
            await _sleep(argument)
        case "stall":
            await asyncio.get_running_loop().create_future()
        case "deaf_ms":
            await _deaf(argument)
        case "block_ms":
            time.sleep(argument / 1000)  # noqa: ASYNC251  a stuck loop is what is asked for
        case "exit":
            os._exit(argument)  # a crash runs no cleanup
        case "signal":
            os.kill(os.getpid(), argument)
        case _:
            raise AssertionError("the script admits no other steps")


async def _sleep(duration_ms: float) -> None:
    if duration_ms:
        await asyncio.sleep(duration_ms / 1000)


async def _deaf(duration_ms: float) -> None:
    """Wait to the end however often it is cancelled, as a badly written adapter does."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + duration_ms / 1000
    while (left_s := deadline_s - loop.time()) > 0:
        try:
            await asyncio.sleep(left_s)
        except asyncio.CancelledError:
            continue


def _exception(wanted: Mapping[str, Any]) -> BaseException:
    message = str(wanted.get("message", "scripted failure"))
    name = wanted.get("exception")
    if name == "UnicodeDecodeError":
        return UnicodeDecodeError("utf-8", b"\xff", 0, 1, message)
    if name is not None:
        return EXCEPTIONS[name](message)
    facts = {"code": "UNKNOWN", **wanted, "message": message}
    return LlmError(LlmFailure.from_dict(facts))
