"""`llm.attachments`: images on their way into the broker's store (SPEC.md section 7.1).

An attachment is named by the hash of its bytes, so putting the same one again sends nothing, and an
upload that was broken off goes on where it was.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast

from trunkline_protocol.attachments import attachment_id
from trunkline_protocol.content import ImageAttachment
from trunkline_protocol.failure import Code, LlmError, LocalProtocolError, RemoteProtocolError
from trunkline_protocol.image_header import ImageFacts, read_image_header
from trunkline_protocol.limits import ATTACHMENT_PART_BYTES, MAX_ATTACHMENT_BYTES

from trunkline import arguments

_OP: Final = "putAttachment"
_UPLOADS: Final = 4  # at once; the others wait, so that control stays free for calls
_AT_ONCE_BYTES: Final = 1024 * 1024  # hashed in the loop in about 1 ms; more goes to a thread
_MAX_STEPS_BACK: Final = 8


class Asker(Protocol):
    """Whatever can put one question."""

    async def query(self, op: str, argument: object = None) -> Any:
        """Return the decoded answer."""
        ...


class Attachments:
    """Puts images into the broker's store."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._uploads = asyncio.Semaphore(_UPLOADS)

    async def put(
        self, data: bytes, media_type: str | None = None, name: str | None = None
    ) -> ImageAttachment:
        """Store an image and return what an `ImageBlock` names it by.

        Sends only what the broker lacks. Safe to cancel: what was sent is not sent again.

        Args:
            data: a whole PNG, JPEG, GIF or WebP file, 1 byte to 64 MiB.
            media_type: if given, the type that the bytes must have.
            name: file name to be shown, at most 256 characters.

        Raises:
            LocalProtocolError: no such image, too large, or another type; nothing was sent.
            LlmError: `OVERLOADED`, `ATTACHMENT_TOO_LARGE`: no room in the store;
                `ATTACHMENT_STORE_FAILED`: such as a full disk; `INVALID_ATTACHMENT`; `TIMEOUT`.
        """
        data = _bytes(data)
        facts = _facts(data, media_type)
        if name is not None:
            arguments.name("name", name)
        is_short = len(data) <= _AT_ONCE_BYTES
        key = attachment_id(data) if is_short else await asyncio.to_thread(attachment_id, data)
        async with self._uploads:
            await self._upload(key, facts.media_type, data)
        return ImageAttachment(
            attachment_id=key,
            media_type=facts.media_type,
            bytes=len(data),
            width=facts.width,
            height=facts.height,
            name=name,
        )

    async def put_file(
        self, path: str | Path, media_type: str | None = None, name: str | None = None
    ) -> ImageAttachment:
        """Store an image file; arguments and errors as `put`.

        Args:
            path: of the file.
            media_type: as `put`.
            name: by default the last part of the path.

        Raises:
            OSError: the file can't be read, or is not a regular one, such as a pipe.
        """
        path = arguments.path("path", path)
        data = await asyncio.to_thread(_read, path)
        return await self.put(data, media_type, path.name if name is None else name)

    async def _upload(self, key: str, media_type: str, data: bytes) -> None:
        try:
            await self._send_rest(key, media_type, data)
        except LlmError as exc:
            # Wrong parts of another client may have been in it. They are gone: these go on alone.
            if exc.code != Code.INVALID_ATTACHMENT:
                raise
            await self._send_rest(key, media_type, data)

    async def _send_rest(self, key: str, media_type: str, data: bytes) -> None:
        """Send what the broker lacks, part by part, wherever it stands."""
        head = {"attachment": key, "mediaType": media_type, "bytes": len(data)}
        at, is_stored = _progress(await self._asker.query(_OP, head), len(data))
        steps_back = 0
        while not is_stored:
            part = {**head, "offset": at, "data": data[at : at + ATTACHMENT_PART_BYTES]}
            reached, is_stored = _progress(await self._asker.query(_OP, part), len(data))
            if reached <= at and not is_stored:
                steps_back += 1
            if steps_back > _MAX_STEPS_BACK:
                text = f"the upload of {key} does not get on: the store lets it go again and again"
                raise LlmError.of(text, Code.OVERLOADED)
            at = reached


def _bytes(data: object) -> bytes:
    """Return a copy that nobody changes; a number would be that many zeros to `bytes`."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise LocalProtocolError("data: bytes are required")
    return bytes(cast("bytes", data))


def _facts(data: bytes, media_type: str | None) -> ImageFacts:
    if len(data) > MAX_ATTACHMENT_BYTES:
        raise LocalProtocolError(f"data: an image has at most {MAX_ATTACHMENT_BYTES} bytes")
    try:
        facts = read_image_header(data)
    except ValueError as exc:
        raise LocalProtocolError(f"data: {exc}") from None
    if facts is None:
        raise LocalProtocolError("data: a PNG, JPEG, GIF or WebP image is required")
    if media_type is not None and media_type != facts.media_type:
        raise LocalProtocolError(f"media_type: the bytes are {facts.media_type}, not {media_type}")
    return facts


def _progress(answer: object, size: int) -> tuple[int, bool]:
    """Read how far the broker is."""
    fields: Mapping[str, Any] = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
    reached, is_stored = fields.get("next"), fields.get("stored")
    if type(reached) is not int or not 0 <= reached <= size or not isinstance(is_stored, bool):
        raise RemoteProtocolError(f"{_OP}: the answer is malformed")
    return reached, is_stored


def _read(path: Path) -> bytes:
    # Opening a FIFO waits for its writer, in a thread that nobody can end.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(MAX_ATTACHMENT_BYTES + 1)  # one more shows that it is too large
