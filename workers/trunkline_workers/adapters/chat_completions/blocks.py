"""The blocks that a translator has open: what was emitted of each, and what it assembles to.

Pure. It knows chunks and blocks and nothing of a provider's wire.
"""

from __future__ import annotations

import json
from typing import Final

from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    ReasoningDelta,
    StreamChunk,
    TextDelta,
    ToolCallDelta,
)


class TextState:
    """An open text or reasoning block."""

    __slots__ = ("index", "kind", "parts")

    def __init__(self, index: int, kind: str) -> None:
        self.index = index
        self.kind = kind
        self.parts: list[str] = []

    def end(self) -> BlockEnd:
        """Return the end of the block with its whole text."""
        return BlockEnd(self.index, {"type": self.kind, "text": "".join(self.parts)})


class CallState:
    """An open tool call.

    Attributes:
        index: of the block.
        id: of the call, "" while unknown.
        name: of the tool, `None` while unknown.
        parts: of the arguments.
        whole: arguments that came as a JSON value and not in pieces.
        extra: opaque data of the provider that belongs to the call.
    """

    __slots__ = ("_size", "extra", "id", "index", "name", "parts", "whole")

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.name: str | None = None
        self.parts: list[str] = []
        self._size = 0  # of the parts, so that a repeat is found without joining them
        self.whole: str | None = None
        self.extra: object = None

    def delta(self, text: str) -> ToolCallDelta:
        """Add a piece of the arguments and return its chunk."""
        self.parts.append(text)
        self._size += len(text)
        return ToolCallDelta(self.index, self.id, text, self.name)

    def has_whole(self, text: str) -> bool:
        """Tell whether a piece repeats the complete object that the call already has."""
        return (
            len(text) == self._size
            and text.startswith("{")
            and text == self.arguments()
            and _is_json(text)
        )

    def is_whole(self) -> bool:
        """Tell whether the arguments so far are a complete JSON object."""
        # The last piece is looked at first: a call that only repeats its name is judged cheaply.
        return (
            bool(self.parts)
            and self.parts[-1].rstrip().endswith("}")
            and _is_json(self.arguments())
        )

    def arguments(self) -> str:
        """Return the raw JSON text so far."""
        return "".join(self.parts)

    def end(self) -> BlockEnd:
        """Return the end of the block with the whole call."""
        block = {
            "type": "tool-call",
            "id": self.id,
            "name": self.name or "",
            "arguments": self.arguments(),
        }
        return BlockEnd(self.index, block)


class OpenBlocks:
    """All blocks of one response, in first-seen order.

    Attributes:
        text: the text block, if there is one.
        reasoning: the reasoning block, if there is one.
        calls: the tool calls.
    """

    __slots__ = ("_all", "calls", "reasoning", "text")

    def __init__(self) -> None:
        self.text: TextState | None = None
        self.reasoning: TextState | None = None
        self.calls: list[CallState] = []
        self._all: list[TextState | CallState] = []

    def __len__(self) -> int:
        return len(self._all)

    def add_text(self, text: str, out: list[StreamChunk]) -> None:
        """Add visible text that is not empty."""
        block = self.text
        if block is None:
            block = self.text = self._open("text", out)
        block.parts.append(text)
        out.append(TextDelta(block.index, text))

    def add_reasoning(self, text: str, out: list[StreamChunk]) -> None:
        """Add reasoning text that is not empty."""
        block = self.reasoning
        if block is None:
            block = self.reasoning = self._open("reasoning", out)
        block.parts.append(text)
        out.append(ReasoningDelta(block.index, text))

    def open_call(self, out: list[StreamChunk]) -> CallState:
        """Open a tool call."""
        call = CallState(len(self._all))
        self.calls.append(call)
        self._all.append(call)
        out.append(BlockStart(call.index, "tool-call"))
        return call

    def _open(self, kind: str, out: list[StreamChunk]) -> TextState:
        block = TextState(len(self._all), kind)
        self._all.append(block)
        out.append(BlockStart(block.index, kind))
        return block

    def end_all(self, out: list[StreamChunk], broken: CallState | None = None) -> None:
        """End every block but one that must not look complete."""
        out += [block.end() for block in self._all if block is not broken]

    def complete_calls(self, id_prefix: str, out: list[StreamChunk]) -> None:
        """Give calls what they need to be run and answered: an id, and arguments that are JSON."""
        for call in self.calls:
            is_blank = not call.arguments().strip()
            if is_blank or not call.id:
                call.id = call.id or f"{id_prefix}{call.index}"
                out.append(call.delta("{}" if is_blank else ""))

    def broken_call(self) -> CallState | None:
        """Return the first call whose arguments are no JSON, or `None`."""
        return next((call for call in self.calls if not _is_json(call.arguments())), None)

    def extras(self) -> tuple[object, ...] | None:
        """Return one entry of opaque data per block, or `None` if no block has any."""
        entries = tuple(
            {"extraContent": block.extra}
            if isinstance(block, CallState) and block.extra is not None
            else None
            for block in self._all
        )
        return entries if any(entries) else None


_decoder: Final = json.JSONDecoder(strict=False)  # raw line ends in strings are common and harmless


def _is_json(text: str) -> bool:
    """Tell whether arguments parse; judged once per call, at the end."""
    try:
        _decoder.decode(text)
    except (ValueError, RecursionError):
        return False
    return True
