"""What a worker prints: a private file that the worker writes itself, kept below a size.

Never a pipe: a reader that stops would block the worker's loop (measured). The writer appends
(`O_APPEND`), so the broker may cut the file under it: the last part is kept beside it as `.old`.
Lines written between that copy and the cut are lost, which is the price of having no reader.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from trunkline_broker.paths import PRIVATE_FILE_MODE
from trunkline_broker.regular_files import open_regular

OUTPUT_LIMIT_BYTES: Final = 1024 * 1024  # per process; as much again in `.old`
TAIL_LINES: Final = 20  # what an exit report carries
_PROMPTS: Final = (b"[trunkline] prompt call=", b"[trunkline] answer call=")
"""How lines of the workers' debug switch begin (their `prompts.py`)."""
_TAIL_BYTES: Final = 8 * 1024
_LINE_CHARS: Final = 500
_KEPT_FILES: Final = 4  # of one slot: the living one, an adopted one, and two to look back at


def output_path(directory: Path, pool: str, slot: int, epoch: int, number: int) -> Path:
    """Return the file of one process: `POOL-SLOT-NUMBER.EPOCH.log`, epoch in seconds.

    The epoch is in the name since numbers start anew with each broker while a process that was
    started by the broker before may still write.
    """
    return directory / f"{pool}-{slot}-{number}.{epoch // 1_000_000_000}.log"


def open_output(path: Path) -> int:
    """Create the file, empty, mode 0600, for appending; the caller closes the descriptor.

    Raises:
        OSError: it can't be created, or something else has its name.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
    descriptor = open_regular(path, flags, PRIVATE_FILE_MODE)
    os.set_blocking(descriptor, True)
    return descriptor


def keep_below(path: Path, limit_bytes: int = OUTPUT_LIMIT_BYTES) -> bool:
    """Cut the file if it is larger than the limit, its end kept in `.old`; say whether it was.

    With a full disk the end is not kept and the file is cut all the same.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return False
    if size <= limit_bytes:
        return False
    with contextlib.suppress(OSError):  # disk full or read-only: losing the end is the rule above
        keep_end(path, limit_bytes)
    os.truncate(path, 0)
    return True


def keep_end(path: Path, most_bytes: int) -> None:
    """Write the end of a file beside it, as `.old`.

    Raises:
        OSError: it cannot be read or written.
    """
    end = _read_end(path, most_bytes)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(open_regular(path.with_suffix(".old"), flags, PRIVATE_FILE_MODE), "wb") as old:
        old.write(end)


def last_lines(path: Path, count: int = TAIL_LINES) -> tuple[str, ...]:
    """Return the last lines that were printed, the oldest first; none if nothing can be read.

    They go into the broker's log and status, so prompts and answers that a worker writes for
    `debug_prompts` are left out, and so is a line without its beginning, which may be one of them.
    """
    end = b""
    is_cut = False
    for part in (path.with_suffix(".old"), path):
        with contextlib.suppress(OSError):  # no such file: nothing was printed, or never cut
            size = part.stat().st_size
            is_cut = is_cut or part != path or size > _TAIL_BYTES
            end = (end if size < _TAIL_BYTES else b"") + _read_end(part, _TAIL_BYTES)
    # At newlines alone: what else Unicode takes for the end of a line may be in a prompt.
    lines = end.split(b"\n")[1 if is_cut else 0 :]
    texts = (line.decode("utf-8", "replace") for line in lines if not line.startswith(_PROMPTS))
    return tuple(text[:_LINE_CHARS] for text in texts if text.strip())[-count:]


def prune(directory: Path, pool: str, slot: int, keep: int = _KEPT_FILES) -> None:
    """Remove the oldest output files of a slot beyond `keep`."""
    files = [path for path in directory.glob(f"{pool}-{slot}-*.log") if path.is_file()]
    files.sort(key=lambda path: path.stat().st_mtime_ns)
    for path in files[:-keep]:
        path.unlink(missing_ok=True)
        path.with_suffix(".old").unlink(missing_ok=True)


def _read_end(path: Path, most_bytes: int) -> bytes:
    with open(open_regular(path), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most_bytes))
        return file.read(most_bytes)
