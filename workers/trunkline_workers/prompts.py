"""The debug switch of a pool: what its attempts are asked and answer, as text in log and spans.

Off unless `debug_prompts = true` stands in `[worker.NAME]`; whoever runs with it is told by the
worker's log, `trunkline status`, `top`, `doctor` and the metrics. Keys and headers are never part
of a request, and what looks like one inside of a text is taken out. Images are named, not shown.
The form is that of the OpenTelemetry conventions for generative AI (`gen_ai.input.messages`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.chunks import (
    BlockEnd,
    Finish,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    chunks_from_arrays,
)
from trunkline_protocol.content import (
    ContentBlock,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from trunkline_protocol.finish import FinishReason
from trunkline_protocol.ids import CallId
from trunkline_protocol.messages import Message
from trunkline_protocol.options import GenerateOptions

from trunkline_workers.pull import ChunkSink

WARNING: Final = (
    "DEBUG: debug_prompts is on: prompts and answers are written to this log, and to spans if any"
)
MAX_TEXT_CHARS: Final = 32 * 1024  # of one request (its end), and of one answer (its beginning)

Attributes = dict[str, str]
Key = tuple[CallId, int]


class PromptLog:
    """Writes one line for the request of an attempt and one for its answer.

    Args:
        write: takes a line.
        clean: takes secrets out of a text.
    """

    def __init__(self, write: Callable[[str], None], clean: Callable[[str], str]) -> None:
        self._write = write
        self._clean = clean
        self._answers: dict[Key, _Answer] = {}
        write(WARNING)

    def request(self, key: Key, options: GenerateOptions) -> Attributes:
        """Write what an attempt asks; return the same as attributes of its span."""
        self._answers[key] = _Answer()
        budget = _Budget(self._clean)
        messages = [_message(each, budget) for each in reversed(options.messages)]
        asked: dict[str, Any] = {"gen_ai.input.messages": messages[::-1]}
        if options.system:
            asked["gen_ai.system_instructions"] = [budget.text("text", options.system)]
        if options.tools:
            asked["gen_ai.tool.definitions"] = [
                {"type": "function", "name": tool.name, "description": budget.cut(tool.description)}
                for tool in options.tools
            ]
        return self._told("prompt", key, asked)

    def chunks(self, key: Key, arrays: Sequence[Sequence[Any]]) -> None:
        """Take chunks of an answer in their order; those behind its end are none of it."""
        answer = self._answers.get(key)
        if answer is None:
            return  # it was cancelled, and its adapter has not noticed yet
        for chunk in chunks_from_arrays([tuple(array) for array in arrays]):
            answer.push(chunk)

    def end(self, key: Key, finish: FinishReason) -> Attributes:
        """Write what an attempt has answered so far; return the same as attributes of its span."""
        answer = self._answers.pop(key, None) or _Answer()
        budget = _Budget(self._clean)
        parts = [_part(block, budget) for block in answer.blocks()]
        if answer.left_out:
            parts.append({"type": "text", "content": f"… ({answer.left_out} characters more)"})
        message = {"role": "assistant", "parts": parts, "finish_reason": finish.kind}
        return self._told("answer", key, {"gen_ai.output.messages": [message]})

    def tap(self, sink: ChunkSink) -> ChunkSink:
        """Return a sink that shows its chunks to this log before it hands them on."""
        return _Tap(self, sink)

    def _told(self, what: str, key: Key, said: Mapping[str, Any]) -> Attributes:
        call, attempt = key
        text = json.dumps(said, ensure_ascii=False)
        self._write(f"{what} call={call.hex()} attempt={attempt} {text}")
        return {name: json.dumps(value, ensure_ascii=False) for name, value in said.items()}


class _Tap:
    """A sink in front of the host's; it is there only while the switch is on."""

    def __init__(self, log: PromptLog, inner: ChunkSink) -> None:
        self._log = log
        self._inner = inner

    def ask_room(self, call: CallId, attempt: int) -> int:
        return self._inner.ask_room(call, attempt)

    def push(self, call: CallId, attempt: int, arrays: Sequence[Sequence[Any]]) -> int:
        self._log.chunks((call, attempt), arrays)
        return self._inner.push(call, attempt, arrays)

    def finish(
        self,
        call: CallId,
        attempt: int,
        finish: Finish,
        usage: TokenUsage | None,
        arrays: Sequence[Sequence[Any]],
    ) -> None:
        self._log.chunks((call, attempt), arrays)
        self._inner.finish(call, attempt, finish, usage, arrays)

    def report(self, diagnostic: str) -> None:
        self._inner.report(diagnostic)


class _Answer:
    """The beginning of an answer: as much as is shown of it, and one block more.

    Attributes:
        left_out: characters behind that.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._left = MAX_TEXT_CHARS
        self._assembler = BlockAssembler()
        self._sizes: Counter[int] = Counter()  # of the text that came in pieces, by block

    def push(self, chunk: StreamChunk) -> None:
        """Take the next chunk."""
        size = self._size(chunk)
        if self._left <= 0:
            self.left_out += size
            return
        self._left -= size
        self._assembler.push(chunk)

    def blocks(self) -> list[ContentBlock]:
        """Return what there is; of a block that its chunks so far do not make whole, nothing."""
        try:
            return self._assembler.blocks()
        except ValueError:  # cut in the middle of a block, or one that is none
            return self._assembler.interrupted_blocks()

    def _size(self, chunk: StreamChunk) -> int:
        match chunk:
            case TextDelta() | ReasoningDelta():
                size = len(chunk.text)
            case ToolCallDelta():
                size = len(chunk.arguments_delta)
            case BlockEnd():
                whole = chunk.block or {}
                text = str(whole.get("text") or whole.get("arguments") or "")
                return max(0, len(text) - self._sizes[chunk.index])
            case _:
                return 0
        self._sizes[chunk.index] += size
        return size


class _Budget:
    """How much text may still be shown of one request or answer."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._left = MAX_TEXT_CHARS

    def cut(self, text: str) -> str:
        # Cut first: the cleaning of a long text would hold up the other streams. A key that the cut
        # goes through is still taken out, since any beginning of it is.
        shown = self._clean(text[: self._left])
        cut_count = max(0, len(text) - self._left)
        self._left = max(0, self._left - len(text))
        return f"{shown}… ({cut_count} characters more)" if cut_count else shown

    def text(self, kind: str, text: str) -> dict[str, object]:
        return {"type": kind, "content": self.cut(text)}


def _message(message: Message, budget: _Budget) -> dict[str, object]:
    is_answer = any(isinstance(block, ToolResultBlock) for block in message.content)
    role = "tool" if is_answer else message.role
    return {"role": role, "parts": [_part(block, budget) for block in message.content]}


def _part(block: ContentBlock, budget: _Budget) -> dict[str, object]:
    match block:
        case TextBlock():
            return budget.text("text", block.text)
        case ReasoningBlock():
            return budget.text("reasoning", block.text)
        case ToolCallBlock():
            arguments = budget.cut(block.arguments)
            return {"type": "tool_call", "id": block.id, "name": block.name, "arguments": arguments}
        case ToolResultBlock():
            parts = [_part(each, budget) for each in block.content]
            return {"type": "tool_call_response", "id": block.tool_call_id, "response": parts}
        case ImageBlock():
            return {"type": "image", "attachment": block.attachment.attachment_id}
        case _:
            return {"type": block.type}
