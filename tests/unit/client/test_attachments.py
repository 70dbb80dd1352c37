"""Uploads as the client makes them, against a store in memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from trunkline.attachments import Attachments
from trunkline_protocol.attachments import attachment_id
from trunkline_protocol.failure import Code, LlmError, LocalProtocolError, RemoteProtocolError
from trunkline_protocol.limits import ATTACHMENT_PART_BYTES as PART

from tests.support.images import a_gif, a_jpeg, a_png, a_webp

IMAGE = a_png(6, 4, padding=2 * PART + 5)
NAME = attachment_id(IMAGE)


class Store:
    """What a broker does with `putAttachment`.

    Attributes:
        offsets: of the parts that were sent; `None` for a mere question.
        answers: given instead, one after the other.
    """

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self.stored: dict[str, bytes] = {}
        self.offsets: list[int | None] = []
        self.at_once = self.most_at_once = 0
        self.answers: list[Any] = []

    async def query(self, op: str, argument: Any = None) -> Any:
        assert op == "putAttachment"
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        data, name = argument.get("data"), argument["attachment"]
        self.offsets.append(None if data is None else argument["offset"])
        if self.answers:
            return self.answers.pop(0)
        held = self.parts.get(name, b"")
        if data is not None and argument["offset"] == len(held):
            held = self.parts[name] = held + data
            if len(held) == argument["bytes"]:
                del self.parts[name]
                if attachment_id(held) != name:
                    raise LlmError.of("wrong bytes", Code.INVALID_ATTACHMENT)
                self.stored[name] = held
        held = self.stored.get(name, held)
        return {"next": len(held), "stored": name in self.stored}


async def test_only_what_is_lacking_is_sent() -> None:
    """All of it, the rest of it, nothing of it."""
    store = Store()
    attachments = Attachments(store)
    put = await attachments.put(IMAGE, name="a.png")
    assert put.to_dict() == {
        "attachmentId": NAME,
        "mediaType": "image/png",
        "bytes": len(IMAGE),
        "width": 6,
        "height": 4,
        "name": "a.png",
    }
    assert store.offsets == [None, 0, PART, 2 * PART]
    assert store.stored == {NAME: IMAGE}
    await attachments.put(IMAGE)
    assert store.offsets[4:] == [None]
    store.stored.clear()
    store.parts[NAME] = IMAGE[: PART + 7]
    await attachments.put(bytearray(IMAGE))
    assert store.offsets[5:] == [None, PART + 7, 2 * PART + 7]
    assert store.stored == {NAME: IMAGE}


async def test_a_whole_upload_is_only_closed() -> None:
    """All bytes are there but nobody has looked at them: an empty part ends it."""
    store = Store()
    store.parts[NAME] = IMAGE
    await Attachments(store).put(IMAGE)
    assert store.offsets == [None, len(IMAGE)]


async def test_wrong_parts_of_others_are_replaced() -> None:
    """Once: if the own ones are refused too, that is told."""
    store = Store()
    store.parts[NAME] = bytes(PART)
    await Attachments(store).put(IMAGE)
    assert store.stored == {NAME: IMAGE}

    class Refusing(Store):
        async def query(self, op: str, argument: Any = None) -> Any:
            await super().query(op, argument)
            raise LlmError.of("no", Code.INVALID_ATTACHMENT)

    refusing = Refusing()
    with pytest.raises(LlmError, match="no"):
        await Attachments(refusing).put(IMAGE)
    assert len(refusing.offsets) == 2


async def test_other_failures_pass_at_once() -> None:
    """A full disk is the application's to know."""

    class Full(Store):
        async def query(self, op: str, argument: Any = None) -> Any:
            await super().query(op, argument)
            raise LlmError.of("disk full", Code.ATTACHMENT_STORE_FAILED)

    full = Full()
    with pytest.raises(LlmError, match="disk full"):
        await Attachments(full).put(IMAGE)
    assert full.offsets == [None]


async def test_an_upload_that_never_gets_on_ends() -> None:
    """A store that forgets everything again and again does not keep the client busy for ever."""
    store = Store()
    store.answers = [{"next": 0, "stored": False}] * 100
    with pytest.raises(LlmError) as caught:
        await Attachments(store).put(IMAGE)
    assert caught.value.code == Code.OVERLOADED
    assert len(store.offsets) < 20


@pytest.mark.parametrize(
    "answer",
    [None, {}, {"next": -1, "stored": False}, {"next": 0}, {"next": 10**9, "stored": True}],
)
async def test_a_malformed_answer_is_an_error(answer: Any) -> None:
    """It is the broker's fault and is said to be."""
    store = Store()
    store.answers = [answer]
    with pytest.raises(RemoteProtocolError):
        await Attachments(store).put(IMAGE)


async def test_few_uploads_run_at_once() -> None:
    """The others wait for their turn."""
    store = Store()
    attachments = Attachments(store)
    images = [a_png(2, 2, padding=PART + number) for number in range(12)]
    await asyncio.gather(*(attachments.put(image) for image in images))
    assert len(store.stored) == 12
    assert store.most_at_once == 4


@pytest.mark.parametrize(
    ("image", "media_type"),
    [
        (a_gif(3, 9), "image/gif"),
        (a_jpeg(3, 9), "image/jpeg"),
        (a_webp("VP8L", 3, 9), "image/webp"),
        (a_png(3, 9), "image/png"),
    ],
)
async def test_every_type_is_known_by_its_bytes(
    image: bytes, media_type: str, tmp_path: Path
) -> None:
    """The name of a file does not count, but is kept."""
    (tmp_path / "photo.bin").write_bytes(image)
    put = await Attachments(Store()).put_file(str(tmp_path / "photo.bin"), media_type)
    assert (put.media_type, put.width, put.height, put.name) == (media_type, 3, 9, "photo.bin")


@pytest.mark.parametrize(
    ("data", "fields", "said"),
    [
        (b"", {}, "PNG, JPEG, GIF or WebP"),
        (a_png(3, 3)[:18], {}, "cut short"),
        (a_png(3, 3), {"media_type": "image/jpeg"}, "image/png, not image/jpeg"),
        (a_png(3, 3), {"name": "n" * 257}, "name: a printable text of at most"),
        (bytes(64 * 1024 * 1024 + 1), {}, "at most 67108864 bytes"),
    ],
)
async def test_what_is_refused_before_it_is_sent(
    data: bytes, fields: dict[str, Any], said: str
) -> None:
    """The error names the argument."""
    store = Store()
    with pytest.raises(LocalProtocolError, match=said):
        await Attachments(store).put(data, **fields)
    assert not store.offsets


async def test_a_file_that_is_too_large_or_missing(tmp_path: Path) -> None:
    """Not more than can be used is read."""
    path = tmp_path / "huge.png"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(LocalProtocolError, match="at most"):
        await Attachments(Store()).put_file(path)
    with pytest.raises(FileNotFoundError):
        await Attachments(Store()).put_file(tmp_path / "none.png")


async def test_a_pipe_is_no_file_to_wait_for(tmp_path: Path) -> None:
    """Opening it would wait for a writer; a folder and a device are none either."""
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match=r"regular|directory"):
            await asyncio.wait_for(Attachments(Store()).put_file(path), 5)
