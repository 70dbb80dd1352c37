"""The broker of a soak: the real one, which shows its state when the soak asks, by SIGUSR1."""

from __future__ import annotations

import sys

from trunkline_broker import __main__ as program

from tests.chaos import inside

if __name__ == "__main__":
    inside.install()
    sys.exit(program.main())
