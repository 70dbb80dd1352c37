"""The files of the attachment store: what a step does to them, and what it says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from trunkline_broker.attachment_store import AttachmentStore
from trunkline_broker.core import effects as do
from trunkline_broker.core import events as said
from trunkline_broker.core.specs import StoredAttachment
from trunkline_broker.paths import RunDirError
from trunkline_protocol.attachments import attachment_id, digest_of
from trunkline_protocol.ids import QueryId

from tests.support.edges import KnownEdges, an_edge
from tests.support.images import a_png
from tests.support.timing import SLOW

IMAGE = a_png(3, 3, padding=100)
NAME = attachment_id(IMAGE)
QUERY = QueryId(bytes(16))


class Steps:
    """One store, and a step that is waited for."""

    def __init__(self, directory: Path) -> None:
        self.events: asyncio.Queue[said.AttachmentEvent] = asyncio.Queue()
        self.directory = directory
        self.edges = KnownEdges()
        edge = self.edges.of("attachments")
        self.store = AttachmentStore(directory, self.events.put_nowait, edge)

    async def step(self, effect: do.AttachmentEffect) -> Any:
        self.store.perform(effect)
        return await asyncio.wait_for(self.events.get(), 5 * SLOW)

    async def put(self, data: bytes = IMAGE, **fields: Any) -> Any:
        values = {
            "attachment": NAME,
            "media_type": "image/png",
            "total": len(IMAGE),
            "offset": 0,
            **fields,
        }
        return await self.step(do.StorePart(b"peer", QUERY, data=data, **values))

    def names(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()} - {"lock"}


@asynccontextmanager
async def steps(directory: Path) -> AsyncIterator[Steps]:
    made = Steps(directory)
    try:
        yield made
    finally:
        made.store.close()


async def test_parts_become_one_file(tmp_path: Path) -> None:
    """Private, under its final name only when it is whole."""
    async with steps(tmp_path / "new" / "store") as made:
        assert made.directory.stat().st_mode & 0o777 == 0o700
        first = await made.put(IMAGE[:50])
        assert first == said.PartStored(b"peer", QUERY, NAME, 50, is_stored=False)
        assert made.names() == {digest_of(NAME) + ".part"}
        last = await made.put(IMAGE[50:], offset=50)
        assert (last.received, last.is_stored) == (len(IMAGE), True)
        assert made.names() == {digest_of(NAME)}
        path = made.directory / digest_of(NAME)
        assert path.read_bytes() == IMAGE
        assert path.stat().st_mode & 0o777 == 0o600
        read = await made.step(do.ReadPart(b"w", QUERY, NAME, 40))
        assert read == said.PartRead(b"w", QUERY, NAME, len(IMAGE), IMAGE[40:])


async def test_a_part_written_again_is_cut_first(tmp_path: Path) -> None:
    """The file never has more than was acknowledged; one that has less says so."""
    async with steps(tmp_path / "s") as made:
        await made.put(IMAGE[:60])
        assert (await made.put(IMAGE[20:30], offset=20)).received == 30
        assert (made.directory / (digest_of(NAME) + ".part")).read_bytes() == IMAGE[:30]
        assert (await made.put(IMAGE[60:], offset=60)).received == 30
        assert (await made.put(IMAGE[:5])).received == 5


@pytest.mark.parametrize(
    ("data", "fields", "text"),
    [
        (IMAGE[:-1] + b"x", {}, "hash"),
        (IMAGE, {"media_type": "image/gif"}, "are image/png, not image/gif"),
        (IMAGE, {"media_type": "application/pdf"}, "are image/png"),
        (b"text", {"attachment": attachment_id(b"text"), "total": 4}, "something else"),
    ],
)
async def test_bytes_that_do_not_fit_are_gone(
    tmp_path: Path, data: bytes, fields: dict[str, Any], text: str
) -> None:
    """Found at the last part."""
    async with steps(tmp_path / "s") as made:
        refused = await made.put(data, **fields)
        assert refused.code == "INVALID_ATTACHMENT"
        assert text in refused.message
        assert made.names() == set()


async def test_a_type_that_nobody_knows_passes(tmp_path: Path) -> None:
    """Of other files only the hash is known."""
    async with steps(tmp_path / "s") as made:
        fields = {"attachment": attachment_id(b"text"), "total": 4, "media_type": "text/plain"}
        assert (await made.put(b"text", **fields)).is_stored


async def test_a_file_system_that_refuses(tmp_path: Path) -> None:
    """The failure says why; the step after it works."""
    async with steps(tmp_path / "s") as made:
        part = made.directory / (digest_of(NAME) + ".part")
        part.mkdir()
        refused = await made.put()
        assert refused.code == "ATTACHMENT_STORE_FAILED"
        assert "directory" in refused.message
        part.rmdir()
        part.symlink_to(tmp_path / "target")
        assert (await made.put()).code == "ATTACHMENT_STORE_FAILED"
        assert not (tmp_path / "target").exists()
        assert (await made.put()).is_stored


async def test_what_is_there_and_what_is_gone(tmp_path: Path) -> None:
    """Looking, using and removing."""
    async with steps(tmp_path / "s") as made:
        await made.put()
        path = made.directory / digest_of(NAME)
        os.utime(path, (0, 0))
        for total, is_there in ((len(IMAGE), True), (len(IMAGE) + 1, False)):
            checked = await made.step(do.CheckAttachment(b"p", QUERY, NAME, total))
            assert checked == said.AttachmentChecked(b"p", QUERY, NAME, is_there)
        assert path.stat().st_mtime > 0
        other = attachment_id(b"other")
        gone = await made.step(do.TouchAttachments((NAME, other)))
        assert gone == said.AttachmentsGone((other,))
        made.store.perform(do.TouchAttachments((NAME,)))  # all there: nothing to say
        made.store.perform(do.RemoveAttachments((NAME, other)))
        assert (await made.step(do.ReadPart(b"w", QUERY, NAME, 0))).data is None
        assert made.names() == set()


async def test_the_next_broker_finds_what_is_there(tmp_path: Path) -> None:
    """The longest unused first; remains of a finished one go, other files stay."""
    directory = tmp_path / "s"
    directory.mkdir(mode=0o700)
    old, new, half = (attachment_id(text) for text in (b"old", b"new", b"half"))
    for at_s, name in (
        (30, digest_of(old)),
        (40, digest_of(new)),
        (20, digest_of(half) + ".part"),
        (50, digest_of(old) + ".part"),
        (10, digest_of(new) + ".part"),
        (60, "README"),
        (61, "x.part"),
    ):
        (directory / name).write_bytes(name.encode())
        os.utime(directory / name, (at_s, at_s))
    (directory / digest_of(attachment_id(b"dir"))).mkdir()
    async with steps(directory) as made:
        assert made.store.scan() == (
            StoredAttachment(half, 69, is_whole=False),
            StoredAttachment(old, 64, is_whole=True),
            StoredAttachment(new, 64, is_whole=True),
        )
        assert {"README", "x.part"} <= made.names()
        assert len(made.names()) == 6


async def test_only_one_broker_writes(tmp_path: Path) -> None:
    """The second one says who does, and takes over when the first is gone."""
    async with steps(tmp_path / "s") as first:
        assert first.store.is_ours
        await first.put()
        async with steps(tmp_path / "s") as second:
            assert not second.store.is_ours
            assert second.store.scan() == ()
            refused = await second.put()
            assert refused.code == "ATTACHMENT_STORE_FAILED"
            assert "another broker" in refused.message
            assert first.names() == {digest_of(NAME)}
    async with steps(tmp_path / "s") as third:
        assert third.store.is_ours
        assert len(third.store.scan()) == 1


async def test_a_directory_that_others_can_enter(tmp_path: Path) -> None:
    """Is refused as it is, not made private behind its owner's back."""
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(0o755)
    with pytest.raises(RunDirError, match="open to other users"):
        AttachmentStore(directory, lambda _: None, an_edge())


@pytest.mark.parametrize(
    "effect",
    [
        do.StorePart(b"peer", QUERY, NAME, "image/png", 10, 0, None),  # type: ignore[arg-type]
        do.CheckAttachment(b"peer", QUERY, None, 1),  # type: ignore[arg-type]
        do.ReadPart(b"peer", QUERY, None, 0),  # type: ignore[arg-type]
    ],
)
async def test_a_defect_is_noted_and_whoever_asked_is_answered(
    tmp_path: Path, effect: do.AttachmentEffect
) -> None:
    """Steps that no disk explains end at the edge of the store; the next one is performed."""
    errors: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    async with steps(tmp_path / "s") as made:
        made.store.perform(do.RemoveAttachments((None,)))  # type: ignore[arg-type]
        answer = await made.step(effect)
        assert not getattr(answer, "is_there", False)
        assert made.edges.counters == {"service_failed.attachments": 2}
        assert (await made.put(IMAGE)).is_stored
        assert not errors
