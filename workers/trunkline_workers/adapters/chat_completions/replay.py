"""Stored replay state of an assistant message, read back; pure.

Only the adapter that wrote a state gets to see it. A state it can't use (another version, blocks
that no longer match) degrades that one message to its plain content, with a line of diagnostics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from trunkline_protocol.messages import Message, ModelMessageSource
from trunkline_protocol.wire_model import plain

REPLAY_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ReplayState:
    """What goes back with one assistant message.

    Attributes:
        details: OpenRouter's `reasoning_details`, as received.
        blocks: opaque data per content block.
    """

    details: list[object] | None = None
    blocks: tuple[object, ...] = ()

    def extra_content(self, position: int) -> object:
        """Return the `extra_content` of the tool call at a position of the content."""
        entry = self.blocks[position] if position < len(self.blocks) else None
        return (
            cast("Mapping[str, object]", entry).get("extraContent")
            if isinstance(entry, Mapping)
            else None
        )


def read_replay(
    message: Message, report: Callable[[str], None] | None = None
) -> ReplayState | None:
    """Read the state of an assistant message; `None`: there is none that can be used."""
    source = message.source
    if not isinstance(source, ModelMessageSource) or source.replay_state is None:
        return None
    state, problem = _read(plain(source.replay_state), len(message.content))
    if problem and report is not None:
        report(f"message {message.id}: replay state not used: {problem}")
    return state


def _read(raw: object, block_count: int) -> tuple[ReplayState | None, str]:
    """Return the state, or `None` and why not."""
    if not isinstance(raw, dict):
        return None, "no object"
    envelope = cast("dict[str, object]", raw)
    response, blocks = envelope.get("response"), envelope.get("blocks")
    if not isinstance(response, dict):
        return None, "no response part"
    version = cast("dict[str, object]", response).get("v")
    if version != REPLAY_VERSION:
        return None, f"version {version!r} is unknown"
    details = cast("dict[str, object]", response).get("reasoningDetails")
    if details is not None and not isinstance(details, list):
        return None, "reasoningDetails is no list"
    entries: tuple[object, ...] = ()
    if blocks is not None:
        if not isinstance(blocks, list) or len(cast("list[object]", blocks)) != block_count:
            return None, "its blocks do not match the content"
        entries = tuple(cast("list[object]", blocks))
    return ReplayState(cast("list[object] | None", details), entries), ""
