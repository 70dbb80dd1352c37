"""Replay state as it may come back: an application stores it, and everything happens to it there.

From an answer of the adapter under test: its state, whole, and with one place of it after the other
replaced by something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.content import ToolCallBlock
from trunkline_protocol.options import GenerateOptions

VARIANTS_MAX: Final = 40  # requests of one check
_EMPTY: Final[dict[str, object]] = {}
_NESTED: Final[list[object]] = [{"a": [_EMPTY]}]
_INSTEAD: Final[Sequence[object]] = (None, 7, "x\ud800", list[object](), _EMPTY, _NESTED)


def spoilt_histories(answer: BlockAssembler, request: GenerateOptions) -> Iterator[GenerateOptions]:
    """Yield requests that go on from an answer whose replay state was tampered with.

    Args:
        answer: of the adapter, with a replay state.
        request: whose last message the new ones end with.
    """
    if answer.replay_state is None:
        return
    state = answer.replay_state.to_dict()
    variants = [state, *_variants(state)]
    step = max(1, len(variants) // VARIANTS_MAX)
    for variant in variants[::step]:
        yield _history(answer, request, variant)


def _history(answer: BlockAssembler, request: GenerateOptions, state: object) -> GenerateOptions:
    whole = request.to_dict()
    last = cast("list[dict[str, Any]]", whole["messages"])[-1]
    source = {"kind": "model", "provider": request.provider, "model": request.model}
    blocks = answer.blocks()
    assistant: dict[str, Any] = {
        "id": "a",
        "role": "assistant",
        "content": [block.to_dict() for block in blocks],
        "source": {**source, "replayState": state},
    }
    results: list[dict[str, Any]] = [
        {"type": "tool-result", "toolCallId": block.id, "content": []}
        for block in blocks
        if isinstance(block, ToolCallBlock)
    ]
    after: dict[str, Any] = {**last, "content": [*results, *last["content"]]}
    return GenerateOptions.from_dict({**whole, "messages": [last, assistant, after]})


def _variants(value: object, salt: int = 0) -> Iterator[object]:
    """Yield a JSON value with each place in it replaced by something, one at a time."""
    if isinstance(value, Mapping):
        fields = dict(cast("Mapping[str, object]", value))
        yield {**fields, "unknownField": 1}
        for at, (key, item) in enumerate(fields.items(), salt):
            for other in (_INSTEAD[at % len(_INSTEAD)], *_variants(item, at + 1)):
                yield {**fields, key: other}
    elif isinstance(value, Sequence) and not isinstance(value, str):
        items = list(cast("Sequence[object]", value))
        yield items[:-1]
        for at, item in enumerate(items):
            for other in (_INSTEAD[(at + salt) % len(_INSTEAD)], *_variants(item, at + salt + 1)):
                yield [*items[:at], other, *items[at + 1 :]]
