"""Images inside content."""

from __future__ import annotations

from trunkline_protocol.content import (
    ContentBlock,
    ImageAttachment,
    ImageBlock,
    TextBlock,
    ToolResultBlock,
    UnknownBlock,
)
from trunkline_protocol.images import (
    content_has_image,
    project_images_for_text_model,
    replace_images,
    request_image_handle_text,
    text_only_image_text,
)
from trunkline_protocol.messages import Message, UserMessageSource

TEXT = TextBlock(text="x")
ID = "sha256:" + "ab" * 32
IMAGE = ImageBlock(
    attachment=ImageAttachment(attachment_id=ID, media_type="image/png", bytes=3, width=1, height=1)
)


def result(*content: ContentBlock) -> ToolResultBlock:
    return ToolResultBlock(tool_call_id="c", content=content)


def message(*content: ContentBlock) -> Message:
    return Message(id="m", role="user", content=content, source=UserMessageSource())


def test_images_are_found_at_any_depth_but_not_in_unknown_blocks() -> None:
    assert not content_has_image([])
    assert not content_has_image([TEXT, result(TEXT)])
    assert content_has_image([TEXT, result(TEXT, result(IMAGE))])
    unknown = UnknownBlock.from_dict({"type": "chart", "content": [IMAGE.to_dict()]})
    assert not content_has_image([unknown])


def test_replacing_nothing_keeps_every_identity() -> None:
    content = (TEXT, result(TEXT), IMAGE)
    assert replace_images(content, lambda block: block) is content


def test_the_texts() -> None:
    note = "[image omitted because this model accepts text only; attachment sha256:abababab]"
    assert text_only_image_text(ID) == note
    assert text_only_image_text("abc").endswith("sha256:]")
    assert request_image_handle_text("i", 8, 6) == "Image i; request image 8x6px."


def test_projection_touches_only_messages_with_images() -> None:
    plain, nested = message(TEXT, result(TEXT)), message(result(result(IMAGE), TEXT), IMAGE)
    projected = project_images_for_text_model((plain, nested))
    assert projected[0] is plain
    note = TextBlock(text=text_only_image_text(ID))
    assert projected[1].content == (result(result(note), TEXT), note)
    assert projected[1].id == "m"
    assert nested.content[1] is IMAGE
    untouched = (plain,)
    assert project_images_for_text_model(untouched) is untouched
