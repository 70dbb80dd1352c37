"""Starts the process of one worker: command, environment, descriptors, user and privileges.

It performs one order and remembers nothing; watching is `processes.py`'s. A worker runs in the run
directory, never in the folder where somebody has started the broker, and its interpreter takes no
code from there.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from trunkline_broker.core.effects import Spawn
from trunkline_broker.environment import worker_environment
from trunkline_broker.interpreter import module_command, without_relative_paths
from trunkline_broker.paths import RunPaths, ipc
from trunkline_broker.secret_options import revealed
from trunkline_broker.users import Users, WorkerUser

T = TypeVar("T")

_PR_SET_NO_NEW_PRIVS: Final = 38  # linux/prctl.h


class WorkerStart:
    """Starts the workers of one broker.

    Args:
        paths: of the run directory.
        environ: where the variables are taken from that a pool names.
        users: that workers may run as.
        orphan_timeout_s: how long workers live without a broker.
        traces: base URL of the collector of spans; empty: none.
    """

    def __init__(
        self,
        paths: RunPaths,
        environ: Mapping[str, str],
        users: Users,
        orphan_timeout_s: float,
        traces: str,
    ) -> None:
        self._paths = paths
        self._environ = environ
        self._users = users
        self._orphan_timeout_s = orphan_timeout_s
        self._traces = traces

    def start(self, order: Spawn, sink: int) -> int:
        """Start a worker; return its process id, which the caller reaps.

        Args:
            order: what the core wants.
            sink: descriptor that stdout and stderr go to; stays the caller's.

        Raises:
            OSError, ValueError, EnvironmentFileError, UserError: nothing was started.
        """
        user = self._users.of(order.spec)
        boot = os.memfd_create("boot")
        try:
            os.write(boot, json.dumps(self._boot_document(order, user)).encode())
            os.lseek(boot, 0, os.SEEK_SET)
            if user is None:
                return self._start(order, user, boot, sink)
            # What a thread has given up its children have too, from their first moment on.
            return _in_a_thread(lambda: self._start_confined(order, user, boot, sink))
        finally:
            os.close(boot)

    def _start_confined(self, order: Spawn, user: WorkerUser, boot: int, sink: int) -> int:
        give_up_privileges()
        return self._start(order, user, boot, sink)

    def _start(self, order: Spawn, user: WorkerUser | None, boot: int, sink: int) -> int:
        python = order.spec.python or sys.executable
        child = subprocess.Popen(  # noqa: S603  # the command is the configuration's
            module_command(python, "trunkline_workers", "--boot-fd", str(boot)),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            cwd=self._paths.root,
            env=without_relative_paths(worker_environment(order.spec, self._environ))
            | (user.environment() if user is not None else {}),
            pass_fds=(boot,),
            start_new_session=True,
            user=user.uid if user is not None else None,
            group=user.gid if user is not None else None,
            extra_groups=() if user is not None else None,
        )
        child.returncode = 0  # reaped through its pidfd; keeps `Popen` from ever waiting for it
        return child.pid

    def _boot_document(self, order: Spawn, user: WorkerUser | None) -> dict[str, object]:
        control, lane = self._paths.workers_control, ""
        if user is not None:
            control, way = self._paths.of_user(user.uid)
            lane = ipc(way)
        return {
            "control": ipc(control),
            "lane": lane,
            "pool": order.pool,
            "slot": order.slot,
            "generation": list(order.generation),
            "token": order.token.get_secret_value().hex(),
            "adapter": order.spec.adapter,
            "beside": order.spec.directory,
            "providers": list(order.spec.providers),
            "options": revealed(order.spec.options),
            "standby": order.standby,
            "orphanTimeoutMs": int(self._orphan_timeout_s * 1000),
            "traces": self._traces,
            "leaseMs": round(order.spec.lease_s * 1000),
            "debugPrompts": order.spec.debug_prompts,
        }


def give_up_privileges() -> None:
    """Keep this thread, and what it starts, from ever gaining rights by a set-user-ID program.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot set NO_NEW_PRIVS")


def _in_a_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns in a thread of its own, which ends with it."""
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as exc:  # noqa: BLE001  # raised again below, where the caller is
            errors.append(exc)

    thread = threading.Thread(target=run, name="worker-start")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]
