"""Payloads of a chat-completions stream, and what the translator makes of them."""

from __future__ import annotations

import json
from typing import Any

from trunkline_protocol.chunks import BlockEnd, Finish, StreamChunk, Usage
from trunkline_protocol.grammar import GrammarChecker
from trunkline_protocol.http_failure import in_band_failure
from trunkline_workers.adapters.chat_completions.profiles import PROFILES, ResponseRules
from trunkline_workers.adapters.chat_completions.translate import DONE, Translator

LENIENT = ResponseRules()
EXACT = PROFILES["deepseek"].response
COUNTS = {"prompt_tokens": 7, "completion_tokens": 2}


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return json.dumps({"choices": [choice], **more}).encode()


def call(index: int | None = None, **fields: Any) -> dict[str, Any]:
    """Return a delta with one piece of a tool call."""
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    piece = {**fields, "function": function}
    if index is not None:
        piece["index"] = index
    return {"tool_calls": [piece]}


class Result:
    """What a translator made of payloads."""

    def __init__(self, *payloads: bytes, rules: ResponseRules = LENIENT, **options: Any) -> None:
        translator = Translator(rules, in_band_failure, **options)
        self.chunks: list[StreamChunk] = translator.feed(payloads)
        if not translator.is_done:
            self.chunks += translator.end()
        self.thrown = translator.failure
        if self.thrown is None:
            checker = GrammarChecker()
            for each in self.chunks:
                checker.push(each)
            assert checker.end() is None

    @property
    def blocks(self) -> list[dict[str, Any]]:
        return [dict(c.block or {}) for c in self.chunks if isinstance(c, BlockEnd)]

    @property
    def finish(self) -> str:
        last = self.chunks[-1]
        assert isinstance(last, Finish)
        return last.reason.failure.code if last.reason.failure else last.reason.kind

    @property
    def usage(self) -> dict[str, object] | None:
        return next((c.usage.to_dict() for c in self.chunks if isinstance(c, Usage)), None)

    @property
    def replay(self) -> dict[str, object] | None:
        last = self.chunks[-1]
        assert isinstance(last, Finish)
        return None if last.replay_state is None else last.replay_state.to_dict()


def calls_of(*deltas: dict[str, Any], finish: str = "tool_calls") -> list[tuple[str, str, str]]:
    result = Result(*(chunk(delta) for delta in deltas), chunk(finish=finish), DONE)
    return [(b["id"], b["name"], b["arguments"]) for b in result.blocks]
