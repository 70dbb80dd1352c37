"""Attachments in a worker: from the store, or from the broker part by part."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from trunkline_protocol.attachments import attachment_id, digest_of
from trunkline_protocol.codec import pack_body, unpack_body
from trunkline_protocol.content import ImageAttachment, ImageBlock
from trunkline_protocol.failure import Code, LlmError, LlmFailure
from trunkline_protocol.frames import Query, Reply
from trunkline_protocol.limits import ATTACHMENT_PART_BYTES as PART
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.chat_completions.images import image_resolver
from trunkline_workers.asking import Asker
from trunkline_workers.attachments import Attachments

from tests.support.images import a_jpeg, a_png
from tests.support.timing import SLOW

DATA = bytes(range(256)) * 2500  # three parts
NAME = attachment_id(DATA)
CLAIM = ImageAttachment(
    attachment_id=NAME, media_type="image/x-raw", bytes=len(DATA), width=1, height=1
)


class Broker:
    """Answers `getAttachment` from memory; counts the questions."""

    def __init__(self, *stored: bytes) -> None:
        self.stored = {attachment_id(data): data for data in stored}
        self.asked: list[int] = []
        self.answer: Any = None

    async def ask(self, op: str, argument: object) -> Any:
        assert op == "getAttachment"
        assert isinstance(argument, Mapping)
        name, offset = argument["attachment"], argument["offset"]
        self.asked.append(offset)
        await asyncio.sleep(0)
        if self.answer is not None:
            return self.answer
        data = self.stored.get(name)
        if data is None:
            raise LlmError.of(f"attachment {name} is not stored", Code.ATTACHMENT_MISSING)
        return {"bytes": len(data), "data": data[offset : offset + PART]}


def reading(broker: Broker, directory: Path, **fields: Any) -> Attachments:
    made = Attachments(broker.ask, **fields)
    made.use(str(directory))
    return made


async def code_of(made: Attachments, name: str) -> str:
    with pytest.raises(LlmError) as caught:
        await made.read(name)
    assert name in str(caught.value)
    return caught.value.code


async def test_a_file_of_the_store_is_read(tmp_path: Path) -> None:
    """Without asking anybody."""
    broker = Broker()
    made = reading(broker, tmp_path)
    (tmp_path / digest_of(NAME)).write_bytes(DATA)
    await made.ensure([CLAIM])
    assert await made.read(NAME) == DATA
    assert not broker.asked


async def test_what_is_not_in_the_directory_is_fetched_once(tmp_path: Path) -> None:
    """Part by part, also for calls that come together; the next ones find it."""
    broker = Broker(DATA)
    made = reading(broker, tmp_path / "elsewhere")
    await made.ensure([CLAIM, CLAIM])
    assert await asyncio.gather(made.read(NAME), made.read(NAME)) == [DATA, DATA]
    assert broker.asked == [0, PART, 2 * PART]


async def test_a_wrong_file_is_not_taken(tmp_path: Path) -> None:
    """Other bytes, a link or a directory under the name: the broker is asked."""
    path = tmp_path / digest_of(NAME)
    broker = Broker(DATA)
    path.write_bytes(DATA[:-1])
    assert await reading(broker, tmp_path).read(NAME) == DATA
    path.unlink()
    (tmp_path / "real").write_bytes(DATA)
    path.symlink_to(tmp_path / "real")
    assert await reading(broker, tmp_path).read(NAME) == DATA
    path.unlink()
    os.mkfifo(path)
    assert await asyncio.wait_for(reading(broker, tmp_path).read(NAME), 5 * SLOW) == DATA
    assert len(broker.asked) == 9


async def test_what_was_fetched_is_forgotten_at_the_bound(tmp_path: Path) -> None:
    """The longest unused first."""
    one, two, three = b"1" * 40, b"2" * 40, b"3" * 40
    broker = Broker(one, two, three)
    made = reading(broker, tmp_path, kept_bytes=100)
    for data in (one, two, one, three):
        assert await made.read(attachment_id(data)) == data
    assert len(broker.asked) == 3
    await made.read(attachment_id(one))
    assert len(broker.asked) == 3
    await made.read(attachment_id(two))
    assert len(broker.asked) == 4


@pytest.mark.parametrize("name", ["", "x", "../../etc/passwd", NAME.upper(), NAME + "/.."])
async def test_a_name_that_is_none(tmp_path: Path, name: str) -> None:
    """It is missing, whatever it would lead to; nobody is asked."""
    broker = Broker()
    assert await code_of(reading(broker, tmp_path), name) == Code.ATTACHMENT_MISSING
    assert not broker.asked


PNG = a_png(3, 2)
LATE = a_jpeg(30, 20)  # its size comes behind 70,000 bytes of comments
LATE = LATE[:2] + (b"\xff\xfe\x88\xb8" + bytes(0x88B8 - 2)) * 2 + LATE[2:]


def claim_of(data: bytes, media_type: str, width: int, height: int, size: int = -1) -> Any:
    return ImageAttachment(
        attachment_id=attachment_id(data),
        media_type=media_type,
        bytes=len(data) if size < 0 else size,
        width=width,
        height=height,
    )


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize(
    ("data", "claim", "wrong"),
    [
        (PNG, claim_of(PNG, "image/png", 3, 2), ""),
        (PNG, claim_of(PNG, "image/jpeg", 3, 2), "it is image/png, not image/jpeg"),
        (PNG, claim_of(PNG, "image/x-own", 3, 2), "it is image/png, not image/x-own"),
        (PNG, claim_of(PNG, "image/png", 2, 3), "it has 3 x 2 pixels, not 2 x 3"),
        (PNG, claim_of(PNG, "image/png", 3, 2, 9), f"it has {len(PNG)} bytes, not 9"),
        (PNG[:20], claim_of(PNG[:20], "image/png", 3, 2), "cut short"),
        (DATA, CLAIM, ""),
        (DATA, claim_of(DATA, "image/webp", 1, 1), "it is no image/webp"),
        (LATE, claim_of(LATE, "image/jpeg", 30, 20), ""),
        (LATE, claim_of(LATE, "image/jpeg", 30, 21), "it has 30 x 20 pixels"),
    ],
)
async def test_what_a_request_says_of_an_image_must_be_so(
    tmp_path: Path, data: bytes, claim: ImageAttachment, wrong: str, is_here: bool
) -> None:
    """Whether the file is here or comes from the broker."""
    made = reading(Broker(data), tmp_path)
    if is_here:
        (tmp_path / digest_of(claim.attachment_id)).write_bytes(data)
    if not wrong:
        await made.ensure([claim])
        return
    with pytest.raises(LlmError, match=claim.attachment_id) as caught:
        await made.ensure([claim])
    assert caught.value.code == Code.INVALID_ATTACHMENT
    assert wrong in str(caught.value)


async def test_a_damaged_file_is_not_the_request_s_fault(tmp_path: Path) -> None:
    """It is fetched, and only its right bytes are compared."""
    broker, claim = Broker(PNG), claim_of(PNG, "image/png", 3, 2)
    (tmp_path / digest_of(claim.attachment_id)).write_bytes(a_png(5, 5))
    await reading(broker, tmp_path).ensure([claim])
    assert broker.asked


async def test_without_a_store_everything_is_missing() -> None:
    """A broker that keeps none; an adapter that runs without a host."""
    assert await code_of(Attachments(Broker(DATA).ask), NAME) == Code.ATTACHMENT_MISSING
    with pytest.raises(LlmError, match=NAME) as caught:
        await AdapterContext("alone").read_attachment(NAME)
    assert caught.value.code == Code.ATTACHMENT_MISSING


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {"bytes": 0, "data": b"1"},
        {"bytes": 2**40, "data": b"1"},
        {"bytes": 5, "data": b""},
        {"bytes": 5, "data": "12345"},
        {"bytes": 5, "data": b"123456"},
        {"bytes": PART + 1, "data": bytes(PART + 1)},
        {"bytes": 5, "data": b"12345"},
    ],
)
async def test_bytes_that_do_not_fit_are_refused(tmp_path: Path, answer: Any) -> None:
    """Whatever a broker sends, an adapter gets the bytes that were named or none."""
    broker = Broker()
    broker.answer = answer
    assert await code_of(reading(broker, tmp_path), NAME) == Code.ATTACHMENT_MISSING


async def test_parts_of_different_wholes_are_refused(tmp_path: Path) -> None:
    """The size that was told first counts."""

    async def ask(op: str, argument: Any) -> Any:
        del op
        return {"bytes": 10 + argument["offset"], "data": b"12345"}

    made = Attachments(ask)
    made.use(str(tmp_path))
    assert await code_of(made, NAME) == Code.ATTACHMENT_MISSING


async def test_an_image_becomes_a_data_url() -> None:
    """Short ones and long ones; a media type that is none can't break out of the URL."""
    store = {attachment_id(data): data for data in (b"abc", DATA)}

    async def read(name: str) -> bytes:
        return store[name]

    resolve = image_resolver(read)

    def block(data: bytes, media_type: str = "image/png") -> ImageBlock:
        fields = {"media_type": media_type, "bytes": len(data), "width": 1, "height": 1}
        name = attachment_id(data)
        return ImageBlock(attachment=ImageAttachment(attachment_id=name, **fields))  # type: ignore[arg-type]

    assert (await resolve(block(b"abc"))).url == "data:image/png;base64,YWJj"
    assert len((await resolve(block(DATA))).url) == 22 + (len(DATA) + 2) // 3 * 4
    with pytest.raises(LlmError) as caught:
        await resolve(block(b"abc", 'image/png;base64,x"'))
    assert caught.value.code == Code.INVALID_REQUEST


# --- asking ---------------------------------------------------------------------------------


async def test_a_question_is_repeated_until_it_is_answered() -> None:
    """The first ones may be lost with a broker; a second answer is nobody's."""
    sent: list[Query] = []

    def send(query: Query) -> None:
        sent.append(query)
        if len(sent) == 3:
            asker.on_reply(Reply(query.query, body=pack_body({"a": 1})))
            asker.on_reply(Reply(query.query, body=pack_body({"a": 2})))

    asker = Asker(send, repeat_s=0.01, give_up_s=10 * SLOW)
    assert await asker.ask("op", {"x": 1}) == {"a": 1}
    assert len(set(sent)) == 1
    assert unpack_body(sent[0].body) == {"x": 1}
    asker.on_reply(Reply(sent[0].query))
    assert not asker._open


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ({"failure": LlmFailure("no", Code.ATTACHMENT_MISSING).to_dict()}, Code.ATTACHMENT_MISSING),
        ({"failure": {"code": 7}}, Code.TRANSPORT),
        ({"body": b"\xc1"}, Code.TRANSPORT),
        (None, Code.TRANSPORT),
    ],
)
async def test_a_question_that_fails(reply: dict[str, Any] | None, code: str) -> None:
    """The broker's failure passes; silence and nonsense are trouble with the broker."""

    def send(query: Query) -> None:
        if reply is not None:
            asker.on_reply(Reply(query.query, **reply))

    asker = Asker(send, repeat_s=0.01, give_up_s=0.05)
    with pytest.raises(LlmError) as caught:
        await asker.ask("op", None)
    assert caught.value.code == code
    assert not asker._open


async def test_nobody_waits_for_a_cancelled_question() -> None:
    """Nothing is left of it."""
    asker = Asker(lambda _: None)
    task = asyncio.ensure_future(asker.ask("op", None))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert not asker._open
