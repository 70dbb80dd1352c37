"""Names of attachments."""

from __future__ import annotations

import pytest
from trunkline_protocol.attachments import (
    attachment_id,
    attachments_in,
    claims_in,
    digest_of,
    is_attachment_id,
    is_digest,
    is_media_type,
)
from trunkline_protocol.content import ImageAttachment, ImageBlock, TextBlock, ToolResultBlock
from trunkline_protocol.messages import UserMessageSource, create_user_message

ABC = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-4


def an_image(name: str) -> ImageBlock:
    attachment = ImageAttachment(
        attachment_id=attachment_id(name.encode()),
        media_type="image/png",
        bytes=3,
        width=1,
        height=1,
    )
    return ImageBlock(attachment=attachment)


def test_a_name_is_the_hash() -> None:
    """The name of bytes, and the digits in it."""
    assert attachment_id(b"abc") == ABC
    assert is_attachment_id(ABC)
    assert is_digest(digest_of(ABC))


@pytest.mark.parametrize(
    "value", [None, 7, "", ABC[:-1], ABC + "0", ABC.upper(), ABC[7:], ABC[:-1] + "/", ABC + "\n"]
)
def test_what_is_no_name(value: object) -> None:
    """Only the one form passes, so a name never leads out of a directory."""
    assert not is_attachment_id(value)


def test_media_types() -> None:
    """A type and a subtype in lower case, without parameters."""
    assert is_media_type("image/png")
    assert is_media_type("image/svg+xml")
    for value in (
        None,
        "",
        "image",
        "image/",
        "/png",
        "image/png; q=1",
        "Image/PNG",
        "a/b/c",
        "a/b\n",
    ):
        assert not is_media_type(value)


def test_attachments_of_a_conversation() -> None:
    """In order, each once, also inside of tool results."""
    one, two, three = an_image("1"), an_image("2"), an_image("3")
    inner = ToolResultBlock(tool_call_id="b", content=(two,))
    result = ToolResultBlock(tool_call_id="a", content=(TextBlock(text="x"), inner, one))
    messages = [
        create_user_message([one, TextBlock(text="y"), result], UserMessageSource()),
        create_user_message([three, one], UserMessageSource()),
    ]
    assert attachments_in(messages) == (one.attachment, two.attachment, three.attachment)
    assert attachments_in(()) == ()


def test_claims_of_a_conversation() -> None:
    """Each different one; a name alone makes no difference."""
    one = an_image("1")
    named = ImageBlock(attachment=one.attachment.model_copy(update={"name": "a.png"}))
    other = ImageBlock(attachment=one.attachment.model_copy(update={"width": 2}))
    messages = [create_user_message([one, named, other, one], UserMessageSource())]
    assert claims_in(messages) == (one.attachment, other.attachment)
    assert attachments_in(messages) == (one.attachment,)
