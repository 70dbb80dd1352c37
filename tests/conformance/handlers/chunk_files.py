"""`assembler` and `invariant`: chunks through assembly, elision, the lane and the grammar."""

from __future__ import annotations

from typing import Any

from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.chunks import (
    StreamChunk,
    chunk_from_dict,
    chunk_to_array,
    chunks_from_arrays,
)
from trunkline_protocol.elision import BlockElider, BlockFiller
from trunkline_protocol.grammar import GrammarChecker


def over_the_lane(chunks: list[StreamChunk]) -> list[StreamChunk]:
    """Send chunks as the lane does, so that every vector also checks its two forms."""
    elider, filler = BlockElider(), BlockFiller()
    arrays = [chunk_to_array(elider.elide(chunk)) for chunk in chunks]
    return [filler.fill(chunk) for chunk in chunks_from_arrays(arrays)]


def run_assembler(given: list[dict[str, Any]]) -> object:
    assembler = BlockAssembler()
    for chunk in over_the_lane([chunk_from_dict(each) for each in given]):
        assembler.push(chunk)
    usage = assembler.usage
    result: dict[str, object] = {
        "usage": None if usage is None else usage.to_dict(),
        "finish": assembler.finish.to_dict(),
        "interruptedBlocks": [block.to_dict() for block in assembler.interrupted_blocks()],
    }
    try:
        result["blocks"] = [block.to_dict() for block in assembler.blocks()]
    except ValueError:
        return {**result, "error": {"at": "blocks"}}
    replay = assembler.replay_state
    return {**result, "replayState": None if replay is None else replay.to_dict()}


def run_invariant(given: list[dict[str, Any]]) -> object:
    checker = GrammarChecker()
    for count, each in enumerate(given):
        try:
            chunk: object = chunk_from_dict(each)
        except ValueError as exc:
            if ".index:" in str(exc):  # such a chunk does not even come into being
                return {"ok": False, "code": "INVARIANT", "chunksBeforeViolation": count}
            chunk = each
        checker.push(chunk)
    violation = checker.end()
    if violation is None:
        return {"ok": True}
    return {
        "ok": False,
        "code": "INVARIANT",
        "chunksBeforeViolation": violation.chunk_count,
    }


HANDLERS = {"assembler": run_assembler, "invariant": run_invariant}
