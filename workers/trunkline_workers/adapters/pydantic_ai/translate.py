"""The library's part events in, chunks out; it knows the events by their fields, not their types.

Blocks are opened in the order in which parts begin. What the library reports late (the signature of
a part that has ended, say) only concerns the replay state, which is made at the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from trunkline_protocol.chunks import (
    INDEX_MAX,
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
from trunkline_protocol.failure import Code, LlmError, LlmFailure

from trunkline_workers.adapters.pydantic_ai.replay import (
    ReplayScope,
    envelope,
    json_part,
    part_entry,
)

_BLOCK_TYPES: Final = {"text": "text", "thinking": "reasoning", "tool-call": "tool-call"}
_KINDS: Final = {"stop": "stop", "length": "max-tokens", "tool_call": "tool-calls"}
_NO_ARGUMENTS: Final = "{}"


@dataclass(slots=True)
class _Block:
    """A block under way.

    Attributes:
        index: of the block.
        type: of the block.
        part: index of the library's part it shows.
        texts: what was emitted, in pieces.
        id: of a tool call.
        name: of its tool.
        whole: the library's part, for a type that has no deltas.
        is_open: it has not ended.
    """

    index: int
    type: str
    part: int
    texts: list[str] = field(default_factory=list[str])
    id: str = ""
    name: str = ""
    whole: Any = None
    is_open: bool = True

    @property
    def text(self) -> str:
        return "".join(self.texts)


class PartTranslator:
    """The reader of one response.

    Args:
        interleaves: deltas of a tool call may come after the next call has begun.
        scope: of the replay state.
    """

    def __init__(self, *, interleaves: bool, scope: ReplayScope) -> None:
        self._interleaves = interleaves
        self._scope = scope
        self._blocks: list[_Block] = []
        self._of_part: dict[int, _Block] = {}  # the latest block of each part

    def take(self, event: Any) -> list[StreamChunk]:
        """Take one event; those that are no part events give nothing.

        Raises:
            LlmError: `MALFORMED_RESPONSE`: what was emitted can't be taken back.
        """
        match event.event_kind:
            case "part_start":
                return self._on_start(event.index, event.part)
            case "part_delta":
                return self._on_delta(event.index, event.delta)
            case "part_end":
                return self._on_end(event.index, event.part)
            case _:
                return []

    def finish(self, response: Any) -> list[StreamChunk]:
        """Take the end of the response.

        Args:
            response: the library's view of the whole of it.

        Raises:
            LlmError: `STREAM_CLOSED`: it ended before the provider finished its answer.
        """
        reason = self._reason(response)
        out: list[StreamChunk] = []
        broken = None if reason.kind == "max-tokens" else self._broken_call(response.parts)
        if broken is not None and reason.failure is None:
            text = f"the arguments of tool call {broken.id!r} are no JSON"
            reason = FinishReason("error", LlmFailure(text, Code.MALFORMED_RESPONSE))
        for block in self._blocks:
            if block.is_open and block is not broken:
                self._close(block, response.parts[block.part], out)
        out += usage_chunks(response.usage)
        reason = self._not_empty(reason)
        state = self._replay(response) if reason.failure is None else None
        out.append(Finish(reason, state))
        return out

    # --- events -----------------------------------------------------------------------------

    def _on_start(self, index: int, part: Any) -> list[StreamChunk]:
        known = self._of_part.get(index)
        out: list[StreamChunk] = []
        if known is not None:  # it replaces what there was
            self._catch_up(known, part, out)
            return out
        block = self._open(index, _block_type(part.part_kind), out)
        if block.type == "tool-call":
            block.id, block.name = part.tool_call_id, part.tool_name
            text = part.args if isinstance(part.args, str) else ""
            block.texts.append(text)
            out.append(ToolCallDelta(block.index, block.id, text, block.name))
        elif block.type in {"text", "reasoning"}:
            self._add(block, part.content, out)
        else:
            block.whole = part
        return out

    def _on_delta(self, index: int, delta: Any) -> list[StreamChunk]:
        block = self._of_part.get(index)
        if block is None:
            raise _malformed("a part that never began")
        out: list[StreamChunk] = []
        if delta.part_delta_kind == "tool_call":
            self._add_to_call(block, delta, out)
        elif text := getattr(delta, "content_delta", None):
            if not block.is_open:  # more of a part after the next one began: shown as it came
                block = self._open(index, block.type, out)
            self._add(block, text, out)
        return out

    def _on_end(self, index: int, part: Any) -> list[StreamChunk]:
        block = self._of_part.get(index)
        out: list[StreamChunk] = []
        is_late = block is not None and block.type == "tool-call" and self._interleaves
        if block is not None and block.is_open and not is_late and block.whole is None:
            # Without arguments so far, or with half of them: another call may have begun between
            # two pieces of this one. The finish decides what becomes of it.
            if block.type == "tool-call" and not _is_whole(part.args):
                return out
            self._close(block, part, out)
        return out

    # --- blocks -----------------------------------------------------------------------------

    def _open(self, part: int, block_type: str, out: list[StreamChunk]) -> _Block:
        block = _Block(len(self._blocks), block_type, part)
        self._blocks.append(block)
        self._of_part[part] = block
        out.append(BlockStart(block.index, block_type))
        return block

    def _add(self, block: _Block, text: str, out: list[StreamChunk]) -> None:
        if text:
            block.texts.append(text)
            kind = TextDelta if block.type == "text" else ReasoningDelta
            out.append(kind(block.index, text))

    def _add_to_call(self, block: _Block, delta: Any, out: list[StreamChunk]) -> None:
        if delta.tool_name_delta:
            block.name += delta.tool_name_delta
        if delta.tool_call_id:
            block.id = delta.tool_call_id
        text = delta.args_delta
        if not isinstance(text, str) or not text:  # a map comes whole, when the part ends
            return
        if not block.is_open:
            raise _malformed("more arguments of a tool call that had ended")
        block.texts.append(text)
        out.append(ToolCallDelta(block.index, block.id, text, None))

    def _catch_up(self, block: _Block, part: Any, out: list[StreamChunk]) -> None:
        """Take a part that replaces the one shown; only more of the same can be shown."""
        if block.whole is not None:
            block.whole = part
        elif block.type == "tool-call":
            block.id, block.name = part.tool_call_id, part.tool_name
            if isinstance(part.args, str):
                self._add_rest(block, part.args, out)
        else:
            self._add_rest(block, part.content, out)

    def _add_rest(self, block: _Block, whole: str, out: list[StreamChunk]) -> None:
        shown = block.text
        rest = whole.removeprefix(shown)
        if whole != shown + rest:
            raise _malformed("a part that replaces another one")
        if not rest:
            return
        if block.type == "tool-call":
            block.texts.append(rest)
            out.append(ToolCallDelta(block.index, block.id, rest, None))
        else:
            self._add(block, rest, out)

    def _close(self, block: _Block, part: Any, out: list[StreamChunk]) -> None:
        """End a block with what its part has become."""
        if block.whole is not None:
            out.append(BlockEnd(block.index, _foreign_block(block)))
        elif block.type == "tool-call":
            self._add_rest(block, _arguments(part.args), out)
            fields = {"id": block.id, "name": block.name, "arguments": block.text}
            out.append(BlockEnd(block.index, {"type": "tool-call", **fields}))
        else:
            out.append(BlockEnd(block.index, {"type": block.type, "text": block.text}))
        block.is_open = False

    # --- the end ----------------------------------------------------------------------------

    def _reason(self, response: Any) -> FinishReason:
        """Translate the library's finish reason; the provider's own word where it has none."""
        details = cast("dict[str, object]", response.provider_details or {})
        word, raw = response.finish_reason, details.get("finish_reason")
        if word is None and raw is None:
            text = "the stream ended before the provider finished its answer"
            raise LlmError.of(text, Code.STREAM_CLOSED)
        kind = _KINDS.get(word or "")
        if kind == "stop" and any(block.type == "tool-call" for block in self._blocks):
            kind = "tool-calls"
        if kind is not None:
            return FinishReason(kind)
        said = details.get("refusal") or f"the provider ended the response: {raw or word}"
        return FinishReason("error", LlmFailure(str(said), _code(word, str(raw or word))))

    def _broken_call(self, parts: Sequence[Any]) -> _Block | None:
        """Return an open tool call whose arguments are no JSON, if there is one."""
        for block in self._blocks:
            is_call = block.is_open and block.type == "tool-call"
            if is_call and not _is_json(_arguments(parts[block.part].args)):
                return block
        return None

    def _not_empty(self, reason: FinishReason) -> FinishReason:
        """Turn a stop without any content into a failure that says so."""
        has_content = any(block.type not in {"text", "reasoning"} or block.texts
                          for block in self._blocks)  # fmt: skip
        if reason.kind != "stop" or has_content:
            return reason
        text = "the provider ended the response without any content"
        return FinishReason("error", LlmFailure(text, Code.EMPTY_RESPONSE))

    def _replay(self, response: Any) -> ReplayEnvelope | None:
        """Return what has to go back with this answer, or `None` if nothing has."""
        parts = response.parts
        entries = [part_entry(parts[block.part], block.text) for block in self._blocks]
        if not any(entries):
            return None
        fields = {
            "model_name": response.model_name,
            "provider_url": response.provider_url,
            "provider_response_id": response.provider_response_id,
            "provider_details": response.provider_details,
            "canonical_system": response.canonical_system,
        }
        return envelope(self._scope, fields, entries)


def usage_chunks(usage: Any) -> list[StreamChunk]:
    """Return the token counts with cached input taken out of the input; none: nothing counted."""
    read, write = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
    if not (usage.input_tokens or usage.output_tokens):
        return []
    if not all(0 <= n <= INDEX_MAX for n in (usage.input_tokens, usage.output_tokens, read, write)):
        return []  # numbers that are nobody's
    details = cast("dict[str, int]", usage.details or {})
    reasoning: int = usage.output_reasoning_tokens or details.get("reasoning_tokens", 0)
    counts = TokenUsage(
        input_tokens=max(0, usage.input_tokens - read - write),
        output_tokens=usage.output_tokens,
        cache_read_tokens=read or None,
        cache_write_tokens=write or None,
        reasoning_tokens=reasoning or None,
    )
    return [Usage(counts)]


def _block_type(part_kind: str) -> str:
    return _BLOCK_TYPES.get(part_kind, part_kind)


def _code(word: str | None, raw: str) -> str:
    if word == "content_filter":
        return Code.CONTENT_FILTER
    if word == "error":
        return Code.MALFORMED_RESPONSE if "MALFORMED" in raw.upper() else Code.SERVER
    return raw.upper()


def _arguments(args: object) -> str:
    """Return the raw JSON text of a call's arguments."""
    if isinstance(args, str):
        return args if args.strip() else _NO_ARGUMENTS
    return json.dumps(args, ensure_ascii=False) if args else _NO_ARGUMENTS


def _is_whole(args: object) -> bool:
    """Tell whether arguments are there and complete."""
    return _is_json(args) if isinstance(args, str) else bool(args)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _foreign_block(block: _Block) -> dict[str, object]:
    """Return a part of a kind that has no block of its own, as a block of that type."""
    held = cast("dict[str, object]", vars(block.whole))
    fields = {key: value for key, value in held.items() if not key.startswith("_")}
    return {**cast("dict[str, object]", json_part(fields)), "type": block.type}


def _malformed(what: str) -> LlmError:
    return LlmError.of(f"the response could not be read: {what}", Code.MALFORMED_RESPONSE)
