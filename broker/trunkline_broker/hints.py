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
    pool: str
    slot: int = Field(ge=0)
    epoch: int = Field(ge=0)
    number: int = Field(ge=0)
    pid: int | None = Field(default=None, gt=1)
    started_ticks: int = Field(default=0, ge=0)
    output: str = ""
    token: SecretStr = SecretStr("")
    is_manual: bool = False


class _HintFile(BaseModel):
    model_config = ConfigDict(
        frozen=True, strict=True, alias_generator=to_camel, populate_by_name=True
    )
    boot_id: str
    workers: list[Hint]
    # Apart, since older brokers take a file whole or not at all and knew no worker without a pid.
    unseen: list[Hint] = Field(default_factory=list[Hint])


def write_hints(path: Path, hints: Sequence[Hint]) -> None:
    """Replace the file in one step.

    Raises:
        OSError: it can't be written; the one before stays.
    """
    seen = [hint for hint in hints if hint.pid is not None]
    unseen = [hint for hint in hints if hint.pid is None]
    file = _HintFile(boot_id=_boot_id(), workers=seen, unseen=unseen)
    document = file.model_dump(by_alias=True)
    for rows, written in ((document["workers"], seen), (document["unseen"], unseen)):
        for row, hint in zip(rows, written, strict=True):
            row["token"] = hint.token.get_secret_value()  # the one place that it is kept in: 0600
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    with os.fdopen(fd, "w") as opened:
        json.dump(document, opened)
    fresh.replace(path)


def read_hints(path: Path) -> list[Hint]:
    """Return what the broker before has written; nothing if there is no file or it is damaged."""
    try:
        document = _HintFile.model_validate_json(path.read_bytes(), strict=True)
    except (OSError, ValidationError):
        return []  # half a file of a full disk, or none: the workers register by themselves
    return [*document.workers, *document.unseen] if document.boot_id == _boot_id() else []


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
