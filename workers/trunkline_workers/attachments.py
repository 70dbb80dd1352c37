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
from typing import Any, Final, cast

from trunkline_protocol.attachments import attachment_id, digest_of, is_attachment_id
from trunkline_protocol.failure import Code, LlmError
from trunkline_protocol.limits import ATTACHMENT_PART_BYTES, MAX_ATTACHMENT_BYTES

KEPT_BYTES: Final = 128 * 1024 * 1024  # fetched ones, the longest unused are forgotten first
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

    async def ensure(self, names: Iterable[str]) -> None:
        """Make sure that every one of these can be read, before a provider is asked.

        Raises:
            LlmError: `ATTACHMENT_MISSING`, with the name in its text; `TRANSPORT`, `OVERLOADED`:
                the broker could not be asked.
        """
        for name in names:
            path = self._path(name)
            if path is None or not await asyncio.to_thread(_is_file, path):
                await self.read(name)

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


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode) and os.access(path, os.R_OK)
    except OSError:  # not here, or on another host
        return False


def _read(path: Path, name: str) -> bytes | None:
    """Return a file of the store; `None` if there is none, or none with the right bytes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_ATTACHMENT_BYTES:
            return None
        data = file.read()
    return data if attachment_id(data) == name else None
