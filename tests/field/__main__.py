"""`python -m tests.field FILE`."""

from __future__ import annotations

import sys

from tests.field.runner import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
