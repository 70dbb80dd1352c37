"""What of a request reaches an adapter."""

from __future__ import annotations

from trunkline_protocol.adapter_request import adapter_options, without_foreign_replay
from trunkline_protocol.content import ImageAttachment, ImageBlock
from trunkline_protocol.messages import Message, ModelMessageSource, UserMessageSource
from trunkline_protocol.options import GenerateOptions

IMAGE = ImageBlock(
    attachment=ImageAttachment(
        attachment_id="sha256:x", media_type="image/png", bytes=1, width=1, height=1
    )
)


def assistant(provider: str, replay_state: object = None) -> Message:
    source = ModelMessageSource.from_dict(
        {"provider": provider, "model": "m", "replayState": replay_state, "note": "x"}
    )
    return Message(id=provider, role="assistant", content=(), source=source)


USER = Message(id="u", role="user", content=(IMAGE,), source=UserMessageSource())


def options(*messages: Message) -> GenerateOptions:
    return GenerateOptions(provider="mine", model="m", messages=messages)


def test_foreign_state_goes_with_its_note_and_own_state_stays() -> None:
    mine, foreign, bare = assistant("mine", 1), assistant("other", 2), assistant("other")
    kept = without_foreign_replay((mine, foreign, bare, USER), {"mine"})
    assert kept[0] is mine
    assert kept[1].source == ModelMessageSource(provider="other", model="m")
    assert kept[2] is bare
    assert kept[3] is USER


def test_a_user_message_that_claims_a_model_is_left_alone() -> None:
    claim = assistant("other", 1).model_copy(update={"role": "user"})
    messages = (claim,)
    assert without_foreign_replay(messages, {"mine"}) is messages


def test_images_are_projected_only_where_the_model_is_known_to_lack_them() -> None:
    request = options(USER)
    assert adapter_options(request, {"mine"}, None) is request
    assert adapter_options(request, {"mine"}, ("text", "image")) is request
    projected = adapter_options(request, {"mine"}, ("text",))
    assert projected.messages[0].content[0].type == "text"
    assert request.messages[0] is USER


def test_nothing_to_change_gives_the_same_request() -> None:
    request = options(assistant("mine", 1))
    assert adapter_options(request, {"mine"}, ("text",)) is request
    assert adapter_options(request, set(), ("text",)) is not request
