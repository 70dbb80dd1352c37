"""The debug switch: what is asked and answered is written, and nothing that looks like a key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from trunkline_protocol.finish import FinishReason
from trunkline_protocol.frames import Start
from trunkline_protocol.ids import CallId
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.prompts import MAX_TEXT_CHARS, WARNING, PromptLog
from trunkline_workers.tracing import AttemptNotes, note_request

from tests.unit.workers.a_worker import CALL, a_start
from tests.unit.workers.test_tracing import Spans

KEY = (CALL, 0)
STOP = FinishReason("stop")
SHA = "sha256:" + "0" * 64
IMAGE = {"attachmentId": SHA, "mediaType": "image/png", "bytes": 1, "width": 1, "height": 1}


def a_message(role: str, *content: dict[str, object]) -> dict[str, object]:
    return {"id": "1", "role": role, "content": list(content), "source": {"kind": "user"}}


def a_request(*messages: dict[str, object], **fields: object) -> GenerateOptions:
    asked = {"provider": "route", "model": "model", "messages": list(messages), **fields}
    return GenerateOptions.from_dict(asked)


class Lines:
    def __init__(self) -> None:
        self.all: list[str] = []

    def said(self, what: str) -> dict[str, Any]:
        """Return what the one line of a kind holds."""
        (line,) = [line for line in self.all if line.startswith(f"{what} ")]
        head, brace, text = line.partition("{")
        assert head == f"{what} call={CALL.hex()} attempt=0 "
        return json.loads(brace + text)


def a_log() -> tuple[PromptLog, Lines]:
    lines = Lines()
    return PromptLog(lines.all.append, lambda text: text.replace("sk-1", "[redacted]")), lines


def test_it_says_loudly_that_it_is_on() -> None:
    assert a_log()[1].all == [WARNING]


def test_every_kind_of_block_is_shown_without_keys() -> None:
    log, lines = a_log()
    call = {"type": "tool-call", "id": "t", "name": "look", "arguments": '{"k": "sk-1"}'}
    result = {"type": "tool-result", "toolCallId": "t", "content": [{"type": "text", "text": "r"}]}
    request = a_request(
        a_message("user", {"type": "text", "text": "my key is sk-1"}),
        a_message("user", {"type": "image", "attachment": IMAGE}, {"type": "later"}),
        a_message("assistant", {"type": "reasoning", "text": "hm"}, call),
        a_message("user", result),
        system="be brief",
        tools=[{"name": "look", "description": "looks", "parameters": {"type": "object"}}],
    )
    attributes = log.request(KEY, request)
    said = lines.said("prompt")
    assert said["gen_ai.system_instructions"] == [{"type": "text", "content": "be brief"}]
    assert [tool["name"] for tool in said["gen_ai.tool.definitions"]] == ["look"]
    roles = [message["role"] for message in said["gen_ai.input.messages"]]
    assert roles == ["user", "user", "assistant", "tool"]
    parts = [part for message in said["gen_ai.input.messages"] for part in message["parts"]]
    assert parts == [
        {"type": "text", "content": "my key is [redacted]"},
        {"type": "image", "attachment": SHA},
        {"type": "later"},
        {"type": "reasoning", "content": "hm"},
        {"type": "tool_call", "id": "t", "name": "look", "arguments": '{"k": "[redacted]"}'},
        {"type": "tool_call_response", "id": "t", "response": [{"type": "text", "content": "r"}]},
    ]
    assert {name: json.loads(text) for name, text in attributes.items()} == said


def test_a_long_conversation_is_shown_from_its_end() -> None:
    log, lines = a_log()
    old = a_message("user", {"type": "text", "text": "old" * 10})
    new = a_message("user", {"type": "text", "text": "n" * (MAX_TEXT_CHARS - 3)})
    log.request(KEY, a_request(old, new))
    first, last = lines.said("prompt")["gen_ai.input.messages"]
    assert first["parts"][0]["content"] == "old… (27 characters more)"
    assert set(last["parts"][0]["content"]) == {"n"}


class Sink:
    """A host's side of a stream."""

    def __init__(self) -> None:
        self.pushed: list[Any] = []
        self.finished: list[str] = []
        self.reported: list[str] = []

    def ask_room(self, call: CallId, attempt: int) -> int:
        return 7

    def push(self, call: CallId, attempt: int, arrays: Sequence[Sequence[Any]]) -> int:
        self.pushed += arrays
        return 6

    def finish(
        self,
        call: CallId,
        attempt: int,
        finish: Finish,
        usage: TokenUsage | None,
        arrays: Sequence[Sequence[Any]],
    ) -> None:
        self.pushed += arrays
        self.finished.append(finish.reason.kind)

    def report(self, diagnostic: str) -> None:
        self.reported.append(diagnostic)


def test_the_answer_is_seen_on_its_way_and_goes_on_unchanged() -> None:
    log, lines = a_log()
    log.request(KEY, a_request())
    sink = Sink()
    tap = log.tap(sink)
    one, two = TextDelta(0, "sk-").to_array(), TextDelta(0, "1 ok").to_array()
    assert tap.ask_room(*KEY) == 7
    assert tap.push(*KEY, [one]) == 6
    tap.finish(*KEY, Finish(STOP), None, [two])
    tap.report("x")
    assert (sink.pushed, sink.finished, sink.reported) == ([one, two], ["stop"], ["x"])
    log.end(KEY, STOP)
    (answer,) = lines.said("answer")["gen_ai.output.messages"]
    assert answer == {
        "role": "assistant",
        "parts": [{"type": "text", "content": "[redacted] ok"}],
        "finish_reason": "stop",
    }


def test_an_answer_that_is_cut_shows_what_had_come() -> None:
    """Also in the middle of a block that its chunks so far do not make whole."""
    log, lines = a_log()
    log.request(KEY, a_request())
    chunks = [TextDelta(0, "half"), ToolCallDelta(1, "t", "look", '{"a'), BlockStart(2, "later")]
    log.chunks(KEY, [chunk.to_array() for chunk in chunks])
    log.end(KEY, FinishReason("stop"))
    (answer,) = lines.said("answer")["gen_ai.output.messages"]
    assert answer["parts"] == [{"type": "text", "content": "half"}]
    log.end((CallId(b"x" * 16), 0), STOP)  # nothing had come
    assert lines.all[-1].endswith('"parts": [], "finish_reason": "stop"}]}')


def test_of_a_long_answer_the_beginning_is_kept() -> None:
    """Memory must not grow with it; the end says how much is left out."""
    log, lines = a_log()
    log.request(KEY, a_request())
    for _ in range(10):
        log.chunks(KEY, [TextDelta(0, "a" * (MAX_TEXT_CHARS // 4)).to_array()] * 10)
    whole = {"type": "text", "text": "a" * (MAX_TEXT_CHARS * 25)}
    log.chunks(KEY, [BlockEnd(0, whole).to_array(), TextDelta(1, "b" * 7).to_array()])
    log.end(KEY, STOP)
    (answer,) = lines.said("answer")["gen_ai.output.messages"]
    assert [part["content"] for part in answer["parts"]] == [
        "a" * MAX_TEXT_CHARS,
        f"… ({MAX_TEXT_CHARS * 24 + 7} characters more)",
    ]


def test_a_whole_block_without_pieces_counts_too() -> None:
    log, lines = a_log()
    log.request(KEY, a_request())
    block = {"type": "text", "text": "c" * MAX_TEXT_CHARS}
    log.chunks(KEY, [BlockEnd(index, block).to_array() for index in range(3)])
    log.end(KEY, STOP)
    (answer,) = lines.said("answer")["gen_ai.output.messages"]
    assert answer["parts"][-1]["content"] == f"… ({MAX_TEXT_CHARS * 2} characters more)"
    assert len(answer["parts"]) == 2


def test_chunks_behind_the_end_are_not_kept() -> None:
    """An adapter may go on for a moment after its attempt was cancelled."""
    log, lines = a_log()
    log.request(KEY, a_request())
    log.end(KEY, FinishReason("stop"))
    log.chunks(KEY, [TextDelta(0, "late").to_array()])
    assert log._answers == {}
    assert "late" not in "".join(lines.all)


def test_the_notes_hand_it_to_log_and_span_only_if_it_is_on() -> None:
    log, lines = a_log()
    request = a_request(a_message("user", {"type": "text", "text": "hello"}))
    start: Start = a_start()
    for prompts in (None, log):
        spans = Spans()
        notes = AttemptNotes(spans, prompts=prompts)
        notes.begin(start).run(note_request, request)
        notes.end(*KEY, STOP, None, 0.5)
        ((_, span),) = spans.begun
        assert span.requests == [request]
        assert ("gen_ai.input.messages" in span.texts) is (prompts is not None)
        assert ("gen_ai.output.messages" in span.texts) is (prompts is not None)
    assert lines.said("prompt")
    quiet = AttemptNotes(prompts=log)
    quiet.begin(start).run(note_request, request)
    quiet.end(*KEY, STOP, None)
    note_request(request)  # outside of any attempt
    assert len(lines.all) == 5
