"""Images inside content: finding them, and the text that stands for one where it can't be sent.

Everything walks tool results to any depth and keeps the identity of what it does not change.
Blocks of unknown types are never looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from trunkline_protocol.content import ContentBlock, ImageBlock, TextBlock, ToolResultBlock
from trunkline_protocol.messages import Message

_PREFIX: Final = len("sha256:")
_DIGEST_CHARS: Final = 8  # enough to tell the images of one conversation apart

Replace = Callable[[ImageBlock], ContentBlock]


def content_has_image(content: Iterable[ContentBlock]) -> bool:
    """Tell whether any block is an image."""
    return any(
        block.type == "image"
        or (isinstance(block, ToolResultBlock) and content_has_image(block.content))
        for block in content
    )


def replace_images(content: tuple[ContentBlock, ...], replace: Replace) -> tuple[ContentBlock, ...]:
    """Replace images depth first, in order.

    Args:
        content: the blocks.
        replace: returns the block to stand there; the same one leaves it as it is.

    Returns:
        The same tuple if nothing changed.
    """
    replaced = tuple(_replaced(block, replace) for block in content)
    is_same = all(old is new for old, new in zip(content, replaced, strict=True))
    return content if is_same else replaced


def _replaced(block: ContentBlock, replace: Replace) -> ContentBlock:
    if isinstance(block, ImageBlock):
        return replace(block)
    if isinstance(block, ToolResultBlock):
        content = replace_images(block.content, replace)
        if content is not block.content:
            return block.model_copy(update={"content": content})
    return block


def replace_message_images(messages: Sequence[Message], replace: Replace) -> Sequence[Message]:
    """Replace images in a conversation; untouched messages, or the sequence, stay the same."""
    replaced = [_replaced_message(message, replace) for message in messages]
    is_same = all(old is new for old, new in zip(messages, replaced, strict=True))
    return messages if is_same else tuple(replaced)


def _replaced_message(message: Message, replace: Replace) -> Message:
    content = replace_images(message.content, replace)
    if content is message.content:
        return message
    return message.model_copy(update={"content": content})


def text_only_image_text(attachment_id: str) -> str:
    """Return the text a model without images gets to see for one."""
    digest = attachment_id[_PREFIX : _PREFIX + _DIGEST_CHARS]
    return f"[image omitted because this model accepts text only; attachment sha256:{digest}]"


def request_image_handle_text(attachment_id: str, width: int, height: int) -> str:
    """Return the text that names an image beside it; width and height in pixels, as sent."""
    return f"Image {attachment_id}; request image {width}x{height}px."


def project_images_for_text_model(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the conversation for a model that accepts text only."""
    return replace_message_images(messages, _as_text)


def _as_text(block: ImageBlock) -> ContentBlock:
    return TextBlock(text=text_only_image_text(block.attachment.attachment_id))
