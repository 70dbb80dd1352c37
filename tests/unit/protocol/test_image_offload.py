"""Shedding the oldest images in whole steps."""

from __future__ import annotations

import pytest
from trunkline_protocol.content import ImageAttachment, ImageBlock, ToolResultBlock
from trunkline_protocol.image_offload import (
    OFFLOADED_IMAGE_TEXT,
    ImageOffloadPolicy,
    base64_length,
    offload_request_images,
    offload_request_images_with_policy,
    offloaded_prefix_count,
)
from trunkline_protocol.messages import Message, UserMessageSource


def image(size: int) -> ImageBlock:
    return ImageBlock(
        attachment=ImageAttachment(
            attachment_id=f"sha256:{size}", media_type="image/png", bytes=size, width=1, height=1
        )
    )


def message(*content: ImageBlock | ToolResultBlock) -> Message:
    return Message(id="m", role="user", content=content, source=UserMessageSource())


@pytest.mark.parametrize(("size", "length"), [(0, 0), (1, 4), (3, 4), (4, 8)])
def test_base64_length(size: int, length: int) -> None:
    assert base64_length(size) == length


@pytest.mark.parametrize(
    ("sizes", "policy", "count"),
    [
        ([], ImageOffloadPolicy(max_images=0, max_bytes=0), 0),
        ([5, 5], ImageOffloadPolicy(), 0),
        ([1, 1, 1], ImageOffloadPolicy(max_images=2), 1),
        ([1] * 31, ImageOffloadPolicy(max_images=30, count_quantum=20), 20),
        ([1] * 3, ImageOffloadPolicy(max_images=2, count_quantum=20), 3),
        ([1] * 6, ImageOffloadPolicy(max_bytes=4), 2),
        ([2] * 4, ImageOffloadPolicy(max_bytes=4, byte_quantum=4), 3),
        ([1] * 6, ImageOffloadPolicy(max_bytes=5, max_images=2), 4),
    ],
    ids=["none", "unbounded", "count", "steps", "all", "bytes", "past-the-edge", "larger-wins"],
)
def test_how_many_go(sizes: list[int], policy: ImageOffloadPolicy, count: int) -> None:
    assert offloaded_prefix_count(sizes, policy) == count


def test_the_removed_part_stays_the_same_over_a_whole_step() -> None:
    policy = ImageOffloadPolicy(representation="raw", max_bytes=16, byte_quantum=8)
    counts = [offloaded_prefix_count([1] * total, policy) for total in range(17, 26)]
    assert counts == [9] * 8 + [17]


def test_the_oldest_go_first_also_inside_results() -> None:
    first, second, third = image(1), image(2), image(3)
    messages = (message(ToolResultBlock(tool_call_id="c", content=(first, second))), message(third))
    shed = offload_request_images(messages, 8)
    nested = shed[0].content[0]
    assert isinstance(nested, ToolResultBlock)
    assert nested.content[0].to_dict() == {"type": "text", "text": OFFLOADED_IMAGE_TEXT}
    assert nested.content[1] is second
    assert shed[1] is messages[1]


def test_what_fits_stays_the_same_object() -> None:
    messages = (message(image(3)),)
    assert offload_request_images(messages, None) is messages
    assert offload_request_images(messages, 4) is messages


def test_a_route_may_count_the_bytes_it_sends() -> None:
    messages = (message(image(100)),)
    policy = ImageOffloadPolicy(representation="raw", max_bytes=5, byte_length=lambda _image: 5)
    assert offload_request_images_with_policy(messages, policy) is messages
