"""Provider data of a wrong type is the provider's fault: never a broken invariant of ours."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from trunkline_protocol.failure import Code
from trunkline_protocol.http_failure import in_band_failure
from trunkline_workers.adapters.chat_completions.profiles import ResponseRules
from trunkline_workers.adapters.chat_completions.translate import DONE, Translator
from trunkline_workers.boundary import StreamGuard
from trunkline_workers.streaming import read_step

from tests.unit.workers.a_response import LENIENT

EVENTS: list[dict[str, Any]] = [
    {"id": "r", "choices": [{"index": 0, "delta": {"role": "assistant", "reasoning": "hm"}}]},
    {"choices": [{"index": 0, "delta": {"content": "Hi", "reasoning_details": [
        {"type": "reasoning.text", "text": "a", "signature": "s", "index": 0}]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [
        {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}],
     "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
               "prompt_tokens_details": {"cached_tokens": 1},
               "completion_tokens_details": {"reasoning_tokens": 1}}},
]  # fmt: skip
WRONG: list[Any] = [None, True, -1, 1.5, 2**70, "x", "", "\ud800", [], [5], [[]], {}, {"a": 5}]


def spoiled(value: Any) -> Iterator[Any]:
    """Yield a value with each of its places replaced by each wrong value."""
    yield from WRONG
    if isinstance(value, dict):
        for key, inner in value.items():
            for other in spoiled(inner):
                yield {**value, key: other}
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            for other in spoiled(inner):
                yield [*value[:at], other, *value[at + 1 :]]


def code_of(rules: ResponseRules, events: list[Any]) -> str:
    """Return the code in which a response ends, through the boundary of the worker."""
    translator, guard = Translator(rules, in_band_failure), StreamGuard(str)
    payloads = [*(json.dumps(event).encode() for event in events), DONE]
    try:
        guard.take([*read_step(lambda: translator.feed(payloads))])
        if not translator.is_done:
            guard.take([*read_step(translator.end)])
        if translator.failure is not None:
            return translator.failure.code
    except Exception as exc:  # noqa: BLE001  as the puller does
        guard.fail(exc)
    failure = guard.end().reason.failure
    return "" if failure is None else failure.code


@pytest.mark.parametrize("rules", [ResponseRules(), LENIENT], ids=["strict", "lenient"])
def test_a_wrong_type_at_any_place_is_no_fault_of_ours(rules: ResponseRules) -> None:
    codes: Counter[str] = Counter()
    for at, event in enumerate(EVENTS):
        for other in spoiled(event):
            events = [*EVENTS[:at], other, *EVENTS[at + 1 :]]
            code = code_of(rules, events)
            codes[code] += 1
            # A finish reason that is no code has the code UNKNOWN, by rule.
            if "'finish_reason': '\\ud800'" not in repr(other):
                assert code not in {Code.INVARIANT, Code.UNKNOWN}, f"{code}: {other!r}"
    assert codes.total() > 500, codes
