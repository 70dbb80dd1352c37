"""The queries about attachments: uploads in parts, reading, and what leaves the store (SPEC 7.1).

Files are the shell's: every step here ends in an effect, and the event that comes of it ends in the
answer. One part of an attachment is written at a time; who sends another one meanwhile is told
afterwards how far it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

from trunkline_protocol.attachments import is_attachment_id, is_media_type
from trunkline_protocol.codec import pack_body
from trunkline_protocol.codes import Code
from trunkline_protocol.failure import RemoteProtocolError
from trunkline_protocol.frames import Query, Reply
from trunkline_protocol.ids import QueryId
from trunkline_protocol.limits import ATTACHMENT_PART_BYTES, MAX_ATTACHMENT_BYTES

from trunkline_broker.core import effects as do
from trunkline_broker.core import events as said
from trunkline_broker.core.arguments import read_argument
from trunkline_broker.core.attachments import AttachmentIndex
from trunkline_broker.core.clients import Client
from trunkline_broker.core.hub import Hub
from trunkline_broker.core.openings import STOPPING
from trunkline_broker.core.refusal import Refusal
from trunkline_broker.core.specs import StoredAttachment
from trunkline_broker.core.workers import Worker

PUT: Final = "putAttachment"
GET: Final = "getAttachment"
MAX_WRITES: Final = 64  # parts in memory at once: 16 MiB
MAX_READS: Final = 256
MAX_HELD: Final = 256  # queries that wait for a broker to settle, or for one upload
_Asked = tuple[bytes, QueryId]


@dataclass(frozen=True, slots=True)
class Part:
    """The argument of `putAttachment`; without data it only asks."""

    attachment: str
    media_type: str
    total: int
    offset: int
    data: bytes | None


class Uploads:
    """Decides for the attachment store."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.index = AttachmentIndex(hub.spec.attachments_bytes)
        self._held: list[tuple[_Asked, Part]] = []
        self.held_high_water = 0
        self._waiting: dict[str, list[_Asked]] = {}
        self._writes = 0
        self._reads = 0

    @property
    def held_count(self) -> int:
        """Number of parts that wait until it is known which attachments live calls name."""
        return len(self._held)

    # --- from the peers ---------------------------------------------------------------------

    def on_put(self, client: Client, frame: Query) -> None:
        """Take a part, or a question for how much is there."""
        if client.peer is None:
            raise AssertionError("a query comes on a connection")
        self._hub.count("queries")
        asked = (client.peer, frame.query)
        try:
            self._take(asked, self._part(frame))
        except Refusal as refusal:
            self._refuse(asked, refusal)

    def on_get(self, worker: Worker, frame: Query) -> None:
        """Have a part read for a worker that can't read the store itself."""
        if worker.peer is None:
            raise AssertionError("a query comes on a connection")
        self._hub.count("worker_queries")
        try:
            name, offset = self._wanted(frame)
        except Refusal as refusal:
            self._hub.count_refused(refusal.code)
            self._hub.to_worker(worker, Reply(frame.query, refusal.failure()))
            return
        self._reads += 1
        self.index.touch(name)
        self._hub.out.append(do.ReadPart(worker.peer, frame.query, name, offset))

    def touch(self, names: Iterable[str]) -> None:
        """Take note that a call names these."""
        known = tuple(name for name in names if self.index.touch(name))
        if known:
            self._hub.out.append(do.TouchAttachments(known))

    # --- from the shell ---------------------------------------------------------------------

    def start(self, found: Iterable[StoredAttachment]) -> None:
        """Take what the store holds at the start, the longest unused first."""
        for each in found:
            self.index.restore(each.attachment, each.size_bytes, is_stored=each.is_whole)
        if not self._hub.is_settling:
            self._shrink()

    def settle(self) -> None:
        """Take up what waited until it was known which attachments live calls name."""
        self._shrink()
        held, self._held = self._held, []
        for asked, part in held:
            try:
                self._put(asked, part)
            except Refusal as refusal:
                self._refuse(asked, refusal)

    def on_stored(self, event: said.PartStored) -> None:
        """Say how far an upload is."""
        self._writes -= 1
        name = event.attachment
        self.index.written(name, event.received, is_stored=event.is_stored)
        if event.is_stored:
            self._hub.count("attachments_stored")
        self._answer((event.peer, event.query), name)
        self._answer_waiting(name)

    def on_refused(self, event: said.PartRefused) -> None:
        """Say why an upload is gone."""
        self._writes -= 1
        self.index.drop(event.attachment)
        self._refuse((event.peer, event.query), Refusal(event.code, event.message))
        self._answer_waiting(event.attachment)

    def on_checked(self, event: said.AttachmentChecked) -> None:
        """Say that an attachment is there, if its file is."""
        if not event.is_there:
            self._lost(event.attachment)
        self._answer((event.peer, event.query), event.attachment)

    def on_gone(self, event: said.AttachmentsGone) -> None:
        """Forget what somebody else has removed."""
        for name in event.attachments:
            self._lost(name)

    def on_read(self, event: said.PartRead) -> None:
        """Hand a part to the worker that asked."""
        self._reads -= 1
        if event.data is None:
            self._lost(event.attachment)
            gone = Refusal(Code.ATTACHMENT_MISSING, f"attachment {event.attachment} is not stored")
            self._hub.out.append(do.SendToWorker(event.peer, Reply(event.query, gone.failure())))
            return
        body = pack_body({"bytes": event.total, "data": event.data})
        self._hub.out.append(do.SendToWorker(event.peer, Reply(event.query, body=body)))

    def report(self) -> dict[str, object]:
        """Return what the status document says of the store."""
        return {
            "count": len(self.index) - self.index.upload_count,
            "uploads": self.index.upload_count,
            "bytes": self.index.used_bytes,
            "bound": self.index.bound_bytes,
        }

    # --- decisions --------------------------------------------------------------------------

    def _part(self, frame: Query) -> Part:
        if self._hub.is_draining:
            raise Refusal(STOPPING, "the broker is stopping")
        part = read_part(frame)
        most = min(MAX_ATTACHMENT_BYTES, self.index.bound_bytes)
        if part.total > most:
            raise Refusal(Code.ATTACHMENT_TOO_LARGE, f"an attachment has at most {most} bytes")
        return part

    def _wanted(self, frame: Query) -> tuple[str, int]:
        """Read the argument of `getAttachment`.

        Raises:
            Refusal: it is wrong, or nothing can be read.
        """
        if frame.op != GET:
            raise Refusal(Code.UNSUPPORTED, f"a worker may not ask {frame.op!r}")
        argument = _argument(frame)
        name, offset = argument.get("attachment"), argument.get("offset")
        if not is_attachment_id(name):
            raise _invalid("attachment: a valid name is required")
        entry = self.index.get(cast("str", name))
        if entry is None or not entry.is_stored:
            raise Refusal(Code.ATTACHMENT_MISSING, f"attachment {name} is not stored")
        if not _is_count(offset) or cast("int", offset) >= entry.received:
            raise _invalid("offset: a place inside of it is required")
        if self._reads >= MAX_READS:
            raise Refusal(Code.OVERLOADED, f"{MAX_READS} parts are being read already")
        return cast("str", name), cast("int", offset)

    def _take(self, asked: _Asked, part: Part) -> None:
        if not self._hub.is_settling:
            self._put(asked, part)
        elif len(self._held) < MAX_HELD:
            self._held.append((asked, part))
            self.held_high_water = max(self.held_high_water, len(self._held))
        else:
            raise Refusal(Code.OVERLOADED, "too many queries wait")

    def _put(self, asked: _Asked, part: Part) -> None:
        entry = self.index.get(part.attachment)
        if entry is not None and entry.is_stored:
            if entry.total != part.total:
                raise Refusal(Code.INVALID_ATTACHMENT, "bytes: it has another size")
            self.index.touch(part.attachment)
            self._hub.out.append(do.CheckAttachment(*asked, part.attachment, part.total))
        elif entry is not None and entry.is_busy:
            waiting = self._waiting.setdefault(part.attachment, [])
            if len(waiting) >= MAX_HELD:
                raise Refusal(Code.OVERLOADED, "too many clients upload this attachment")
            waiting.append(asked)
        elif part.data is None:
            self._answer(asked, part.attachment, part.total)
        else:
            self._write(asked, part, part.data)

    def _write(self, asked: _Asked, part: Part, data: bytes) -> None:
        name = part.attachment
        if part.offset != self._received(name, part.total):
            self._answer(asked, name, part.total)
            return
        if self._writes >= MAX_WRITES:
            raise Refusal(Code.OVERLOADED, f"{MAX_WRITES} parts are being written already")
        leaving = self.index.announce(name, part.total, self._pinned())
        if leaving is None:
            text = "the attachment store is full of what live calls and uploads use"
            raise Refusal(Code.OVERLOADED, text)
        self._remove(leaving)
        self._writes += 1
        self.index.write(name)
        self._hub.out.append(
            do.StorePart(*asked, name, part.media_type, part.total, part.offset, data)
        )

    def _pinned(self) -> set[str]:
        """Return what live calls name; looked up where room is needed, so nothing can go stale."""
        return {name for call in self._hub.calls for name in call.attachments}

    def _shrink(self) -> None:
        self._remove(self.index.shrink(self._pinned()))

    def _remove(self, names: list[str]) -> None:
        if names:
            self._hub.count("attachments_removed", len(names))
            self._hub.out.append(do.RemoveAttachments(tuple(names)))

    def _lost(self, name: str) -> None:
        """Forget a file that is gone, unless it is being uploaded again already."""
        entry = self.index.get(name)
        if entry is not None and entry.is_stored:
            self._hub.count("attachments_lost")
            self.index.drop(name)

    # --- answers ----------------------------------------------------------------------------

    def _received(self, name: str, total: int | None) -> int:
        """Return how much of an attachment is there; of an upload of another total nothing is."""
        entry = self.index.get(name)
        if entry is None:
            return 0
        is_other = total is not None and entry.total not in (None, total)
        is_over = total is not None and entry.received > total
        return 0 if is_other or is_over else entry.received

    def _answer(self, asked: _Asked, name: str, total: int | None = None) -> None:
        entry = self.index.get(name)
        is_stored = entry is not None and entry.is_stored
        peer, query = asked
        body = pack_body({"next": self._received(name, total), "stored": is_stored})
        self._hub.out.append(do.SendToClient(peer, Reply(query, body=body)))

    def _answer_waiting(self, name: str) -> None:
        for asked in self._waiting.pop(name, ()):
            self._answer(asked, name)

    def _refuse(self, asked: _Asked, refusal: Refusal) -> None:
        peer, query = asked
        self._hub.count_refused(refusal.code)
        self._hub.out.append(do.SendToClient(peer, Reply(query, refusal.failure())))


def read_part(frame: Query) -> Part:
    """Read the argument of `putAttachment`.

    Raises:
        Refusal: `INVALID_ATTACHMENT`; the text names the field.
    """
    argument = _argument(frame)
    name, media_type = argument.get("attachment"), argument.get("mediaType")
    total, offset, data = argument.get("bytes"), argument.get("offset", 0), argument.get("data")
    if not is_attachment_id(name):
        raise _invalid("attachment: sha256: and 64 lowercase hexadecimal digits are required")
    if not is_media_type(media_type):
        raise _invalid("mediaType: such as image/png is required")
    if not _is_count(total) or total == 0:
        raise _invalid("bytes: the size, 1 or more, is required")
    if not _is_count(offset) or cast("int", offset) > cast("int", total):
        raise _invalid("offset: a place inside of it is required")
    if data is not None:
        if type(data) is not bytes or len(data) > ATTACHMENT_PART_BYTES:
            raise _invalid(f"data: at most {ATTACHMENT_PART_BYTES} bytes are required")
        left = cast("int", total) - cast("int", offset)
        if len(data) > left or (not data and left):
            raise _invalid("data: a part that fits between offset and bytes is required")
    return Part(
        cast("str", name), cast("str", media_type), cast("int", total), cast("int", offset), data
    )


def _argument(frame: Query) -> dict[str, Any]:
    try:
        value = read_argument(frame.body)
    except RemoteProtocolError as exc:
        raise _invalid(f"{frame.op}: {exc}") from exc
    if not isinstance(value, dict):
        raise _invalid(f"{frame.op}: the argument must be a map")
    return cast("dict[str, Any]", value)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _invalid(text: str) -> Refusal:
    return Refusal(Code.INVALID_ATTACHMENT, text)
