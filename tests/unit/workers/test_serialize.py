"""The request body: what the vectors do not cover."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_protocol.content import (
    ContentBlock,
    ImageAttachment,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from trunkline_protocol.failure import LlmError
from trunkline_protocol.messages import Message, ModelMessageSource, UserMessageSource
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.adapters.chat_completions.profiles import PROFILES
from trunkline_workers.adapters.chat_completions.serialize import (
    RequestDefaults,
    ResolvedImage,
    build_body,
)
from trunkline_workers.images import image_blocks

from tests.support.calls import a_request

REPLAY = {
    "response": {"v": 1, "reasoningDetails": [{"type": "reasoning.text", "text": "mull"}]},
    "blocks": [None, {"extraContent": {"google": {"thought_signature": "s"}}}],
}


def an_image(number: int = 1) -> ImageBlock:
    attachment = ImageAttachment(
        attachment_id=f"sha256:{number:064x}", media_type="image/png", bytes=3, width=1, height=1
    )
    return ImageBlock(attachment=attachment)


def user(*content: ContentBlock) -> Message:
    return Message(id="u", role="user", content=content, source=UserMessageSource())


def assistant(*content: ContentBlock, replay: object = None) -> Message:
    source = ModelMessageSource(provider="p", model="m", replay_state=replay)
    return Message(id="a", role="assistant", content=content, source=source)


def body(options: GenerateOptions, profile: str = "custom", **more: Any) -> dict[str, Any]:
    return build_body(options, PROFILES[profile].request, **more)


def code_of(options: GenerateOptions, profile: str = "custom", **more: Any) -> str:
    with pytest.raises(LlmError) as caught:
        body(options, profile, **more)
    return caught.value.code


def test_images_are_data_urls_after_the_text() -> None:
    """A user message with an image has parts; each image of a request is named once."""
    image = an_image()
    options = a_request(messages=(user(TextBlock(text="see"), image), user(image)))
    assert image_blocks(options) == [image]
    url = "data:image/png;base64,AAAA"
    found = body(options, images={image.attachment.attachment_id: ResolvedImage(url=url)})
    part = {"type": "image_url", "image_url": {"url": url}}
    assert found["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "see"}, part]},
        {"role": "user", "content": [part]},
    ]


def test_an_image_the_provider_holds_is_named_by_its_file() -> None:
    """The files form carries an id instead of bytes."""
    image = an_image()
    images = {image.attachment.attachment_id: ResolvedImage(file_id="file-1")}
    found = body(a_request(messages=(user(image),)), images=images)
    assert found["messages"][0]["content"] == [{"type": "file", "file": {"file_id": "file-1"}}]


def test_images_of_tool_results_follow_in_a_user_message() -> None:
    """A tool message has only text."""
    image = an_image()
    result = ToolResultBlock(tool_call_id="c", content=(TextBlock(text="shot"), image))
    images = {image.attachment.attachment_id: ResolvedImage(url="data:,")}
    found = body(a_request(messages=(user(result),)), images=images)["messages"]
    assert [message["role"] for message in found] == ["tool", "user"]
    assert found[0]["content"] == "shot"


def test_images_that_cannot_go_out_are_refused() -> None:
    """No support, no bytes, or a role that shows none."""
    options = a_request(messages=(user(an_image()),))
    assert code_of(options, "deepseek") == "UNSUPPORTED_CONTENT"
    assert code_of(options) == "ATTACHMENT_MISSING"
    assert code_of(a_request(messages=(assistant(an_image()),))) == "UNSUPPORTED_CONTENT"


def test_unknown_options_are_refused() -> None:
    """What this API has no field for is named, not dropped."""
    options = GenerateOptions.from_dict({**a_request().to_dict(), "topK": 3})
    with pytest.raises(LlmError, match="topK") as caught:
        body(options)
    assert caught.value.code == "UNSUPPORTED"


def test_too_many_stop_texts_are_refused() -> None:
    """A provider's bound is checked before the request."""
    options = a_request(stop=("a", "b", "c", "d", "e"))
    assert code_of(options, "openai") == "UNSUPPORTED"
    assert body(options)["stop"] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("profile", "effort", "added"),
    [
        ("openai", "low", {"reasoning_effort": "low"}),
        ("openrouter", "high", {"reasoning": {"effort": "high"}}),
        ("openrouter", "none", {"reasoning": {"enabled": False}}),
        ("vllm", "off", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("sglang", "on", {"chat_template_kwargs": {"enable_thinking": True}}),
        ("llama.cpp", "off", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("ollama", "medium", {"reasoning_effort": "medium"}),
        ("deepseek", "max", {"thinking": {"type": "enabled"}, "reasoning_effort": "max"}),
    ],
)
def test_efforts_by_profile(profile: str, effort: str, added: dict[str, object]) -> None:
    """Each provider's own way to ask for reasoning."""
    found = body(a_request(reasoning_effort=effort), profile)
    assert added.items() <= found.items()


def test_an_effort_a_profile_lacks_is_refused() -> None:
    """Also where a profile has none at all."""
    assert code_of(a_request(reasoning_effort="low")) == "UNSUPPORTED_REASONING_EFFORT"


def test_limits_have_the_name_the_provider_wants() -> None:
    """OpenAI's field is another one."""
    assert body(a_request(max_tokens=5), "openai")["max_completion_tokens"] == 5
    assert body(a_request(max_tokens=5))["max_tokens"] == 5


def test_extra_body_never_replaces_a_field() -> None:
    """The configuration adds; the call wins."""
    defaults = RequestDefaults(extra_body={"seed": 1, "model": "other", "stream": False})
    found = body(a_request(), defaults=defaults)
    assert (found["seed"], found["model"], found["stream"]) == (1, "m", True)


CALL = ToolCallBlock(id="c", name="f", arguments="{}")


def test_replay_state_goes_back_verbatim() -> None:
    """Details replace the reasoning text; extra content returns to its call."""
    message = assistant(ReasoningBlock(text="mull"), CALL, replay=REPLAY)
    found = body(a_request(messages=(message,)), "openrouter")["messages"][0]
    assert found["reasoning_details"] == [{"type": "reasoning.text", "text": "mull"}]
    assert found["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s"}}
    assert "reasoning" not in found


@pytest.mark.parametrize(
    ("replay", "problem"),
    [
        ("x", "no object"),
        ({"blocks": []}, "no response part"),
        ({"response": {"v": 2}}, "version 2"),
        ({"response": {"v": 1, "reasoningDetails": 3}}, "no list"),
        ({"response": {"v": 1}, "blocks": [None]}, "do not match"),
    ],
)
def test_unusable_replay_state_degrades_one_message(replay: object, problem: str) -> None:
    """The request goes out with the plain content, and a diagnostic says why."""
    lines: list[str] = []
    messages = (assistant(ReasoningBlock(text="mull"), CALL, replay=replay),) * 2
    found = body(a_request(messages=messages), "openrouter", report=lines.append)["messages"]
    assert [message["reasoning"] for message in found] == ["mull", "mull"]
    assert len(lines) == 2
    assert problem in lines[0]


def test_reasoning_goes_back_where_the_profile_says_so() -> None:
    """DeepSeek needs it on every reasoned turn, others do not want it."""
    messages = (assistant(ReasoningBlock(text="mull"), TextBlock(text="x")),)
    assert body(a_request(messages=messages), "deepseek")["messages"][0] == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "mull",
    }
    assert body(a_request(messages=messages), "openai")["messages"][0] == {
        "role": "assistant",
        "content": "x",
    }
