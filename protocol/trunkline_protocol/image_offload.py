"""Which images a request sheds when it has too many: the oldest, in whole steps.

The steps keep the removed part the same over many turns, so that a provider's prompt cache holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from trunkline_protocol.content import ContentBlock, ImageAttachment, ImageBlock, TextBlock
from trunkline_protocol.images import replace_message_images
from trunkline_protocol.messages import Message

OFFLOADED_IMAGE_TEXT: Final = (
    "[image omitted to keep the request within its image limit; older images are omitted first. "
    "If this image is still needed, read its file again when a path is available; otherwise ask "
    "the user to attach it again.]"
)


def base64_length(size_bytes: int) -> int:
    """Return the length of the base64 text of so many bytes, padding included."""
    return -(-size_bytes // 3) * 4


@dataclass(frozen=True, slots=True)
class ImageOffloadPolicy:
    """What one route accepts.

    Attributes:
        representation: whether bytes count raw or as inline base64 text.
        max_images: images per request; `None`: any number.
        max_bytes: bytes of all images; `None`: any number.
        count_quantum: images removed in one step, 1 or more.
        byte_quantum: bytes removed in one step, 1 or more.
        byte_length: size of the form that is sent; `None`: the size of the stored file.
        placeholder: text in the place of an image.
    """

    representation: Literal["raw", "base64"] = "base64"
    max_images: int | None = None
    max_bytes: int | None = None
    count_quantum: int = 1
    byte_quantum: int = 1
    byte_length: Callable[[ImageAttachment], int] | None = None
    placeholder: str = OFFLOADED_IMAGE_TEXT

    def represented_bytes(self, attachment: ImageAttachment) -> int:
        """Return what one image counts."""
        size = attachment.bytes if self.byte_length is None else self.byte_length(attachment)
        return base64_length(size) if self.representation == "base64" else size


def offloaded_prefix_count(sizes: Sequence[int], policy: ImageOffloadPolicy) -> int:
    """Return how many of the oldest images go.

    Args:
        sizes: what each image counts, oldest first.
        policy: of the route.
    """
    excess_count = 0 if policy.max_images is None else len(sizes) - policy.max_images
    excess_bytes = 0 if policy.max_bytes is None else sum(sizes) - policy.max_bytes
    must_count = _stepped(excess_count, policy.count_quantum)
    must_bytes = _stepped(excess_bytes, policy.byte_quantum)
    # A step of bytes must be passed, not only reached: at its edge one more image would undo it.
    must_pass = must_bytes > 0 and policy.byte_quantum > 1
    count = removed_bytes = 0
    for size in sizes:
        is_met = removed_bytes > must_bytes if must_pass else removed_bytes >= must_bytes
        if count >= must_count and is_met:
            break
        removed_bytes += size
        count += 1
    return count


def _stepped(excess: int, quantum: int) -> int:
    """Round an excess up to whole steps; none stays none."""
    return math.ceil(excess / quantum) * quantum if excess > 0 else 0


def offload_request_images(
    messages: Sequence[Message], max_request_image_bytes: int | None
) -> Sequence[Message]:
    """Replace the oldest images by a text until their base64 texts fit; `None`: they always do."""
    return offload_request_images_with_policy(
        messages, ImageOffloadPolicy(max_bytes=max_request_image_bytes)
    )


def offload_request_images_with_policy(
    messages: Sequence[Message], policy: ImageOffloadPolicy
) -> Sequence[Message]:
    """Replace the oldest images by a text until the policy is met.

    Returns:
        The same sequence if it fits; else untouched messages stay the same objects.
    """
    sizes: list[int] = []

    def measure(block: ImageBlock) -> ContentBlock:
        sizes.append(policy.represented_bytes(block.attachment))
        return block

    replace_message_images(messages, measure)
    left = offloaded_prefix_count(sizes, policy)

    def shed(block: ImageBlock) -> ContentBlock:
        nonlocal left
        if left == 0:
            return block
        left -= 1
        return TextBlock(text=policy.placeholder)

    return replace_message_images(messages, shed)
