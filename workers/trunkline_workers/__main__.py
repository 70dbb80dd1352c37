"""`python -m trunkline_workers`: the process of one worker."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trunkline_protocol.redact import redactor

from trunkline_workers.boot import BootError, read_boot
from trunkline_workers.core.link import EXIT_CONFIG
from trunkline_workers.host import Host, run_host
from trunkline_workers.loader import load_entry, look_beside
from trunkline_workers.output import clean_output
from trunkline_workers.stuck import arm_stacks

_STDERR: Final = 2


def main(arguments: Sequence[str]) -> int:
    """Run a worker; returns its exit code (0, or 2 to 4 as in `core.link`)."""
    # Its memory holds keys of providers: a crash must not write them to a disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever whoever started it has left blocked
    try:
        boot = read_boot(arguments)
    except BootError as exc:
        return _refuse(str(exc))
    faulthandler.enable(_STDERR)  # where native code crashed; names of files and functions only
    clean = redactor(os.environ, boot.options)
    clean_output(clean)
    try:
        if boot.beside:
            look_beside(boot.adapter, Path(boot.beside))
        host = Host(boot, load_entry(boot.adapter), dict(os.environ), clean, arm_stacks)
    except (ValueError, ImportError) as exc:
        return _refuse(f"adapter {boot.adapter}: {exc}")
    return run_host(host)


def _refuse(reason: str) -> int:
    sys.stderr.write(f"[trunkline] {reason}\n")
    return EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
