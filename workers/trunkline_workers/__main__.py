"""`python -m trunkline_workers`: the process of one worker."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trunkline_protocol.failure import LlmError
from trunkline_protocol.redact import redactor

from trunkline_workers import foreign
from trunkline_workers.boot import UNBORN, BootError, read_boot
from trunkline_workers.core.link import EXIT_CONFIG
from trunkline_workers.host import Host
from trunkline_workers.host_loop import run_host
from trunkline_workers.leaving import arm_hard_limit
from trunkline_workers.loader import load_entry, look_beside
from trunkline_workers.output import MAX_FILE_BYTES, clean_output
from trunkline_workers.stray_signals import outlive, stop_timers
from trunkline_workers.stuck import arm_stacks

_STDERR: Final = 2


def main(arguments: Sequence[str]) -> int:
    """Run a worker; returns its exit code (0, or 2 to 4 as in `core.link`)."""
    # Its memory holds keys of providers: a crash must not write them to a disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    outlive()
    stop_timers()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever whoever started it has left blocked
    try:
        boot = read_boot(arguments)
    except BootError as exc:
        return _refuse(str(exc))
    faulthandler.enable(_STDERR)  # where native code crashed; names of files and functions only
    clean = redactor(os.environ, boot.options)
    clean_output(clean, MAX_FILE_BYTES if boot.generation != UNBORN else 0)
    output = sys.stdout, sys.stderr
    try:
        if boot.beside:
            look_beside(boot.adapter, Path(boot.beside))
        entry = load_entry(boot.adapter)
        host = Host(boot, entry, dict(os.environ), clean, arm_stacks, arm_hard_limit)
    # Adapter code runs while its module is imported and it is made. Whatever it raises means that
    # this worker cannot serve, `SystemExit(0)` included.
    except BaseException as exc:  # noqa: BLE001
        if not foreign.is_a(exc, ValueError) and not foreign.is_a(exc, ImportError):
            with contextlib.suppress(LlmError):  # its own text cannot be had
                foreign.call(traceback.print_exc)
        return _refuse(f"adapter {boot.adapter}: {foreign.failure_of(exc).message}")
    try:
        return run_host(host)
    finally:
        # Adapter code may have put anything there, and the interpreter flushes both at its end.
        sys.stdout, sys.stderr = output


def _refuse(reason: str) -> int:
    sys.stderr.write(f"[trunkline] {reason}\n")
    return EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
