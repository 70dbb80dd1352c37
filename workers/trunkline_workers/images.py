"""The images that a request names, for adapters to resolve before they write it; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trunkline_protocol.content import ContentBlock, ImageBlock, ToolResultBlock
from trunkline_protocol.options import GenerateOptions


def image_blocks(options: GenerateOptions) -> list[ImageBlock]:
    """Return the images of a request, each attachment once."""
    found = {
        block.attachment.attachment_id: block
        for message in options.messages
        for block in images_in(message.content)
    }
    return list(found.values())


def images_in(blocks: Sequence[ContentBlock]) -> Iterator[ImageBlock]:
    """Yield every image of a message, also of tool results, in order."""
    for block in blocks:
        if isinstance(block, ImageBlock):
            yield block
        elif isinstance(block, ToolResultBlock):
            yield from images_in(block.content)
