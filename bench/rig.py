"""The processes of a measurement: broker, provider, agents; and what they used of the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_S: Final = 120.0

CONFIG: Final = """
[worker.burst]
adapter = "{root}/bench/adapters.py:BurstAdapter"
providers = [{routes}]
replicas = {replicas}

[worker.paced]
adapter = "{root}/bench/adapters.py:BurstAdapter"
providers = ["paced"]

[worker.mock]
adapter = "chat_completions"
providers = ["mock"]
options = {{ baseUrl = "{url}", requireKey = false }}

[worker.mock20]
adapter = "chat_completions"
providers = ["mock20"]
options = {{ baseUrl = "{url}", requireKey = false, extraBody = {{ seed = 20 }} }}
"""


class Child:
    """A Python module as a process that is told to go and answers with one line of JSON."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        environ: dict[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        self._popen = subprocess.Popen(
            [python, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._popen.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.communicate()

    def line(self) -> str:
        """Return the next line of its output.

        Raises:
            RuntimeError: it ended instead.
        """
        assert self._popen.stdout is not None
        text = self._popen.stdout.readline()
        if not text:
            raise RuntimeError(f"{self._popen.args} ended with {self._popen.wait()}")
        return text.strip()

    def go(self) -> None:
        """Let it start."""
        assert self._popen.stdin is not None
        self._popen.stdin.write("go\n")
        self._popen.stdin.flush()

    def result(self) -> Any:
        """Return what it found out."""
        return json.loads(self.line())

    def end(self) -> None:
        """Close its input and wait for its end."""
        self._popen.communicate(timeout=TIMEOUT_S)


class Rig:
    """A running broker with its workers, beside a mock provider."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url
        self.environ = {"TRUNKLINE_RUN_DIR": str(directory / "run")}

    def command(self, *arguments: str) -> str:
        """Run the `trunkline` command and return its output.

        Raises:
            RuntimeError: it failed; its text is in the error.
        """
        done = subprocess.run(
            [sys.executable, "-m", "trunkline_broker.cli.main", *arguments],
            env={**os.environ, **self.environ},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        if done.returncode:
            raise RuntimeError(f"trunkline {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done.stdout

    @cached_property
    def pids(self) -> dict[str, list[int]]:
        """The processes of the broker and of each pool; nothing restarts here."""
        status = self.status()
        pools = {pool["name"]: [slot["pid"] for slot in pool["slots"]] for pool in status["pools"]}
        return {"broker": [status["pid"]], **pools}

    def status(self) -> Any:
        """Return the status document."""
        return json.loads(self.command("status", "--json"))

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds so far of the broker and of each pool, all threads."""
        return {name: sum(map(process_cpu_s, pids)) for name, pids in self.pids.items()}

    def broker_rss_mib(self) -> float:
        """Return the resident memory of the broker."""
        return process_rss_mib(self.pids["broker"][0])

    def agent(self, *arguments: str) -> Child:
        """Start an agent of `bench.agent`."""
        return Child("bench.agent", *arguments, environ=self.environ)

    def calls(self, *arguments: str) -> Child:
        """Start a process of `bench.calls`."""
        return Child("bench.calls", *arguments, environ=self.environ)


def process_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process's living threads, to the nanosecond.

    The counters of `/proc/PID/stat` have ticks of 10 ms, too coarse for a short stream. A worker's
    watch for stacks has a thread that is made anew at each beat; it costs next to nothing.
    """
    return sum(map(_task_cpu_ns, Path(f"/proc/{pid}/task").iterdir())) / 1e9


def _task_cpu_ns(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
        return 0


def process_rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def rig(routes: int = 1, replicas: int = 1) -> Iterator[Rig]:
    """Start provider, broker and workers; end all of them afterwards.

    Args:
        routes: that the burst pool serves: `burst`, and others that nobody calls.
        replicas: of the burst pool.
    """
    with tempfile.TemporaryDirectory(prefix="tl-bench-") as name, Child("bench.provider") as mock:
        directory = Path(name)
        url = f"http://127.0.0.1:{mock.line()}/v1"
        config = directory / "trunkline.toml"
        names = ["burst", *(f"route{number}" for number in range(1, routes))]
        config.write_text(
            CONFIG.format(
                root=ROOT,
                url=url,
                routes=", ".join(f'"{name}"' for name in names),
                replicas=replicas,
            )
        )
        running = Rig(directory, url)
        running.command("up", "--detach", "--config", str(config))
        try:
            yield running
        finally:
            running.command("down", "--drain", "0")
