"""The translator: token counts."""

from __future__ import annotations

import json

import pytest
from trunkline_protocol.chunks import Usage
from trunkline_workers.adapters.chat_completions.translate import DONE

from tests.unit.workers.a_response import COUNTS, Result, chunk


@pytest.mark.parametrize(
    "payload",
    [
        chunk(usage=COUNTS),
        json.dumps({"choices": [], "usage": COUNTS}).encode(),
        json.dumps({"choices": [{"delta": {}, "usage": COUNTS}]}).encode(),
        json.dumps({"choices": [{"delta": {"usage": COUNTS}}]}).encode(),
        json.dumps({"choices": [], "x_groq": {"usage": COUNTS}}).encode(),
        json.dumps({"choices": None, "usage": COUNTS}).encode(),
        json.dumps({"usage": {"input_tokens": 7, "output_tokens": 2.0}}).encode(),
    ],
)
def test_usage_is_found_anywhere(payload: bytes) -> None:
    """Top level, choice, delta, Groq's object, without choices."""
    result = Result(chunk({"content": "x"}), chunk(finish="stop"), payload, DONE)
    assert result.usage == {"inputTokens": 7, "outputTokens": 2}


@pytest.mark.parametrize("weak", [None, {}, {"prompt_tokens": 0, "completion_tokens": 0}, 0, ""])
def test_a_weak_usage_never_replaces_a_real_one(weak: object) -> None:
    """Null, empty and zero change nothing."""
    real, later = chunk({"content": "x"}, usage=COUNTS), chunk(finish="stop", usage=weak)
    assert Result(real, later, DONE).usage == {"inputTokens": 7, "outputTokens": 2}


def test_of_many_usages_the_last_wins() -> None:
    """Cumulative counts on every chunk end in one usage."""
    many = [chunk({"content": "x"}, usage={**COUNTS, "completion_tokens": n}) for n in range(1, 5)]
    result = Result(*many, chunk(finish="stop"), DONE)
    assert result.usage == {"inputTokens": 7, "outputTokens": 4}
    assert sum(isinstance(c, Usage) for c in result.chunks) == 1


def test_halves_of_a_usage_are_put_together() -> None:
    """Counts that come apart are kept."""
    first = chunk({"content": "x"}, usage={"prompt_tokens": 7, "completion_tokens": None})
    second = chunk(finish="stop", usage={"prompt_tokens": None, "completion_tokens": 2})
    assert Result(first, second).usage == {"inputTokens": 7, "outputTokens": 2}


def test_cached_and_reasoning_tokens_are_disjoint() -> None:
    """Cache hits leave the input, which never goes below zero."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 6},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    assert Result(chunk({"content": "x"}, usage=usage), DONE).usage == {
        "inputTokens": 0,
        "outputTokens": 5,
        "cacheReadTokens": 8,
        "cacheWriteTokens": 6,
        "reasoningTokens": 3,
    }
