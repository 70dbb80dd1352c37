"""`python -m trunkline_workers`: the process of one worker."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from trunkline_workers.boot import BootError, read_boot
from trunkline_workers.core.link import EXIT_CONFIG
from trunkline_workers.host import Host, run_host
from trunkline_workers.loader import load_entry


def main(arguments: Sequence[str]) -> int:
    """Run a worker; returns its exit code (0, or 2 to 4 as in `core.link`)."""
    try:
        boot = read_boot(arguments)
    except BootError as exc:
        return _refuse(str(exc))
    try:
        host = Host(boot, load_entry(boot.adapter), dict(os.environ))
    except (ValueError, ImportError) as exc:
        return _refuse(f"adapter {boot.adapter}: {exc}")
    return run_host(host)


def _refuse(reason: str) -> int:
    sys.stderr.write(f"[trunkline] {reason}\n")
    return EXIT_CONFIG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
