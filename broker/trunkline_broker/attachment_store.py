"""The files of the attachment store, written and read by one thread, one after the other.

The loop never waits for a disk, and no two steps meet: an effect that comes later finds done what
came before. What is to be written or removed is the core's decision. A whole attachment is a file
named by its digest; an unfinished upload has `.part` behind it and goes on after a restart. A file
gets its final name only when its bytes were hashed and are on the disk.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, assert_never

from trunkline_protocol.attachments import PREFIX, digest_of, is_digest
from trunkline_protocol.codes import Code
from trunkline_protocol.image_header import HEAD_BYTES, sniff_media_type
from trunkline_protocol.limits import (
    ATTACHMENT_PART_BYTES,
    MAX_CLIENTS,
    MAX_OPEN_QUERIES_PER_CLIENT,
)

from trunkline_broker.core import effects as do
from trunkline_broker.core import events as said
from trunkline_broker.core.specs import StoredAttachment
from trunkline_broker.edge import Edge
from trunkline_broker.locks import open_lock
from trunkline_broker.paths import PRIVATE_FILE_MODE, make_private
from trunkline_broker.queues import QueueFigures
from trunkline_broker.regular_files import open_regular

PART_SUFFIX: Final = ".part"
_MAX_STEPS: Final = MAX_CLIENTS * MAX_OPEN_QUERIES_PER_CLIENT
_LOCK: Final = "lock"
_HASH_AT_ONCE: Final = 1024 * 1024
_KNOWN: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

_Report = Callable[[said.AttachmentEvent], None]


class _UnfitError(Exception):
    """The bytes of an upload are not what was announced."""


class AttachmentStore:
    """One directory, held by one broker; must be made with the loop running.

    Args:
        directory: made private if it is not there.
        report: takes events, on the loop.
        edge: takes what no disk explains; whoever asked gets an answer all the same.

    Raises:
        RunDirError, OSError: the directory can't be used.
    """

    def __init__(self, directory: Path, report: _Report, edge: Edge) -> None:
        self._directory = directory
        self._report = report
        self._edge = edge
        self._loop = asyncio.get_running_loop()
        self._cleanup = ExitStack()
        make_private(directory)
        lock = open_lock(directory / _LOCK)
        self._cleanup.callback(os.close, lock)
        # Brokers with different run directories may share a home: only one writes.
        self._is_ours = _is_locked(lock)
        self._waiting = self._high_water = 0
        self._thread = ThreadPoolExecutor(1, "attachments")
        self._cleanup.callback(self._thread.shutdown, wait=True, cancel_futures=True)
        # A thread now: later there may be no memory or no place for one.
        self._thread.submit(_nothing)

    @property
    def is_ours(self) -> bool:
        """Whether this broker may write; another one does if not."""
        return self._is_ours

    def close(self) -> None:
        """Finish the step under way and drop the rest; uploads go on with the next broker."""
        self._cleanup.close()

    def scan(self) -> tuple[StoredAttachment, ...]:
        """Return what is there, the longest unused first; other files are left alone."""
        return self._edge.run(self._scan, ()) if self._is_ours else ()

    def _scan(self) -> tuple[StoredAttachment, ...]:
        found: list[tuple[int, StoredAttachment]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                digest = entry.name.removesuffix(PART_SUFFIX)
                if not is_digest(digest) or not entry.is_file(follow_symlinks=False):
                    continue
                facts = entry.stat(follow_symlinks=False)
                each = StoredAttachment(PREFIX + digest, facts.st_size, entry.name == digest)
                found.append((facts.st_mtime_ns, each))
        found.sort(key=lambda each: each[0])
        whole = {each.attachment for _, each in found if each.is_whole}
        for name in (each.attachment for _, each in found if not each.is_whole):
            if name in whole:
                self._part_path(name).unlink(missing_ok=True)
        return tuple(each for _, each in found if each.is_whole or each.attachment not in whole)

    def perform(self, effect: do.AttachmentEffect) -> None:
        """Have the thread perform an effect, after those that came before."""
        self._waiting += 1
        self._high_water = max(self._high_water, self._waiting)
        self._thread.submit(self._answered, effect).add_done_callback(self._on_done)

    def queue(self) -> QueueFigures:
        """Return the steps that are not done; nearly all come of a query, hence the bound."""
        return QueueFigures("attachment steps", self._waiting, self._high_water, _MAX_STEPS)

    def _on_done(self, done: Future[said.AttachmentEvent | None]) -> None:
        """Bring what a step found out to the loop."""
        if not done.cancelled():
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._deliver, done)

    def _deliver(self, done: Future[said.AttachmentEvent | None]) -> None:
        self._waiting -= 1
        event = done.result()
        if event is not None:
            self._report(event)

    # --- in the thread ----------------------------------------------------------------------

    def _answered(self, effect: do.AttachmentEffect) -> said.AttachmentEvent | None:
        """Perform a step; one that fails in any way has an answer too."""
        try:
            return self._step(effect)
        except Exception as exc:  # noqa: BLE001  # any error of a side service ends at its edge
            self._edge.note(exc)
        match effect:
            case do.StorePart():
                text = "the attachment could not be stored; the broker's log says why"
                return self._refused(effect, Code.ATTACHMENT_STORE_FAILED, text)
            case do.CheckAttachment(peer, query, name, _):
                return said.AttachmentChecked(peer, query, name, False)
            case do.ReadPart(peer, query, name, _):
                return said.PartRead(peer, query, name, 0, None)
            case _:
                return None

    def _step(self, effect: do.AttachmentEffect) -> said.AttachmentEvent | None:
        match effect:
            case do.StorePart():
                return self._store(effect)
            case do.CheckAttachment(peer, query, name, total):
                is_there = self._touch(name, total)
                return said.AttachmentChecked(peer, query, name, is_there)
            case do.ReadPart():
                return self._read(effect)
            case do.TouchAttachments(names):
                gone = tuple(name for name in names if not self._touch(name))
                return said.AttachmentsGone(gone) if gone else None
            case do.RemoveAttachments(names):
                for name in names:
                    self._unlink(name)
                return None
            case _:
                assert_never(effect)

    def _store(self, effect: do.StorePart) -> said.AttachmentEvent:
        name = effect.attachment
        if not self._is_ours:
            text = f"another broker holds the attachment store {self._directory}"
            return self._refused(effect, Code.ATTACHMENT_STORE_FAILED, text)
        try:
            received = self._write(effect)
        except OSError as exc:
            self._unlink(name)
            text = f"the attachment could not be stored: {exc.strerror}"
            return self._refused(effect, Code.ATTACHMENT_STORE_FAILED, text)
        except _UnfitError as exc:
            self._unlink(name)
            return self._refused(effect, Code.INVALID_ATTACHMENT, str(exc))
        is_stored = received == effect.total
        return said.PartStored(effect.peer, effect.query, name, received, is_stored)

    def _refused(self, effect: do.StorePart, code: str, text: str) -> said.PartRefused:
        return said.PartRefused(effect.peer, effect.query, effect.attachment, code, text)

    def _write(self, effect: do.StorePart) -> int:
        """Write a part; the last one gives the file its name. Return how much is there."""
        part = self._part_path(effect.attachment)
        descriptor = open_regular(part, _WRITE, PRIVATE_FILE_MODE)
        try:
            size = os.fstat(descriptor).st_size
            if size < effect.offset:
                return size  # somebody has cut it
            os.ftruncate(descriptor, effect.offset)
            _write_all(descriptor, effect.data, effect.offset)
            received = effect.offset + len(effect.data)
            if received == effect.total:
                _check(descriptor, effect)
                os.fsync(descriptor)
                part.rename(self._path(effect.attachment))
        finally:
            os.close(descriptor)
        return received

    def _read(self, effect: do.ReadPart) -> said.PartRead:
        peer, query, name = effect.peer, effect.query, effect.attachment
        try:
            descriptor = open_regular(self._path(name), _READ)
            with open(descriptor, "rb", buffering=0) as file:
                total = os.fstat(descriptor).st_size
                data = os.pread(file.fileno(), ATTACHMENT_PART_BYTES, effect.offset)
        except OSError:
            return said.PartRead(peer, query, name, 0, None)
        return said.PartRead(peer, query, name, total, data or None)

    def _touch(self, name: str, total: int | None = None) -> bool:
        """Note that a file is used now, for the order after a restart; `False`: it is gone."""
        path = self._path(name)
        try:
            facts = path.lstat()
            is_there = stat.S_ISREG(facts.st_mode) and total in (None, facts.st_size)
            if is_there:
                os.utime(path, follow_symlinks=False)
        except OSError:
            return False
        return is_there

    def _unlink(self, name: str) -> None:
        """Remove whatever is there of an attachment; what can't be removed is found again later."""
        for path in (self._path(name), self._part_path(name)):
            with suppress(OSError):
                path.unlink()

    def _path(self, name: str) -> Path:
        return self._directory / digest_of(name)

    def _part_path(self, name: str) -> Path:
        return self._directory / (digest_of(name) + PART_SUFFIX)


def _nothing() -> None:
    """Do nothing: the executor starts its thread with its first job."""


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _check(descriptor: int, effect: do.StorePart) -> None:
    """Compare a whole file with what was announced.

    Raises:
        _UnfitError: hash or media type do not fit.
    """
    digest = sha256()
    at = 0
    while piece := os.pread(descriptor, _HASH_AT_ONCE, at):
        digest.update(piece)
        at += len(piece)
    if PREFIX + digest.hexdigest() != effect.attachment:
        raise _UnfitError(f"the uploaded bytes do not have the hash in {effect.attachment}")
    found = sniff_media_type(os.pread(descriptor, HEAD_BYTES, 0))
    if found != effect.media_type and (found is not None or effect.media_type in _KNOWN):
        text = f"mediaType: the bytes are {found or 'something else'}, not {effect.media_type}"
        raise _UnfitError(text)
