"""A real broker process in a run directory of its own, and nothing of it left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trunkline_broker.paths import RunPaths

from tests.support.processes import is_alive
from tests.support.raw_peer import RawClient
from tests.support.timing import SLOW, until

SCRIPTED = """\
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
"""
START_S = 15.0
STOP_S = 15.0


@contextlib.contextmanager
def run_directory() -> Iterator[Path]:
    """Yield a private directory with a short name, since socket paths have 107 bytes at most."""
    root = Path(tempfile.mkdtemp(prefix="tl-", dir="/tmp"))  # mkdtemp is private
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


@dataclass(slots=True)
class BrokerProcess:
    """One broker process; `start` may be called again after its death."""

    run_dir: Path
    config: Path
    environ: dict[str, str]
    command: list[str]
    child: subprocess.Popen[bytes] | None = None
    seen_workers: set[int] = field(default_factory=set[int])

    @property
    def paths(self) -> RunPaths:
        """The names inside its run directory."""
        return RunPaths(self.run_dir)

    @property
    def endpoint(self) -> str:
        """Where clients connect."""
        return f"ipc://{self.paths.control}"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.child is not None
        return self.child.pid

    def start(self) -> None:
        """Start it and wait until it answers a greeting."""
        self.launch()
        with RawClient(self.endpoint) as client:
            client.hello(START_S)

    def launch(self) -> None:
        """Start it and wait for nothing."""
        with (self.run_dir / "stderr").open("ab") as log:
            self.child = subprocess.Popen(  # noqa: S603  # our own program
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environ,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = STOP_S) -> int:
        """Wait for its end; return its exit status, negative for a signal."""
        assert self.child is not None
        return self.child.wait(timeout_s * SLOW)

    def kill(self) -> None:
        """Kill it, as no program can prevent, and wait for its end."""
        self.note_workers()
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """Ask it to stop and wait for its end."""
        self.note_workers()
        self.signal(signal.SIGTERM)
        return self.wait()

    def status(self) -> Mapping[str, Any]:
        """Ask for the status document on a connection of its own."""
        with RawClient(self.endpoint) as client:
            client.hello()
            return client.status()

    def worker_pids(self) -> dict[str, list[int]]:
        """Return the live worker processes by pool, as the status document names them."""
        found: dict[str, list[int]] = {}
        for entry in self.status()["processes"]:
            found.setdefault(entry["pool"], []).append(entry["pid"])
        return found

    def until_ready(self, pool: str, timeout_s: float = START_S) -> Mapping[str, Any]:
        """Wait until a pool serves; return the status document."""
        with RawClient(self.endpoint) as client:
            client.hello()

            def ready() -> Mapping[str, Any] | None:
                document = client.status()
                pools = {entry["name"]: entry for entry in document["pools"]}
                slots = pools.get(pool, {}).get("slots", ())
                serving = slots and all(slot["role"] == "serving" for slot in slots)
                return document if serving else None

            document = until(ready, timeout_s, f"pool {pool} does not serve: {self.log_text()}")
        self.seen_workers |= {entry["pid"] for entry in document["processes"]}
        return document

    def note_workers(self) -> None:
        """Remember its workers, so that none outlives the test."""
        with contextlib.suppress(AssertionError):  # it does not answer: the hint file will do
            self.seen_workers |= {pid for pids in self.worker_pids().values() for pid in pids}

    def log_text(self) -> str:
        """Return what it has written."""
        return (self.run_dir / "stderr").read_text(errors="replace")

    def clear_away(self) -> None:
        """End it and every worker that was seen, whatever state they are in."""
        if self.child is not None and self.child.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.wait()
        for pid in self.seen_workers | _hinted(self.paths.hints):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        until(lambda: not any(is_alive(pid) for pid in self.seen_workers), STOP_S)


@contextlib.contextmanager
def broker_in(
    run_dir: Path,
    config: str = SCRIPTED,
    environ: Mapping[str, str] | None = None,
    command: list[str] | None = None,
) -> Iterator[BrokerProcess]:
    """Yield a broker that is not started yet; afterwards it and its workers are gone."""
    path = run_dir / "test.toml"
    path.write_text(config)
    # The tests hold the run directory private, as the broker demands.
    variables = {
        **os.environ,
        "TRUNKLINE_RUN_DIR": str(run_dir / "run"),
        "PYTHONWARNINGS": "error",
        **(environ or {}),
    }
    start = command or [sys.executable, "-m", "trunkline_broker", "--config", str(path)]
    broker = BrokerProcess(run_dir / "run", path, variables, start)
    broker.run_dir.mkdir(mode=0o700, exist_ok=True)
    try:
        yield broker
    finally:
        broker.clear_away()


@contextlib.contextmanager
def running_broker(
    config: str = SCRIPTED, environ: Mapping[str, str] | None = None
) -> Iterator[BrokerProcess]:
    """Yield a broker that answers, in a run directory of its own; for tests without a loop."""
    with run_directory() as root, broker_in(root, config, environ) as broker:
        broker.start()
        yield broker


@contextlib.asynccontextmanager
async def broker_process(
    config: str = SCRIPTED, environ: Mapping[str, str] | None = None
) -> AsyncIterator[BrokerProcess]:
    """Yield a broker that answers; start and end do not block the loop of the test."""
    with contextlib.ExitStack() as stack:
        entered = running_broker(config, environ)
        broker = await asyncio.to_thread(stack.enter_context, entered)
        try:
            yield broker
        finally:
            await asyncio.to_thread(stack.close)


def _hinted(path: Path) -> set[int]:
    """Return the workers of this host that the hint file names and that live."""
    from trunkline_broker.hints import read_hints
    from trunkline_broker.processes import alive

    return {hint.pid for hint in alive(read_hints(path)) if hint.pid is not None}
