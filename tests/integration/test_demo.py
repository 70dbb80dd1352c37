"""The main job: agent processes stream one model, and its worker is swapped twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trunkline_broker.onboarding import has_local_model

from tests.support.processes import is_alive
from tests.support.timing import SLOW, until

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240.0


async def demo(*arguments: str) -> tuple[int, dict[str, Any], str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "demo", *arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S * SLOW)
    text = out.decode()
    assert process.returncode is not None
    return process.returncode, json.loads(text.splitlines()[-1]), text


def check(summary: dict[str, Any]) -> None:
    """Check what was promised against the figures, not against the demo's own verdict."""
    assert len(set(summary["agents"].values())) == 4
    workers = [swap["workerBefore"] for swap in summary["swaps"]]
    workers.append(summary["swaps"][-1]["workerAfter"])
    assert len(set(workers)) == 3
    assert summary["swaps"][0]["workerAfter"] == workers[1]
    for swap in summary["swaps"]:
        assert swap["streamsAcross"]
        assert set(swap["streamsAcross"]) <= set(summary["finishes"])
    assert len(summary["finishes"]) >= 8
    assert set(summary["finishes"].values()) <= {"stop", "max-tokens"}
    assert summary["reconnects"] == 0
    # Nothing is left: neither agents nor any of the workers.
    assert not [pid for pid in (*summary["agents"].values(), *workers) if is_alive(pid)]


async def test_with_the_local_model() -> None:
    """The real model, generating."""
    if not has_local_model():
        pytest.skip("the local model is not installed: trunkline setup local")
    code, summary, text = await demo("--turns", "2", "--max-tokens", "32")
    assert code == 0, text
    check(summary)


async def test_with_a_script() -> None:
    """Where the model cannot be installed, a script plays its part."""
    code, summary, text = await demo("--turns", "2", "--scripted")
    assert code == 0, text
    check(summary)


def test_an_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM ends the broker and the agents too."""
    out = tmp_path / "out"
    with out.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo", "--scripted"], cwd=ROOT, stdout=sink, stderr=sink
        )
    until(lambda: "first chunk" in out.read_text(), 60.0, "the demo does not start")
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60 * SLOW) == 1, out.read_text()
    text = out.read_text()
    broker = int(text.split("broker pid ")[1].split()[0])
    agents = json.loads(text.splitlines()[-1])["agents"].values()
    assert not [pid for pid in (broker, *agents) if is_alive(pid)]
