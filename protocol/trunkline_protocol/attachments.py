"""Names of attachments: `sha256:` and the hash of the bytes, and which of them a request uses.

It knows no store; SPEC.md section 7.1 says how one is filled and read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final

from trunkline_protocol.content import ContentBlock, ImageAttachment, ImageBlock, ToolResultBlock
from trunkline_protocol.messages import Message

PREFIX: Final = "sha256:"
_WELL_FORMED: Final = re.compile(r"sha256:[0-9a-f]{64}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,62}/[a-z0-9][a-z0-9!#$&^_.+-]{0,62}")


def attachment_id(data: bytes) -> str:
    """Return the name of an attachment with these bytes."""
    return PREFIX + sha256(data).hexdigest()


def is_attachment_id(value: object) -> bool:
    """Tell whether a value is a well-formed name, and so safe as part of a path."""
    return isinstance(value, str) and _WELL_FORMED.fullmatch(value) is not None


def digest_of(attachment: str) -> str:
    """Return the 64 digits in a well-formed name."""
    return attachment.removeprefix(PREFIX)


def is_digest(text: str) -> bool:
    """Tell whether a text is the 64 digits of a name."""
    return _DIGEST.fullmatch(text) is not None


def is_media_type(value: object) -> bool:
    """Tell whether a value is a media type without parameters, in lower case (RFC 6838, 4.2)."""
    return isinstance(value, str) and _MEDIA_TYPE.fullmatch(value) is not None


def attachments_in(messages: Iterable[Message]) -> tuple[ImageAttachment, ...]:
    """Return what the image blocks of a conversation name, in order, each name once."""
    found: dict[str, ImageAttachment] = {}
    for message in messages:
        for attachment in _named(message.content):
            found.setdefault(attachment.attachment_id, attachment)
    return tuple(found.values())


def claims_in(messages: Iterable[Message]) -> tuple[ImageAttachment, ...]:
    """Return what image blocks say of attachments, in order, each different claim once."""
    found: dict[tuple[object, ...], ImageAttachment] = {}
    for message in messages:
        for each in _named(message.content):
            said = (each.attachment_id, each.media_type, each.bytes, each.width, each.height)
            found.setdefault(said, each)
    return tuple(found.values())


def _named(content: Iterable[ContentBlock]) -> Iterator[ImageAttachment]:
    for block in content:
        if isinstance(block, ImageBlock):
            yield block.attachment
        elif isinstance(block, ToolResultBlock):
            yield from _named(block.content)
