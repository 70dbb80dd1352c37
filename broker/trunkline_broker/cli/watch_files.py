"""The shell of `--watch`: which files there are, and threads that tell of their changes.

`watchfiles` is imported when something is watched. It does not know what a change leads to.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from trunkline_broker.cli.terminal import CommandError, fail
from trunkline_broker.cli.watch_plan import Watched, WatchPlan
from trunkline_broker.environment import EnvironmentFileError, worker_environment
from trunkline_broker.interpreter import beside, module_command, without_relative_paths

if TYPE_CHECKING:
    from trunkline_broker.config import Settings
    from trunkline_broker.core.specs import PoolSpec

SETTLED_MS: Final = 100  # so long no file has changed: what an editor or a checkout does is over
SOURCES_S: Final = 20.0  # to ask an interpreter; importing takes a moment on a busy machine
END_S: Final = 2.0  # for the threads to begin, and to end

Say = Callable[[str], None]


class Stop:
    """Set once, from any thread; what blocks meanwhile asks to be told."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._told: list[Callable[[], object]] = []

    def is_set(self) -> bool:
        """Tell whether it is time to end."""
        return self._event.is_set()

    def wait(self, timeout_s: float) -> None:
        """Wait so long, or until it is time to end."""
        self._event.wait(timeout_s)

    def set(self) -> None:
        """End whatever blocks."""
        self._event.set()
        with self._lock:  # held, so that nobody is told who has left `telling`
            for tell in self._told:
                tell()

    @contextlib.contextmanager
    def telling(self, tell: Callable[[], object]) -> Generator[None]:
        """Call `tell` from the thread that sets it; at once if it is set."""
        with self._lock:
            self._told.append(tell)
        try:
            if self.is_set():
                tell()
            yield
        finally:
            with self._lock:
                self._told.remove(tell)


class Changes:
    """Changed files as they come from the watching threads; a batch is taken as a whole."""

    def __init__(self, plan: WatchPlan, stop: Stop) -> None:
        self._plan = plan
        self._stop = stop
        self._is_over = threading.Event()
        self._found: SimpleQueue[frozenset[Path] | Exception] = SimpleQueue()

    @contextlib.contextmanager
    def coming(self) -> Generator[None]:
        """Watch while the block runs; directories that do not exist are left out."""
        threads: list[threading.Thread] = []
        armed: list[threading.Event] = []
        for places, is_recursive in ((self._plan.folders(), True), (self._plan.places(), False)):
            there = [place for place in places if place.is_dir()]
            if there:
                armed.append(threading.Event())
                given = (there, is_recursive, armed[-1])
                threads.append(threading.Thread(target=self._watch, args=given, daemon=True))
                threads[-1].start()
        for event in armed:
            event.wait(END_S)
        try:
            with self._stop.telling(lambda: self._found.put(frozenset())):
                yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join(END_S)

    def take(self) -> frozenset[Path]:
        """Wait for changes and return all that came so far; nothing if it is time to end.

        Raises:
            OSError: the system does not let us watch (no more inotify watches, for example).
        """
        paths: frozenset[Path] = frozenset()
        batch = self._found.get()
        while True:
            if isinstance(batch, Exception):
                raise batch
            paths |= batch
            try:
                batch = self._found.get_nowait()
            except Empty:
                return paths

    def is_set(self) -> bool:
        """Tell the watching threads whether to end."""
        return self._is_over.is_set() or self._stop.is_set()

    def _watch(self, places: list[Path], is_recursive: bool, armed: threading.Event) -> None:
        from watchfiles import watch

        try:
            # It yields nothing at all after each pause; the first time tells that it watches.
            for found in watch(
                *places,
                watch_filter=lambda _, path: self._plan.concerns(Path(path)),
                step=SETTLED_MS,
                rust_timeout=SETTLED_MS,
                yield_on_timeout=True,
                stop_event=self,
                recursive=is_recursive,
                ignore_permission_denied=True,
            ):
                armed.set()
                if found:
                    self._found.put(frozenset(Path(path) for _, path in found))
        except (OSError, RuntimeError) as exc:  # RuntimeError: what the library has no name for
            self._found.put(OSError(f"can't watch {places[0]}: {exc}"))
            armed.set()


def plan_for(settings: Settings, names: Sequence[str], directory: Path, say: Say) -> WatchPlan:
    """Return what to watch for the pools of these names.

    Args:
        settings: the configuration that names their adapters.
        names: of pools; others are left out.
        directory: the working directory of the broker, from which its workers import.
        say: told of pools whose sources are not known; their `env_file` is watched all the same.
    """
    pools: list[Watched] = []
    for spec in settings.pool_specs():
        if spec.name not in names:
            continue
        found: dict[str, list[str]] = {}
        try:
            found = _sources(spec, settings, directory)
        except CommandError as exc:
            say(f"{spec.name}: its sources are not watched: {exc}")
        files = {*found.get("files", ()), *([spec.env_file] if spec.env_file else ())}
        folders = frozenset(Path(folder) for folder in found.get("folders", ()))
        pools.append(Watched(spec.name, _with_targets(map(Path, files)), folders))
    source = settings.source
    return WatchPlan(pools, _with_targets([source.absolute()] if source is not None else []))


def _sources(spec: PoolSpec, settings: Settings, directory: Path) -> dict[str, list[str]]:
    python = spec.python or sys.executable
    try:
        done = subprocess.run(  # noqa: S603  # the interpreter of the configuration
            module_command(python, "trunkline_workers.sources", spec.adapter, *beside(spec)),
            env=without_relative_paths(worker_environment(spec, settings.environ)),
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=SOURCES_S,
            check=False,
        )
    except (OSError, EnvironmentFileError) as exc:
        fail(f"can't ask {python}: {exc}")
    except subprocess.TimeoutExpired:
        fail(f"{python} did not answer within {SOURCES_S:g} s")
    if done.returncode:
        fail((done.stderr.strip().splitlines() or [f"{python} ended without a word"])[-1])
    return json.loads(done.stdout)


def _with_targets(paths: Iterable[Path]) -> frozenset[Path]:
    """Return the paths and, of links, what they lead to: either may be written."""
    return frozenset(each for path in paths for each in (path, path.resolve()))
