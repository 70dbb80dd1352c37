"""One block while its deltas arrive; shared by assembly and by the elision of block ends.

Both must agree to the letter: a block end may be left out on the lane only because the reader
assembles exactly the same block from the same deltas.
"""

from __future__ import annotations

from collections.abc import Mapping

from trunkline_protocol.chunks import ToolCallDelta

_FREED: list[str] = []  # nothing is appended to a closed block


class PartialBlock:
    """The deltas of one block, and the block itself once it is closed."""

    __slots__ = ("arguments", "block", "block_type", "call_id", "call_name", "texts")

    def __init__(self, block_type: str) -> None:
        self.block_type = block_type
        self.texts: list[str] = []
        self.arguments: list[str] = []
        self.call_id: str | None = None
        self.call_name: str = ""
        self.block: Mapping[str, object] | None = None

    @property
    def final_type(self) -> str:
        """The type of the closing block, or the one it was opened with."""
        return self.block_type if self.block is None else str(self.block["type"])

    @property
    def can_assemble(self) -> bool:
        """Whether the deltas alone make a block of this type."""
        return self.block_type in {"text", "reasoning", "tool-call"}

    def add_text(self, text: str) -> None:
        """Append text or reasoning; a closed block stays as it is."""
        if self.block is None:
            self.texts.append(text)

    def add_tool_call(self, delta: ToolCallDelta) -> None:
        """Append arguments; the last id counts, and the last name that is not empty."""
        if self.block is None:
            self.arguments.append(delta.arguments_delta)
            self.call_id = delta.id
            self.call_name = delta.name or self.call_name

    def close(self, block: Mapping[str, object]) -> None:
        """Take the authoritative block; a second end changes nothing. Frees the deltas."""
        if self.block is None:
            self.block = block
            self.texts = self.arguments = _FREED

    def assembled(self, index: int) -> Mapping[str, object]:
        """Return the closing block, or what the deltas make of an open one.

        Raises:
            ValueError: an open block of a type that deltas cannot build.
        """
        if self.block is not None:
            return self.block
        if self.block_type in {"text", "reasoning"}:
            return {"type": self.block_type, "text": "".join(self.texts)}
        if self.block_type == "tool-call":
            call_id = f"call-{index}" if self.call_id is None else self.call_id
            arguments = "".join(self.arguments)
            return {
                "type": "tool-call",
                "id": call_id,
                "name": self.call_name,
                "arguments": arguments,
            }
        raise ValueError(f"an open block of type {self.block_type!r} has nothing to assemble")
