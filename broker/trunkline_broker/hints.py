"""`alive.json`: which worker processes were alive, so that the next broker adopts them.

A hint and no more: it is checked against the kernel (boot, pid, start time of the process) before
it is believed, and a broker without it only starts workers that it need not have started.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel
from trunkline_protocol.limits import MAX_NAME_BYTES
from trunkline_protocol.secret import SecretStr

from trunkline_broker.paths import PRIVATE_FILE_MODE
from trunkline_broker.regular_files import open_regular, read_regular

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOST_BYTES: Final = 4 * 1024 * 1024
_MOST_ROWS: Final = 4096
_MOST_NUMBER: Final = 1 << 31
_MOST_EPOCH: Final = (
    1 << 62
)  # ns: the year 2116; a later broker's epoch is one more and has 64 bits
_MOST_PID: Final = 1 << 22  # of Linux on machines of 64 bits
_MOST_PATH_CHARS: Final = 4096
_MOST_TOKEN_CHARS: Final = 256


class Hint(BaseModel):
    """One worker.

    Attributes:
        pid: its process; `None`: it is on another host, or this one can't see it, and only its
            registration will tell whether it lives.
        started_ticks: start time in clock ticks since boot; tells a pid that was used again.
        output: file its output goes to, empty if there is none.
        token: its spawn token in hex, with which it proves itself to the next broker.
        is_manual: somebody else started it, so no broker signals it.
    """

    model_config = ConfigDict(
        frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True
    )
    pool: str = Field(min_length=1, max_length=MAX_NAME_BYTES)
    slot: int = Field(ge=0, lt=_MOST_NUMBER)
    epoch: int = Field(ge=0, lt=_MOST_EPOCH)
    number: int = Field(ge=0, lt=_MOST_NUMBER)
    pid: int | None = Field(default=None, gt=1, le=_MOST_PID)
    started_ticks: int = Field(default=0, ge=0, lt=_MOST_EPOCH)
    output: str = Field(default="", max_length=_MOST_PATH_CHARS)
    token: SecretStr = SecretStr("")
    is_manual: bool = False

    @field_validator("pool", "output")
    @classmethod
    def _is_plain(cls, text: str) -> str:
        if text and not text.isprintable():
            raise ValueError("it has characters that cannot be shown")
        return text

    @field_validator("token")
    @classmethod
    def _is_hex(cls, token: SecretStr) -> SecretStr:
        if len(token.get_secret_value()) > _MOST_TOKEN_CHARS:
            raise ValueError("it is too long")
        bytes.fromhex(token.get_secret_value())  # ValueError: it is no token
        return token


class _HintFile(BaseModel):
    model_config = ConfigDict(
        frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True
    )
    boot_id: str
    workers: list[Any]
    # Apart, since older brokers take a file whole or not at all and knew no worker without a pid.
    unseen: list[Any] = Field(default_factory=list[Any])


def write_hints(path: Path, hints: Sequence[Hint]) -> None:
    """Replace the file in one step.

    Raises:
        OSError: it can't be written; the one before stays.
    """
    seen = [hint for hint in hints if hint.pid is not None]
    unseen = [hint for hint in hints if hint.pid is None]
    document = {"bootId": _boot_id(), "workers": _rows(seen), "unseen": _rows(unseen)}
    fresh = path.with_suffix(".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(open_regular(fresh, flags, PRIVATE_FILE_MODE), "w", encoding="ascii") as opened:
        json.dump(document, opened)
    fresh.replace(path)


def _rows(hints: Sequence[Hint]) -> list[dict[str, Any]]:
    # The token in clear: this is the one place that it is kept in, and the file is 0600.
    return [
        hint.model_dump(by_alias=True) | {"token": hint.token.get_secret_value()} for hint in hints
    ]


def read_hints(path: Path) -> list[Hint]:
    """Return what the broker before has written.

    Nothing if there is no file, or if it is damaged. A row that cannot be, or names a process or a
    worker for the second time, is left out: its worker registers by itself, or ends as an orphan.
    """
    try:
        document = _HintFile.model_validate_json(read_regular(path, _MOST_BYTES), strict=True)
    except (OSError, ValidationError):
        return []  # half a file of a full disk, or none: the workers register by themselves
    if document.boot_id != _boot_id():
        return []
    found: dict[tuple[int, int], Hint] = {}
    pids: set[int | None] = set()
    for row in [*document.workers, *document.unseen][:_MOST_ROWS]:
        with contextlib.suppress(ValidationError):
            hint = Hint.model_validate(row, strict=True)
            if hint.pid is None or hint.pid not in pids:
                pids.add(hint.pid)
                found.setdefault((hint.epoch, hint.number), hint)
    return list(found.values())


def started_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; `None` if it is no more."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # proc_pid_stat(5): field 22; field 2 is the name in brackets and may hold spaces.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
