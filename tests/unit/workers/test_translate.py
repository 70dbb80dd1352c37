"""The translator: text, reasoning, what goes back, and its cost."""

from __future__ import annotations

import time
from typing import Any

import pytest
from trunkline_protocol.http_failure import in_band_failure
from trunkline_workers.adapters.chat_completions.profiles import ResponseRules
from trunkline_workers.adapters.chat_completions.translate import DONE, Translator

from tests.unit.workers.a_response import LENIENT, Result, call, chunk


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "reasoning_text"])
def test_reasoning_is_read_under_its_three_names(name: str) -> None:
    """Each name makes a reasoning block."""
    result = Result(chunk({name: "mull"}), chunk({"content": "Hi"}), chunk(finish="stop"), DONE)
    assert result.blocks == [
        {"type": "reasoning", "text": "mull"},
        {"type": "text", "text": "Hi"},
    ]


def test_a_reasoning_text_under_two_names_is_taken_once() -> None:
    """Gateways that copy the field do not double the text."""
    result = Result(chunk({"reasoning": "a", "reasoning_content": "a"}), chunk(finish="stop"))
    assert result.blocks == [{"type": "reasoning", "text": "a"}]


def test_empty_pieces_open_nothing() -> None:
    """Role-only deltas, empty strings, nulls and empty lists make no block."""
    deltas = ({"role": "assistant", "content": ""}, {"content": None}, {"tool_calls": []}, {})
    result = Result(*map(chunk, deltas), chunk(finish="stop"), DONE)
    assert result.finish == "EMPTY_RESPONSE"
    assert result.blocks == []


def test_content_as_parts_is_read() -> None:
    """Thinking parts are reasoning, text parts text, references nothing."""
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "plan"}]},
        {"type": "reference", "reference_ids": [1]},
        {"type": "text", "text": "Hi"},
        "!",
    ]
    result = Result(chunk({"content": parts}), chunk({"content": " you"}), chunk(finish="stop"))
    assert result.blocks == [
        {"type": "reasoning", "text": "plan"},
        {"type": "text", "text": "Hi! you"},
    ]


def test_a_refusal_is_shown() -> None:
    """The text of a refusal reaches the user."""
    result = Result(chunk({"refusal": "I can't"}), chunk(finish="stop"), DONE)
    assert (result.blocks, result.finish) == ([{"type": "text", "text": "I can't"}], "stop")


@pytest.mark.parametrize("cut", range(1, 30))
def test_inline_thinking_is_split_wherever_deltas_are_cut(cut: int) -> None:
    """The tags are found in any two pieces."""
    text = "\n<think>a <b</think>\n\nanswer <think>"
    rules = ResponseRules(inline_thinking="tags")
    pieces = [chunk({"content": text[:cut]}), chunk({"content": text[cut:]})]
    result = Result(*pieces, chunk(finish="stop"), DONE, rules=rules)
    assert result.blocks == [
        {"type": "reasoning", "text": "a <b"},
        {"type": "text", "text": "answer <think>"},
    ]


@pytest.mark.parametrize(
    ("text", "mode", "blocks"),
    [
        ("plan</think>ok", "prefilled", [("reasoning", "plan"), ("text", "ok")]),
        ("  <thin", "tags", [("text", "  <thin")]),
        ("<think>cut</thi", "tags", [("reasoning", "cut</thi")]),
        ("a <think>b</think>", "tags", [("text", "a <think>b</think>")]),
        ("<think>a</think>", "off", [("text", "<think>a</think>")]),
    ],
)
def test_inline_thinking_modes(text: str, mode: Any, blocks: list[tuple[str, str]]) -> None:
    """Only a leading tag opens reasoning, and what is held back is never lost."""
    result = Result(chunk({"content": text}), DONE, rules=ResponseRules(inline_thinking=mode))
    assert [(b["type"], b["text"]) for b in result.blocks] == blocks


# --- replay, cost -----------------------------------------------------------------------------


def test_opaque_data_survives_in_the_replay_state() -> None:
    """Reasoning details are put together, extra content stays with its block."""
    details = [
        {"type": "reasoning.text", "index": 0, "text": "a", "signature": None},
        {"type": "reasoning.text", "index": 0, "text": "b"},
        {"type": "reasoning.text", "index": 0, "signature": "sig"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xyz"},
    ]
    payloads = [chunk({"reasoning_details": [item]}) for item in details]
    extra = {"google": {"thought_signature": "s"}}
    payloads.append(chunk(call(0, id="a", name="f", arguments="{}", extra_content=extra)))
    result = Result(*payloads, chunk(finish="tool_calls"), DONE)
    assert [b["type"] for b in result.blocks] == ["reasoning", "tool-call"]
    assert result.blocks[0]["text"] == "ab"
    assert result.replay == {
        "response": {
            "v": 1,
            "reasoningDetails": [
                {"type": "reasoning.text", "index": 0, "signature": "sig", "text": "ab"},
                {"type": "reasoning.encrypted", "index": 1, "data": "xyz"},
            ],
        },
        "blocks": [None, {"extraContent": extra}],
    }


def test_details_without_text_show_no_block() -> None:
    """A bare signature is kept, not shown."""
    detail = {"type": "reasoning.text", "index": 0, "signature": "sig"}
    payloads = (chunk({"reasoning": None, "reasoning_details": [detail]}), chunk({"content": "Hi"}))
    result = Result(*payloads, chunk(finish="stop"), DONE)
    assert result.blocks == [{"type": "text", "text": "Hi"}]
    assert result.replay is not None


def test_a_plain_answer_has_no_replay_state() -> None:
    """Nothing to keep, nothing kept."""
    assert Result(chunk({"content": "x"}), DONE).replay is None


@pytest.mark.parametrize("kind", ["text", "call", "details"])
def test_the_cost_is_linear(kind: str) -> None:
    """A hundred thousand chunks cost no more than twelve times ten thousand."""
    delta: dict[str, Any] = {
        "text": {"content": "xxxxxxxx"},
        "call": call(0, arguments="xxxxxxxx"),
        "details": {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "x"}]},
    }[kind]
    payload = chunk(delta)

    def cost_s(count: int) -> float:
        translator = Translator(LENIENT, in_band_failure)
        start = time.process_time()
        for _ in range(count // 10):
            translator.feed([payload] * 10)
        translator.end()
        return time.process_time() - start

    # Both of a pair run under what the machine does at that moment; the best pair counts.
    ratios = (cost_s(100_000) / max(cost_s(10_000), 0.01) for _ in range(5))
    assert min(ratios) <= 12
