"""`alive.json`: which worker processes were alive, so that the next broker adopts them.

A hint and no more: it is checked against the kernel (boot, pid, start time of the process) before
it is believed, and a broker without it only starts workers that it need not have started.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from trunkline_protocol.secret import SecretStr

from trunkline_broker.paths import PRIVATE_FILE_MODE

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Hint(BaseModel):
    """One worker process.

    Attributes:
        started_ticks: start time in clock ticks since boot; tells a pid that was used again.
        output: file its output goes to, empty if there is none.
        token: its spawn token in hex, with which it proves itself to the next broker.
    """

    model_config = ConfigDict(
        frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True
    )
    pool: str
    slot: int = Field(ge=0)
    epoch: int = Field(ge=0)
    number: int = Field(ge=0)
    pid: int = Field(gt=1)
    started_ticks: int = Field(ge=0)
    output: str = ""
    token: SecretStr = SecretStr("")


class _HintFile(BaseModel):
    model_config = ConfigDict(
        frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True
    )
    boot_id: str
    workers: list[Hint]


def write_hints(path: Path, hints: Sequence[Hint]) -> None:
    """Replace the file in one step.

    Raises:
        OSError: it can't be written; the one before stays.
    """
    document = _HintFile(boot_id=_boot_id(), workers=list(hints)).model_dump(by_alias=True)
    for row, hint in zip(document["workers"], hints, strict=True):
        row["token"] = hint.token.get_secret_value()  # the one place that it is kept in: 0600
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    with os.fdopen(fd, "w") as file:
        json.dump(document, file)
    fresh.replace(path)


def read_hints(path: Path) -> list[Hint]:
    """Return what the broker before has written; nothing if there is no file or it is damaged."""
    try:
        document = _HintFile.model_validate_json(path.read_bytes(), strict=True)
    except (OSError, ValidationError):
        return []  # half a file of a full disk, or none: the workers register by themselves
    return document.workers if document.boot_id == _boot_id() else []


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
