"""Images of a request as data URLs (RFC 2397), which is how this API takes bytes."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Final

from trunkline_protocol.attachments import is_media_type
from trunkline_protocol.content import ImageBlock
from trunkline_protocol.failure import Code, LlmError

from trunkline_workers.adapters.chat_completions.serialize import ResolvedImage

ImageResolver = Callable[[ImageBlock], Awaitable[ResolvedImage]]

_AT_ONCE_BYTES: Final = 256 * 1024  # encoded in the loop in 0.2 ms; more goes to a thread


def image_resolver(read: Callable[[str], Awaitable[bytes]]) -> ImageResolver:
    """Return what turns an image block into a data URL.

    Args:
        read: returns the bytes of an attachment; its errors pass.
    """

    async def resolve(block: ImageBlock) -> ResolvedImage:
        attachment = block.attachment
        if not is_media_type(attachment.media_type):
            text = f"attachment {attachment.attachment_id} has no valid media type"
            raise LlmError.of(text, Code.INVALID_REQUEST)
        data = await read(attachment.attachment_id)
        if len(data) <= _AT_ONCE_BYTES:
            return _data_url(attachment.media_type, data)
        return await asyncio.to_thread(_data_url, attachment.media_type, data)

    return resolve


def _data_url(media_type: str, data: bytes) -> ResolvedImage:
    return ResolvedImage(url=f"data:{media_type};base64,{b64encode(data).decode('ascii')}")
