"""Compares what came out with what users needed: text per block, order of blocks, end, code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.retry_policy import DEFAULT_RETRY_POLICY

from tests.support.timing import SLOW

WAITABLE_MS = 60_000
_REASONS = {"tool_calls": "tool-calls", "length": "max-tokens"}


@dataclass(frozen=True)
class Outcome:
    """What one call gave: its chunks, the failure it raised or ended with, and how long it took."""

    chunks: Sequence[StreamChunk]
    failure: LlmFailure | None
    seconds: float


def misses(outcome: Outcome, expected: dict[str, Any]) -> list[str]:
    """Return what differs, in words; empty if nothing does."""
    found = [*_check_end(outcome, expected)]
    if "chunks" in expected:
        wanted, got = _wanted_blocks(expected["chunks"]), _blocks(outcome.chunks)
        shown = [
            {key: block.get(key) for key in want} for want, block in zip(wanted, got, strict=False)
        ]
        if len(wanted) != len(got) or shown != wanted:
            found.append(f"blocks {got}, expected {wanted}")
        found += _check_usage(outcome, expected["chunks"])
    limit_s = expected.get("within_s")
    if limit_s is not None and outcome.seconds > limit_s * SLOW:
        found.append(f"took {outcome.seconds:.2f} s, expected at most {limit_s} s")
    return found


def _check_end(outcome: Outcome, expected: dict[str, Any]) -> list[str]:
    failure, code = outcome.failure, expected.get("failure")
    reason = next((c["reason"] for c in expected.get("chunks", ()) if c["t"] == "finish"), None)
    if reason == "content_filter":
        code = code or "CONTENT_FILTER"
    if code is None and failure is not None:
        return [f"failed with {failure.code} ({failure.message}), expected no failure"]
    if code is not None and (failure is None or failure.code != code):
        got = "no failure" if failure is None else f"{failure.code} ({failure.message})"
        return [f"{got}, expected {code}"]
    finishes = [chunk for chunk in outcome.chunks if isinstance(chunk, Finish)]
    if len(finishes) > 1 or (finishes and outcome.chunks[-1] is not finishes[0]):
        return ["more than one finish, or something after it"]
    if failure is None:
        kind = finishes[0].reason.kind if finishes else "none"
        if reason is not None and kind != _REASONS.get(reason, reason):
            return [f"finish {kind}, expected {reason}"]
        return []
    return _check_retry(failure, expected)


def _check_retry(failure: LlmFailure, expected: dict[str, Any]) -> list[str]:
    found: list[str] = []
    wanted = expected.get("retryable")
    # The policy retries by code. Whether a delay that the provider wishes is waited for is another
    # matter (the default policy waits up to 10 s itself); one beyond reason is no retry at all.
    is_retryable = failure.code in DEFAULT_RETRY_POLICY.retryable_codes
    is_waitable = (failure.provider_retry_after_ms or 0) <= WAITABLE_MS
    if wanted is not None and (is_retryable and is_waitable) != wanted:
        found.append(f"retryable {not wanted}, expected {wanted}")
    delay_s = expected.get("retry_after_s")
    if delay_s is not None and failure.provider_retry_after_ms != delay_s * 1000:
        found.append(f"retry after {failure.provider_retry_after_ms} ms, expected {delay_s} s")
    return found


def _check_usage(outcome: Outcome, chunks: list[dict[str, Any]]) -> list[str]:
    wanted = next((chunk for chunk in chunks if chunk["t"] == "usage"), None)
    if wanted is None:
        return []
    usage = next((chunk.usage for chunk in outcome.chunks if isinstance(chunk, Usage)), None)
    names = {"input": "input_tokens", "output": "output_tokens"}
    names |= {"cache_read": "cache_read_tokens", "cache_write": "cache_write_tokens"}
    names |= {"reasoning": "reasoning_tokens"}
    wanted = {key: value for key, value in wanted.items() if key in names}
    got = {key: getattr(usage, names[key], None) for key in wanted}
    return [] if got == wanted else [f"usage {got}, expected {wanted}"]


def _wanted_blocks(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        if "block" not in chunk:
            continue
        block = blocks.setdefault(chunk["block"], {"text": ""})
        for key in ("kind", "id", "name"):
            if chunk.get(key) is not None:
                block[key] = chunk[key]
        block["text"] += chunk.get("text", chunk.get("args", ""))
    return list(blocks.values())


def _blocks(chunks: Sequence[StreamChunk]) -> list[dict[str, Any]]:
    blocks: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        if isinstance(chunk, BlockStart):
            blocks[chunk.index] = {"kind": chunk.block_type, "text": ""}
        elif isinstance(chunk, TextDelta | ReasoningDelta):
            blocks[chunk.index]["text"] += chunk.text
        elif isinstance(chunk, ToolCallDelta):
            block = blocks[chunk.index]
            block["text"] += chunk.arguments_delta
            block["id"] = chunk.id or block.get("id")
            block["name"] = chunk.name or block.get("name")
        elif isinstance(chunk, BlockEnd) and chunk.block is not None:
            whole = chunk.block.get("text", chunk.block.get("arguments"))
            if whole != blocks[chunk.index]["text"]:
                blocks[chunk.index]["text"] = f"end of block differs: {whole!r}"
    return list(blocks.values())
