"""What `import trunkline` brings along, in a program of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.timing import SLOW

pytestmark = pytest.mark.integration


def test_importing_is_cheap() -> None:
    """No transport library, no command line, no broker, and nothing of the runtime before use."""
    program = "import sys, trunkline; trunkline.connect; print(*sys.modules)"
    done = subprocess.run(  # noqa: S603  our own program
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=20 * SLOW,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    banned = {
        "httpx",
        "aiohttp",
        "typer",
        "rich",
        "uvloop",
        "trunkline_broker",
        "trunkline_workers",
    }
    assert not loaded & banned
    assert "zmq" in loaded
