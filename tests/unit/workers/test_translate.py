"""The translator: blocks, tool calls in all their forms, usage, ends, errors."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from trunkline_protocol.chunks import BlockEnd, BlockStart, Finish, StreamChunk, Usage
from trunkline_protocol.grammar import GrammarChecker
from trunkline_protocol.http_failure import in_band_failure
from trunkline_workers.adapters.chat_completions.profiles import PROFILES, ResponseRules
from trunkline_workers.adapters.chat_completions.translate import DONE, Translator
from trunkline_workers.sse import ErrorEvent

LENIENT = ResponseRules()
EXACT = PROFILES["deepseek"].response


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


# --- text and reasoning -----------------------------------------------------------------------


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


# --- tool calls -------------------------------------------------------------------------------


def test_parallel_calls_without_index_are_separate() -> None:
    """No index, two ids: two calls; a nameless piece continues the last."""
    both = {"tool_calls": call(id="a", name="f", arguments="{}")["tool_calls"] * 1}
    both["tool_calls"] += call(id="b", name="f", arguments='{"x":')["tool_calls"]
    assert calls_of(both, call(arguments="1}")) == [("a", "f", "{}"), ("b", "f", '{"x":1}')]


@pytest.mark.parametrize("index", [0, 1])
def test_a_call_without_index_then_one_with(index: int) -> None:
    """A later index never points at the call that had none."""
    found = calls_of(
        call(id="a", name="f", arguments="{}"),
        call(index, id="b", name="g", arguments='{"x":'),
        call(index, arguments="2}"),
    )
    assert found == [("a", "f", "{}"), ("b", "g", '{"x":2}')]


def test_a_nameless_piece_with_a_late_index_continues_the_unindexed_call() -> None:
    """An index that appears only on continuations belongs to the call before."""
    found = calls_of(call(id="a", name="f", arguments='{"x":'), call(0, arguments="1}"))
    assert found == [("a", "f", '{"x":1}')]


@pytest.mark.parametrize("blank", [None, ""])
def test_a_blank_id_or_name_changes_nothing(blank: str | None) -> None:
    """Continuations with null or empty identity keep it."""
    found = calls_of(
        call(0, id="a", name="f", arguments='{"x":'), call(0, id=blank, name=blank, arguments="1}")
    )
    assert found == [("a", "f", '{"x":1}')]


def test_another_id_and_name_under_a_used_index_is_another_call() -> None:
    """Providers that say index 0 for every call do not merge them."""
    found = calls_of(
        call(0, id="a", name="f", arguments="{}"),
        call(0, id="b", name="g", arguments='{"x":'),
        call(0, id="b", name="g", arguments="1}"),
    )
    assert found == [("a", "f", "{}"), ("b", "g", '{"x":1}')]


def test_an_id_that_changes_without_a_name_continues() -> None:
    """A provider that draws an id per piece makes one call."""
    found = calls_of(call(0, id="a", name="f", arguments="{"), call(0, id="b", arguments="}"))
    assert found == [("b", "f", "{}")]


def test_a_known_id_under_a_new_index_continues() -> None:
    """A provider that counts the index up per piece makes one call."""
    found = calls_of(call(0, id="a", name="f", arguments="{"), call(1, id="a", arguments="}"))
    assert found == [("a", "f", "{}")]


@pytest.mark.parametrize("index", ["0", 0.0])
def test_an_index_that_is_no_integer_counts_as_one(index: object) -> None:
    """`"0"` and `0.0` are 0."""
    piece = call(id="a", arguments="}")
    piece["tool_calls"][0]["index"] = index
    assert calls_of(call(0, id="a", name="f", arguments="{"), piece) == [("a", "f", "{}")]


@pytest.mark.parametrize("arguments", ["", "  ", None])
def test_blank_arguments_become_an_object(arguments: str | None) -> None:
    """A tool without parameters can be run."""
    found = calls_of(call(0, id="a", name="now", arguments=arguments))
    assert [(each[0], json.loads(each[2])) for each in found] == [("a", {})]


def test_a_call_without_a_function_keeps_its_place() -> None:
    """Missing parts are no reason to lose a call."""
    assert calls_of({"tool_calls": [{"index": 0, "id": "a"}]}) == [("a", "", "{}")]


def test_arguments_as_an_object_are_written_once() -> None:
    """An object becomes compact JSON, an identical repeat is dropped."""
    piece = call(0, id="a", name="f", arguments={"q": "x y"})
    assert calls_of(piece, piece) == [("a", "f", '{"q":"x y"}')]


def test_a_whole_text_that_is_repeated_is_dropped() -> None:
    """The same complete arguments sent again are not appended."""
    piece = call(0, id="a", name="f", arguments='{"q":1}')
    assert calls_of(piece, piece) == [("a", "f", '{"q":1}')]


def test_two_different_objects_are_malformed() -> None:
    """A call can't have two sets of arguments."""
    first, second = (call(0, id="a", name="f", arguments={"q": n}) for n in (1, 2))
    result = Result(chunk(first), chunk(second), DONE)
    assert result.thrown is not None
    assert result.thrown.code == "MALFORMED_RESPONSE"


def test_the_old_function_call_is_a_tool_call() -> None:
    """`function_call` is read too."""
    delta = {"function_call": {"name": "f", "arguments": "{}"}}
    result = Result(chunk(delta), chunk(finish="function_call"), DONE)
    assert (result.finish, result.blocks[0]["name"]) == ("tool-calls", "f")


@pytest.mark.parametrize(
    ("output", "finish"),
    [(64, "max-tokens"), (10, "MALFORMED_RESPONSE"), (None, "MALFORMED_RESPONSE")],
)
def test_cut_arguments_are_never_a_runnable_call(output: int | None, finish: str) -> None:
    """Arguments that do not parse end in a limit if it was reached, else in a failure."""
    usage = {} if output is None else {"usage": {"prompt_tokens": 1, "completion_tokens": output}}
    delta = call(0, id="a", name="f", arguments='{"q":"abc')
    result = Result(chunk(delta), chunk(finish="tool_calls", **usage), DONE, max_tokens=64)
    assert result.finish == finish


def test_raw_line_ends_in_arguments_are_accepted() -> None:
    """Control characters in strings are common and harmless."""
    assert calls_of(call(0, id="a", name="f", arguments='{"t":"a\nb"}'))[0][2] == '{"t":"a\nb"}'


def test_stop_with_calls_is_tool_calls() -> None:
    """A provider that says stop after calls wants them run."""
    delta = call(0, id="a", name="f", arguments="{}")
    assert Result(chunk(delta), chunk(finish="stop"), DONE).finish == "tool-calls"
    assert Result(chunk(delta), DONE).finish == "tool-calls"


def test_tool_calls_without_calls_is_stop() -> None:
    """A reason that nothing bears out is corrected, and an empty answer stays a failure."""
    assert Result(chunk({"content": "x"}), chunk(finish="tool_calls"), DONE).finish == "stop"
    assert Result(chunk(finish="tool_calls"), DONE).finish == "EMPTY_RESPONSE"


def test_deepseeks_calls_are_passed_on_unchanged() -> None:
    """The exact profile repairs nothing."""
    delta = call(0, id="a", name="f", arguments="{bad")
    result = Result(chunk(delta), chunk(finish="tool_calls"), DONE, rules=EXACT)
    assert (result.finish, result.blocks[0]["arguments"]) == ("tool-calls", "{bad")


def test_a_call_without_an_id_gets_one() -> None:
    """It could not be answered otherwise; ids of one response differ."""
    deltas = (call(0, name="f", arguments="{}"), call(1, id="", name="g", arguments="{}"))
    result = Result(*map(chunk, deltas), chunk(finish="tool_calls"), DONE, id_prefix="made_")
    assert [block["id"] for block in result.blocks] == ["made_0", "made_1"]


# --- usage ------------------------------------------------------------------------------------

COUNTS = {"prompt_tokens": 7, "completion_tokens": 2}


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


# --- ends and errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("stop", "stop"),
        ("STOP", "stop"),
        ("end_turn", "stop"),
        ("eos", "stop"),
        ("length", "max-tokens"),
        ("MAX_TOKENS", "max-tokens"),
        ("content_filter", "CONTENT_FILTER"),
        ("SAFETY", "CONTENT_FILTER"),
        ("insufficient_system_resource", "INSUFFICIENT_SYSTEM_RESOURCE"),
        ("abort", "SERVER"),
        ("weird", "WEIRD"),
        (None, "stop"),
        ("", "stop"),
    ],
)
def test_finish_reasons(reason: str | None, kind: str) -> None:
    """Known words map, unknown ones become the code of a failure."""
    assert Result(chunk({"content": "x"}), chunk(finish=reason), DONE).finish == kind


def test_a_finish_reason_object_is_read() -> None:
    """SGLang's object has the reason in its type."""
    payload = json.dumps({"choices": [{"finish_reason": {"type": "length", "length": 3}}]}).encode()
    assert Result(chunk({"content": "x"}), payload, DONE).finish == "max-tokens"


def test_a_null_reason_after_the_real_one_changes_nothing() -> None:
    """Azure's trailing choice is no finish."""
    result = Result(chunk({"content": "x"}), chunk(finish="length"), chunk(finish=None), DONE)
    assert result.finish == "max-tokens"


def test_the_end_after_a_finish_reason_is_normal() -> None:
    """`[DONE]` is not required."""
    assert Result(chunk({"content": "x"}), chunk(finish="stop")).finish == "stop"


def test_the_end_without_a_finish_reason_is_a_failure() -> None:
    """A cut answer is never a whole one; its blocks stay open."""
    result = Result(chunk({"content": "x"}, usage=COUNTS))
    assert result.thrown is not None
    assert result.thrown.code == "STREAM_CLOSED"
    assert result.usage == {"inputTokens": 7, "outputTokens": 2}
    assert result.blocks == []


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"error": {"message": "slow down", "code": 429}}, "RATE_LIMIT"),
        ({"error": "boom"}, "SERVER"),
        (
            {"choices": [], "error": {"code": 400, "message": "prompt is too long: 2 > 1"}},
            "CONTEXT_WINDOW_EXCEEDED",
        ),
        ({"object": "error", "message": "bad", "code": 400}, "INVALID_REQUEST"),
        ({"type": "error", "error": {"type": "overloaded_error"}}, "SERVER"),
        ({"choices": [{"delta": {}, "error": {"code": 502, "message": "x"}}]}, "SERVER"),
        ({"detail": "nope"}, "SERVER"),
        ({"x_groq": {"error": "failed"}}, "SERVER"),
    ],
)
def test_errors_inside_a_stream_end_it(payload: dict[str, Any], code: str) -> None:
    """Whatever the shape, the error ends the stream, also after text."""
    for before in ((), (chunk({"content": "x"}),)):
        result = Result(*before, json.dumps(payload).encode(), chunk(finish="stop"), DONE)
        assert result.thrown is not None
        assert result.thrown.code == code


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b'{"message":"overloaded"}', "SERVER"),
        (b'{"error":{"code":429,"message":"x"}}', "RATE_LIMIT"),
        (b"rate limit reached", "RATE_LIMIT"),
    ],
)
def test_an_event_that_says_error_is_one(payload: bytes, code: str) -> None:
    """The field of the event counts, whatever its data looks like."""
    result = Result(chunk({"content": "x"}), ErrorEvent(payload), DONE)
    assert result.thrown is not None
    assert result.thrown.code == code


def test_events_that_ran_together_are_taken_apart() -> None:
    """A server that forgets the blank lines is still understood; broken JSON is not."""
    joined = b"\n".join([chunk({"content": "a"}), chunk({"content": "b"}, "stop"), DONE])
    assert Result(joined).blocks == [{"type": "text", "text": "ab"}]
    broken = Result(chunk({"content": "a"}) + b"\n{")
    assert broken.thrown is not None
    assert broken.thrown.code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize("payload", [{"error": None}, {"error": {}}, {"message": "queued"}, {}])
def test_what_only_looks_like_an_error_is_none(payload: dict[str, Any]) -> None:
    """A null error and a status message change nothing."""
    result = Result(json.dumps(payload).encode(), chunk({"content": "x"}), DONE)
    assert result.finish == "stop"


@pytest.mark.parametrize(
    "payload",
    [
        b"null",
        b"[]",
        b'"x"',
        b"1",
        b'{"choices":[null]}',
        b'{"choices":"ab"}',
        b'{"choices":[{"delta":"x"}]}',
        b'{"choices":[{"delta":{"tool_calls":[null]}}]}',
        b'{"choices":[{"delta":{"tool_calls":"x"}}]}',
        b"{",
        b"[done]",
        b"\xff",
        b'{"x":' + b"[" * 3000,
    ],
)
def test_payloads_of_the_wrong_shape_are_malformed(payload: bytes) -> None:
    """Never a raw exception."""
    result = Result(chunk({"content": "x"}), payload, DONE)
    assert result.thrown is not None
    assert result.thrown.code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize("rules", [LENIENT, EXACT])
def test_half_a_character_is_replaced(rules: ResponseRules) -> None:
    """Tokenizers cut characters; the text goes on."""
    payload = b'{"choices":[{"delta":{"content":"a\xe4b"}}]}'
    assert Result(payload, DONE, rules=rules).blocks == [{"type": "text", "text": "a\ufffdb"}]


def test_numbers_that_json_does_not_have() -> None:
    """Python's servers write them into logprobs; DeepSeek's API has none."""
    payload = b'{"choices":[{"delta":{"content":"a"},"logprobs":[NaN,-Infinity]}]}'
    assert Result(payload, DONE).blocks == [{"type": "text", "text": "a"}]
    strict = Result(payload, DONE, rules=EXACT)
    assert strict.thrown is not None
    assert strict.thrown.code == "MALFORMED_RESPONSE"


def test_deep_nesting_of_an_extra_is_harmless() -> None:
    """A field nobody reads may be as deep as it likes."""
    payload = b'{"x":' + b"[" * 5000 + b'"]"' + b"]" * 5000 + b"," + chunk({"content": "x"})[1:]
    assert Result(payload, DONE).blocks == [{"type": "text", "text": "x"}]


def test_an_empty_answer_beyond_the_window_is_an_overflow() -> None:
    """A silent overflow is named, if the window is known."""
    payload = chunk(finish="stop", usage={"prompt_tokens": 36_100, "completion_tokens": 0})
    assert Result(payload, DONE, context_window=32_768).finish == "CONTEXT_WINDOW_EXCEEDED"
    assert Result(payload, DONE).finish == "EMPTY_RESPONSE"


def test_nothing_after_the_end_is_read() -> None:
    """Whatever follows `[DONE]` is dropped."""
    translator = Translator(LENIENT, in_band_failure)
    chunks = translator.feed([chunk({"content": "x"}), DONE, b"garbage"])
    assert isinstance(chunks[-1], Finish)
    assert translator.feed([b"garbage"]) == []
    assert translator.failure is None


@pytest.mark.parametrize(
    ("pending", "code"),
    [(DONE, None), (chunk(finish="stop"), None), (b'{"choices":[', "STREAM_CLOSED")],
)
def test_an_event_without_its_blank_line(pending: bytes, code: str | None) -> None:
    """It counts if it is whole by its own framing."""
    translator = Translator(LENIENT, in_band_failure)
    translator.feed([chunk({"content": "x"})])
    translator.end(pending)
    assert (translator.failure.code if translator.failure else None) == code


@pytest.mark.parametrize("wrap", ["{}", "[{}]", "junk\n{}\n"])
def test_an_error_beside_the_events_is_found(wrap: str) -> None:
    """A JSON line without `data:` says why the stream ended."""
    error = json.dumps({"error": {"code": 400, "message": "Blocked"}})
    translator = Translator(LENIENT, in_band_failure)
    translator.end(None, wrap.replace("{}", error).encode())
    assert translator.failure is not None
    assert (translator.failure.code, translator.failure.message) == ("INVALID_REQUEST", "Blocked")


def test_a_whole_completion_is_adapted() -> None:
    """A JSON answer makes the chunks a stream would."""
    message = {"content": "Hi", **call(id="a", name="f", arguments="{}")}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": COUNTS}
    for rules in (LENIENT, EXACT):
        translator = Translator(rules, in_band_failure)
        chunks = translator.whole(json.dumps(body).encode())
        starts = [c.block_type for c in chunks if isinstance(c, BlockStart)]
        assert starts == ["text", "tool-call"]
        assert chunks[-1] == Finish(chunks[-1].reason)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"error":{"message":"no","code":401}}', "AUTH"),
        (b'[{"error":{"code":429,"message":"x"}}]', "RATE_LIMIT"),
        (b"{}", "MALFORMED_RESPONSE"),
        (b'{"a":1}\n{"a":2}', "MALFORMED_RESPONSE"),
    ],
)
def test_a_json_answer_that_is_no_completion(body: bytes, code: str) -> None:
    """It fails with its own error or as malformed, never as an empty success."""
    translator = Translator(LENIENT, in_band_failure)
    translator.whole(body)
    assert translator.failure is not None
    assert translator.failure.code == code


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

    # The best of several runs: what else the machine does only adds.
    small = min(cost_s(10_000) for _ in range(5))
    assert min(cost_s(100_000) for _ in range(3)) <= 12 * max(small, 0.01)
