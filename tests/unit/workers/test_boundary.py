"""The adapter boundary: what adapters see, and one finish whatever they do."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    Usage,
    chunks_from_arrays,
)
from trunkline_protocol.content import ImageAttachment, ImageBlock, TextBlock
from trunkline_protocol.failure import Code, LlmError, LlmFailure
from trunkline_protocol.messages import (
    ModelMessageSource,
    UserMessageSource,
    create_message,
    create_user_message,
)
from trunkline_protocol.models import LlmResolvedModelInfo
from trunkline_protocol.options import GenerateOptions
from trunkline_protocol.redact import redactor
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter
from trunkline_workers.boundary import (
    MAX_FAILURE_CHARS,
    StreamGuard,
    call_config,
    finish_of,
    options_for_adapter,
    resolve_model,
)

from tests.support.calls import a_request

STOP = Finish(FinishReason("stop"))
TEXT: dict[str, object] = {"type": "text", "text": "ab"}


def as_is(text: str) -> str:
    return text


def a_guard(*, is_strict: bool = False) -> StreamGuard:
    return StreamGuard(as_is, is_strict=is_strict)


def code_of(finish: Finish | None) -> str:
    assert finish is not None
    assert finish.reason.failure is not None
    return finish.reason.failure.code


# --- what comes out --------------------------------------------------------------------------


def test_chunks_become_arrays_and_the_first_finish_ends_it() -> None:
    guard = a_guard()
    chunks: list[Any] = [
        BlockStart(0, "reasoning"),
        ReasoningDelta(0, "hm"),
        BlockEnd(0, {"type": "reasoning", "text": "hm"}),
        BlockStart(1, "text"),
        TextDelta(1, "ab"),
        BlockEnd(1, TEXT),
        ToolCallDelta(2, "id", "{}", "tool"),
    ]
    for chunk in chunks:
        assert not guard.take(chunk)
    assert guard.take([Usage(TokenUsage(1, 2)), STOP, TextDelta(9, "late"), STOP])
    assert guard.end() == STOP
    assert guard.usage == TokenUsage(1, 2)
    assert guard.dropped_count == 2
    sent = chunks_from_arrays(guard.arrays)
    assert sent[5] == BlockEnd(1, None)  # its deltas said it all
    assert sent[:2] == chunks[:2]


def test_a_block_end_that_says_more_than_its_deltas_keeps_its_block() -> None:
    guard = a_guard()
    guard.take([TextDelta(0, "a"), BlockEnd(0, TEXT)])
    assert guard.arrays[1][2] == TEXT


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        5,
        "text",
        {"type": "text-delta"},
        (),
        TextDelta(0, 5),  # pyright: ignore[reportArgumentType]
        TextDelta(-1, "a"),
        TextDelta("0", "a"),  # pyright: ignore[reportArgumentType]
        BlockStart(0, None),  # pyright: ignore[reportArgumentType]
        BlockEnd(0, {"no": "type"}),
        BlockEnd(0, None),
        BlockEnd(0, 7),  # pyright: ignore[reportArgumentType]
        ToolCallDelta(0, 5, "{}"),  # pyright: ignore[reportArgumentType]
        Usage({"inputTokens": 1}),  # pyright: ignore[reportArgumentType]
        Finish("stop"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_garbage_ends_the_stream_in_a_clear_error(garbage: object) -> None:
    guard = a_guard()
    guard.take(TextDelta(0, "good"))
    assert guard.take(garbage)
    assert code_of(guard.finish) == Code.INVARIANT
    assert len(guard.arrays) == 1


def test_a_stream_without_a_finish_is_closed_by_us() -> None:
    guard = a_guard()
    guard.take(TextDelta(0, "a"))
    assert code_of(guard.end()) == Code.STREAM_CLOSED


def test_a_stop_without_any_block_is_empty() -> None:
    guard = a_guard()
    assert guard.take([Usage(TokenUsage(1, 0)), STOP])
    assert code_of(guard.end()) == Code.EMPTY_RESPONSE
    for kind in ("max-tokens", "paused"):
        other = a_guard()
        other.take(Finish(FinishReason(kind)))
        assert other.end().reason.kind == kind


def test_an_in_band_failure_passes_with_its_facts() -> None:
    guard = a_guard()
    failure = LlmFailure("busy", Code.RATE_LIMIT, 429, 5.0, "r")
    guard.take(Finish(FinishReason("error", failure)))
    assert guard.end().reason.failure == failure


def test_an_error_after_the_finish_changes_nothing() -> None:
    guard = a_guard()
    guard.take([TextDelta(0, "a"), STOP])
    assert guard.fail(ValueError("late")) == STOP


def test_the_grammar_is_checked_by_a_switch() -> None:
    stray: list[Any] = [TextDelta(0, "a"), STOP]
    assert a_guard().take(stray)
    strict = a_guard(is_strict=True)
    assert strict.take(stray)
    assert code_of(strict.end()) == Code.INVARIANT
    good = a_guard(is_strict=True)
    assert good.take([BlockStart(0, "text"), TextDelta(0, "ab"), BlockEnd(0, TEXT), STOP])
    assert good.end() == STOP


# --- what was raised -------------------------------------------------------------------------


def test_an_error_keeps_its_structured_facts() -> None:
    error = LlmError.of(
        "busy", Code.RATE_LIMIT, status=429, provider_retry_after_ms=1500, request_id="req-7"
    )
    reason = finish_of(error, as_is).reason
    assert (reason.kind, reason.failure) == ("error", error.failure)


def test_the_code_aborted_is_aborted_and_foreign_errors_are_unknown() -> None:
    assert finish_of(LlmError.of("stop", Code.ABORTED), as_is).reason.kind == "aborted"
    foreign = ValueError("plain")
    foreign.code = "ABORTED"  # pyright: ignore[reportAttributeAccessIssue]
    assert finish_of(foreign, as_is).reason.kind == "error"
    assert code_of(finish_of(foreign, as_is)) == Code.UNKNOWN


def test_a_group_of_one_counts_as_its_error() -> None:
    error = LlmError.of("busy", Code.SERVER)
    inner = ExceptionGroup("tasks", [ExceptionGroup("more", [error])])
    assert code_of(finish_of(inner, as_is)) == Code.SERVER
    two = ExceptionGroup("tasks", [error, ValueError("x")])
    assert code_of(finish_of(two, as_is)) == Code.UNKNOWN


def test_texts_lose_secrets_and_length() -> None:
    clean = redactor({"MY_API_KEY": "abcdef-secret-value", "HOME": "/home/me"}, {"limit": 5})
    failure = finish_of(ValueError("bad abcdef-secret-value in /home/me"), clean).reason.failure
    assert failure is not None
    assert "secret-value" not in failure.message
    assert "/home/me" in failure.message
    long = finish_of(ValueError("x" * 100_000), clean).reason.failure
    assert long is not None
    assert len(long.message) == MAX_FAILURE_CHARS


# --- what goes in ----------------------------------------------------------------------------


def an_adapter(**fields: Any) -> ScriptedAdapter:
    return ScriptedAdapter({"models": {"m": fields}})


async def test_defaults_of_the_adapter_are_filled_in() -> None:
    adapter = an_adapter(
        defaultMaxTokens=7,
        reasoning={"efforts": [{"id": "low", "name": "Low"}], "defaultEffort": "low"},
    )
    seen = await options_for_adapter(adapter, {"custom"}, a_request())
    assert (seen.max_tokens, seen.reasoning_effort) == (7, "low")
    own = a_request(max_tokens=3, reasoning_effort="low")
    assert await options_for_adapter(adapter, {"custom"}, own) is own


async def test_an_unsupported_effort_is_refused_before_the_provider() -> None:
    with pytest.raises(LlmError) as caught:
        await options_for_adapter(an_adapter(), (), a_request(reasoning_effort="low"))
    assert caught.value.code == Code.UNSUPPORTED_REASONING_EFFORT


async def test_wrong_metadata_is_refused() -> None:
    class Odd(ScriptedAdapter):
        async def resolve_model(self, provider: str, model: str) -> LlmResolvedModelInfo:
            return LlmResolvedModelInfo(provider=provider, id=model, name="")

    with pytest.raises(LlmError) as caught:
        await resolve_model(Odd(), "p", "m")
    assert caught.value.code == Code.INVALID_MODEL_INFO


def replay_message(provider: str) -> Any:
    source = ModelMessageSource(provider=provider, model="old", replay_state={"s": 1})
    return create_message("assistant", [TextBlock(text="x")], source)


async def test_replay_state_reaches_only_the_owner_of_both_routes() -> None:
    messages = (replay_message("mine"), replay_message("foreign"))
    request = a_request(messages=messages)
    seen = await options_for_adapter(an_adapter(), {"custom", "mine"}, request)
    kept, bare = (message.source for message in seen.messages)
    assert isinstance(kept, ModelMessageSource)
    assert isinstance(bare, ModelMessageSource)
    assert (kept.replay_state, bare.replay_state) == ({"s": 1}, None)


async def test_images_are_projected_for_models_without_them() -> None:
    image = ImageBlock(
        attachment=ImageAttachment(
            attachment_id="sha256:" + "ab" * 32,
            media_type="image/png",
            bytes=3,
            width=1,
            height=1,
        )
    )
    request = a_request(messages=(create_user_message([image], UserMessageSource()),))
    seen = await options_for_adapter(an_adapter(inputModalities=["text"]), (), request)
    assert isinstance(seen.messages[0].content[0], TextBlock)
    assert await options_for_adapter(an_adapter(), (), request) is request


def test_the_call_config_is_the_part_of_a_request_that_it_names() -> None:
    request = a_request(temperature=0.5, stop=("x",), max_tokens=1)
    assert isinstance(request, GenerateOptions)
    assert call_config(request).to_dict() == {
        "provider": "custom",
        "model": "m",
        "temperature": 0.5,
        "maxTokens": 1,
        "stop": ["x"],
    }
