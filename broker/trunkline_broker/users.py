"""Workers as users of their own: who that is, and the sockets that they reach the broker by.

Only root can start processes as somebody else. The run directory lets others pass through then
(0711, nothing in it can be listed or opened), and for each such user there is a pair of sockets
that belong to it (0600). Everything else stays the broker's alone.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trunkline_broker.core.specs import PoolSpec
from trunkline_broker.paths import PRIVATE_FILE_MODE, RunPaths, ipc
from trunkline_broker.sockets import Socket


class UserError(Exception):
    """A worker can't run as the user that its section names; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class WorkerUser:
    """Who a worker runs as: its groups are the primary one alone."""

    name: str
    uid: int
    gid: int
    home: str

    def environment(self) -> dict[str, str]:
        """Return the variables that name it."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}


@dataclass(frozen=True, slots=True)
class Doorway:
    """Where a socket is bound besides its usual path: a file that belongs to a user."""

    path: Path
    uid: int

    def bind(self, socket: Socket) -> None:
        """Bind, before the socket has CURVE.

        Raises:
            zmq.ZMQError, OSError: it can't be bound or given away.
        """
        socket.bind(ipc(self.path))
        # Until here it is root's alone; its directory too, so nobody can have put a link here.
        self.path.chmod(PRIVATE_FILE_MODE)
        os.chown(self.path, self.uid, -1, follow_symlinks=False)


def find_user(name: str) -> WorkerUser:
    """Look a user up.

    Raises:
        UserError: this process is not root, or there is no such user, or it is root.
    """
    if os.geteuid() != 0:
        raise UserError(
            f"user = {name!r}: only a broker that runs as root can start workers as other users"
        )
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise UserError(f"user = {name!r}: this machine has no such user") from None
    if entry.pw_uid == 0:
        raise UserError(f"user = {name!r}: that is root; leave it out, or name another one")
    return WorkerUser(name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


class Users:
    """The users that the workers of a broker may run as, each with a pair of sockets."""

    def __init__(self, paths: RunPaths, specs: Iterable[PoolSpec] = ()) -> None:
        """Look up the users of pools.

        Raises:
            UserError: one can't be found, or could not reach its sockets; the text names the pool.
        """
        self._paths = paths
        self._by_name = _found(specs, paths)
        pairs = [(uid, paths.of_user(uid)) for uid in self.uids]
        self.control = tuple(Doorway(control, uid) for uid, (control, _) in pairs)
        self.lane = tuple(Doorway(lane, uid) for uid, (_, lane) in pairs)

    @property
    def uids(self) -> list[int]:
        """Their numbers, each once."""
        return sorted({user.uid for user in self._by_name.values()})

    @property
    def sockets(self) -> list[Path]:
        """Every socket file of theirs."""
        return [doorway.path for doorway in (*self.control, *self.lane)]

    def of(self, spec: PoolSpec) -> WorkerUser | None:
        """Return who the workers of a pool run as; `None`: who the broker is.

        Raises:
            UserError: sockets are bound at the start alone, and this user has none.
        """
        if not spec.user:
            return None
        user = self._by_name.get(spec.user)
        if user is None:
            raise UserError(f"user = {spec.user!r} is new: `trunkline restart` makes its sockets")
        return user

    def check(self, specs: Iterable[PoolSpec]) -> None:
        """See that workers of another configuration could run here.

        Raises:
            UserError: they could not; the text names the pool.
        """
        for spec in specs:
            _found((spec,), self._paths)
            try:
                self.of(spec)
            except UserError as exc:
                raise UserError(f"worker.{spec.name}: {exc}") from exc


def _found(specs: Iterable[PoolSpec], paths: RunPaths) -> dict[str, WorkerUser]:
    found: dict[str, WorkerUser] = {}
    for spec in specs:
        if spec.user and spec.user not in found:
            try:
                user = find_user(spec.user)
                _check_way(user, paths.root)
            except UserError as exc:
                raise UserError(f"worker.{spec.name}: {exc}") from exc
            found[spec.user] = user
    return found


def _check_way(user: WorkerUser, root: Path) -> None:
    """See that a user may pass through every directory above the run directory."""
    for directory in _existing(root.parent):
        facts = directory.stat()
        if facts.st_uid == user.uid:
            is_open = facts.st_mode & stat.S_IXUSR
        elif facts.st_gid == user.gid:
            is_open = facts.st_mode & stat.S_IXGRP
        else:
            is_open = facts.st_mode & stat.S_IXOTH
        if not is_open:
            mode = stat.S_IMODE(facts.st_mode)
            raise UserError(
                f"user = {user.name!r} can't pass through {directory} (mode {mode:04o}) to the run"
                f" directory; set TRUNKLINE_RUN_DIR to one that it can reach, as /run/trunkline"
            )


def _existing(directory: Path) -> Iterator[Path]:
    for each in (directory, *directory.parents):
        if each.is_dir():
            yield each
