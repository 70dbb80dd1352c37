"""Where the broker's files are: one private run directory and the names inside it.

It decides and prepares paths; it does not know what is written to them. The client computes the
same endpoint from the same environment names on its own (the packages do not import each other).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RUN_DIR_ENV: Final = "TRUNKLINE_RUN_DIR"
MAX_SOCKET_PATH_BYTES: Final = 107  # unix(7): sun_path holds 108 bytes with its final NUL
PRIVATE_DIR_MODE: Final = 0o700
PASSABLE_DIR_MODE: Final = 0o711  # others may go through it to what they are given, no more
PRIVATE_FILE_MODE: Final = 0o600
_ATTACHMENTS: Final = "attachments"
_USAGE: Final = "usage.sqlite"


class RunDirError(Exception):
    """The run directory can't be used; the text says why and what to do."""


def default_run_dir(environ: Mapping[str, str]) -> Path:
    """Return the run directory that an environment names; nothing is created.

    `TRUNKLINE_RUN_DIR`, else `$XDG_RUNTIME_DIR/trunkline`, else `~/.local/state/trunkline/run`.
    """
    if chosen := environ.get(RUN_DIR_ENV):
        return Path(chosen).expanduser().absolute()
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime, "trunkline").absolute()
    home = environ.get("HOME")
    base = Path(home) if home else Path.home()
    return base / ".local" / "state" / "trunkline" / "run"


def default_attachments_dir(environ: Mapping[str, str]) -> Path:
    """Return the directory of the attachment store that an environment names.

    Inside of the run directory, but where that is below `XDG_RUNTIME_DIR`: this lies in memory and
    has no room for images, so it is `$XDG_STATE_HOME/trunkline/attachments` then.
    """
    if environ.get(RUN_DIR_ENV) or not environ.get("XDG_RUNTIME_DIR"):
        return default_run_dir(environ) / _ATTACHMENTS
    return _state_dir(environ) / _ATTACHMENTS


def default_usage_file(environ: Mapping[str, str]) -> Path:
    """Return the usage ledger that an environment names.

    In the state directory, which survives a restart of the machine; in the run directory only if
    `TRUNKLINE_RUN_DIR` sets that one apart.
    """
    if environ.get(RUN_DIR_ENV):
        return default_run_dir(environ) / _USAGE
    return _state_dir(environ) / _USAGE


def _state_dir(environ: Mapping[str, str]) -> Path:
    home = Path(environ.get("HOME") or Path.home())
    state = Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state")
    return state.absolute() / "trunkline"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The names inside one run directory."""

    root: Path

    @property
    def control(self) -> Path:
        """Socket on which clients speak control frames."""
        return self.root / "control"

    @property
    def lane(self) -> Path:
        """Socket on which clients receive chunks."""
        return self.root / "lane"

    @property
    def workers(self) -> Path:
        """Directory of the workers' sockets and output files."""
        return self.root / "workers"

    @property
    def workers_control(self) -> Path:
        """Socket on which workers speak control frames."""
        return self.workers / "control"

    @property
    def workers_lane(self) -> Path:
        """Socket into which workers send chunks."""
        return self.workers / "lane"

    @property
    def users(self) -> Path:
        """Directory of the sockets of workers that run as other users."""
        return self.root / "users"

    def of_user(self, uid: int) -> tuple[Path, Path]:
        """Return the control socket and the lane of the workers of another user."""
        return self.users / f"{uid}.control", self.users / f"{uid}.lane"

    @property
    def lock(self) -> Path:
        """File whose `flock` says that a broker is alive."""
        return self.root / "broker.lock"

    @property
    def hints(self) -> Path:
        """File that names the worker processes alive, for the next broker."""
        return self.root / "alive.json"

    @property
    def log(self) -> Path:
        """Log of a detached broker."""
        return self.root / "broker.log"

    @property
    def sockets(self) -> tuple[Path, ...]:
        """Every socket file."""
        return (self.control, self.lane, self.workers_control, self.workers_lane)

    def prepare(self, uids: Collection[int] = ()) -> None:
        """Create the directories, private to this user, and check that sockets fit in them.

        Args:
            uids: other users whose workers come through the run directory to their sockets.

        Raises:
            RunDirError: a socket path is too long, a directory belongs to somebody else or is
                open to others, or can't be created. Of a directory that was there nothing is
                changed but whether others may pass through it.
        """
        for path in (*self.sockets, *(path for uid in uids for path in self.of_user(uid))):
            length = len(os.fsencode(path))
            if length > MAX_SOCKET_PATH_BYTES:
                raise RunDirError(
                    f"run directory {self.root} is too long: {path} has {length} bytes and a socket"
                    f" path may have {MAX_SOCKET_PATH_BYTES}; set {RUN_DIR_ENV} to a shorter one"
                )
        make_private(self.root, PASSABLE_DIR_MODE if uids else PRIVATE_DIR_MODE)
        make_private(self.workers)
        if uids:
            make_private(self.users, PASSABLE_DIR_MODE)


def ipc(path: Path) -> str:
    """Return the ZeroMQ endpoint of a socket file."""
    return f"ipc://{path}"


def make_private(directory: Path, wanted: int = PRIVATE_DIR_MODE) -> None:
    """Create a directory that only this user can enter, or see that it is one.

    Args:
        directory: its path.
        wanted: the mode it gets; `PASSABLE_DIR_MODE`: others may pass through, and see nothing.

    Raises:
        RunDirError: it can't be created, is somebody else's, or open to others.
    """
    try:
        directory.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
        facts = directory.stat()
    except OSError as exc:
        raise RunDirError(f"can't create directory {directory}: {exc.strerror}") from exc
    if facts.st_uid != os.geteuid():
        raise RunDirError(f"directory {directory} belongs to another user (uid {facts.st_uid})")
    mode = stat.S_IMODE(facts.st_mode)
    if mode & 0o077 & ~PASSABLE_DIR_MODE:
        raise RunDirError(
            f"directory {directory} is open to other users (mode {mode:04o});"
            f" make it private: chmod 700 {directory}"
        )
    if mode != wanted:
        directory.chmod(wanted)
