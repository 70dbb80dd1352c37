"""Attachments as adapters get them: bytes by name, from the store or from the broker (SPEC 7.1).

The broker fills the store and this only reads it. Where the broker's directory is none of this
host, parts are asked for and kept in memory for the calls that follow. Whatever comes is hashed, so
no file and no peer can pass off other bytes.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from trunkline_protocol.attachments import attachment_id, digest_of, is_attachment_id
from trunkline_protocol.content import ImageAttachment
from trunkline_protocol.failure import Code, LlmError
from trunkline_protocol.image_header import IMAGE_TYPES, read_image_header
from trunkline_protocol.limits import ATTACHMENT_PART_BYTES, MAX_ATTACHMENT_BYTES

KEPT_BYTES: Final = 128 * 1024 * 1024  # fetched ones, the longest unused are forgotten first
_HEAD_BYTES: Final = 64 * 1024  # the size of an image is mostly in here; a JPEG may have it later
_FETCHES: Final = 4  # at once, so that a slow link does not hold more than these in memory

Ask = Callable[[str, object], Awaitable[object]]


class Attachments:
    """Reads attachments for the adapters of one worker.

    Args:
        ask: puts a question to the broker.
        kept_bytes: most bytes that are remembered of what was fetched.
    """

    def __init__(self, ask: Ask, kept_bytes: int = KEPT_BYTES) -> None:
        self._ask = ask
        self._kept_bytes = kept_bytes
        self._directory: Path | None = None
        self._fetched: OrderedDict[str, bytes] = OrderedDict()
        self._fetches = asyncio.Semaphore(_FETCHES)

    def use(self, directory: str) -> None:
        """Read from this directory from now on; it need not exist on this host."""
        self._directory = Path(directory)

    async def ensure(self, claims: Iterable[ImageAttachment]) -> None:
        """Make sure that each of these can be read and is what is said of it.

        To be done before a provider is asked: adapters choose by what a request claims.

        Raises:
            LlmError: `ATTACHMENT_MISSING`, `INVALID_ATTACHMENT`, with the name in the text;
                `TRANSPORT`, `OVERLOADED`: the broker could not be asked.
        """
        for claim in claims:
            path = self._path(claim.attachment_id)
            is_true = path is not None and await asyncio.to_thread(_is_file_as_said, path, claim)
            if not is_true:  # not here, damaged, or the claim is false: its bytes tell which
                data = await self.read(claim.attachment_id)
                wrong = await asyncio.to_thread(_untruth, claim, data, len(data))
                if wrong:
                    text = f"attachment {claim.attachment_id} is not what the request says: {wrong}"
                    raise LlmError.of(text, Code.INVALID_ATTACHMENT)

    async def read(self, name: str) -> bytes:
        """Return the bytes of an attachment; safe to cancel.

        Raises:
            LlmError: as `ensure`.
        """
        path = self._path(name)
        if path is None:
            raise missing(name)
        data = self._remembered(name) or await asyncio.to_thread(_read, path, name)
        return data or await self._fetch(name)

    def _path(self, name: str) -> Path | None:
        if self._directory is None or not is_attachment_id(name):
            return None
        return self._directory / digest_of(name)

    def _remembered(self, name: str) -> bytes | None:
        data = self._fetched.get(name)
        if data is not None:
            self._fetched.move_to_end(name)
        return data

    async def _fetch(self, name: str) -> bytes:
        async with self._fetches:
            data = self._remembered(name)  # another call may have fetched it meanwhile
            if data is None:
                data = await self._fetch_parts(name)
                if await asyncio.to_thread(attachment_id, data) != name:
                    raise _unusable(name, "its bytes do not have this hash")
                self._remember(name, data)
        return data

    async def _fetch_parts(self, name: str) -> bytes:
        parts = bytearray()
        total: int | None = None
        while total is None or len(parts) < total:
            argument = {"attachment": name, "offset": len(parts)}
            size, data = _part(await self._ask("getAttachment", argument), name)
            if total not in (None, size) or len(parts) + len(data) > size:
                raise _unusable(name, "its parts do not fit together")
            total = size
            parts += data
        return bytes(parts)

    def _remember(self, name: str, data: bytes) -> None:
        self._fetched[name] = data
        held = sum(map(len, self._fetched.values()))
        while held > self._kept_bytes:
            _, dropped = self._fetched.popitem(last=False)
            held -= len(dropped)


def missing(name: str) -> LlmError:
    """Return the error of an attachment that is nowhere."""
    return LlmError.of(f"attachment {name} is not stored here", Code.ATTACHMENT_MISSING)


def _unusable(name: str, why: str) -> LlmError:
    return LlmError.of(f"attachment {name} is damaged: {why}", Code.ATTACHMENT_MISSING)


def _part(answer: object, name: str) -> tuple[int, bytes]:
    """Read one answer to `getAttachment`."""
    fields: Mapping[str, Any] = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
    size, data = fields.get("bytes"), fields.get("data")
    if type(size) is not int or not 0 < size <= MAX_ATTACHMENT_BYTES:
        raise _unusable(name, "the broker told no size of it")
    if type(data) is not bytes or not 0 < len(data) <= ATTACHMENT_PART_BYTES:
        raise _unusable(name, "the broker sent no part of it")
    return size, data


def _is_file_as_said(path: Path, claim: ImageAttachment) -> bool:
    """Tell whether there is a file whose beginning bears out a claim; `False` may mean anything."""
    try:
        with _opened(path) as file:
            facts = os.fstat(file.fileno())
            return stat.S_ISREG(facts.st_mode) and not _untruth(
                claim, file.read(_HEAD_BYTES), facts.st_size
            )
    except OSError:  # not here, or on another host
        return False


def _untruth(claim: ImageAttachment, head: bytes, size: int) -> str:
    """Return what a claim gets wrong; empty: nothing that the first bytes can tell."""
    if claim.bytes != size:
        return f"it has {size} bytes, not {claim.bytes}"
    try:
        facts = read_image_header(head)
    except ValueError as exc:
        return str(exc)
    if facts is None:
        is_known = claim.media_type in IMAGE_TYPES
        return f"it is no {claim.media_type}" if is_known else ""
    if claim.media_type != facts.media_type:
        return f"it is {facts.media_type}, not {claim.media_type}"
    if (claim.width, claim.height) != (facts.width, facts.height):
        claimed = f"{claim.width} x {claim.height}"
        return f"it has {facts.width} x {facts.height} pixels, not {claimed}"
    return ""


def _opened(path: Path) -> BinaryIO:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    return open(os.open(path, flags), "rb")


def _read(path: Path, name: str) -> bytes | None:
    """Return a file of the store; `None` if there is none, or none with the right bytes."""
    try:
        file = _opened(path)
    except OSError:
        return None
    with file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_ATTACHMENT_BYTES:
            return None
        data = file.read()
    return data if attachment_id(data) == name else None
