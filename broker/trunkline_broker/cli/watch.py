"""`--watch`: swap a pool when the files of its adapter change, for people who write adapters.

Every change goes the way of `trunkline swap`: a new worker starts beside the old one, takes over
when it is ready, and leaves the old one alone if it never is. Changes that come while a swap runs
wait for its end and lead to one more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from trunkline_protocol.failure import LlmError, TrunklineError

from trunkline_broker.cli.connection import ask, run_async
from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.swap import reload_lines, swap_lines
from trunkline_broker.cli.terminal import CommandError, err, fail, out
from trunkline_broker.cli.watch_files import Changes, Say, Stop, plan_for
from trunkline_broker.cli.watch_plan import Affected, WatchPlan
from trunkline_broker.config import Settings, load
from trunkline_broker.config_errors import ConfigError
from trunkline_broker.core.swaps import SWAP_RUNNING

SWAP_S: Final = 120.0
SWAP_AGAIN_S: Final = 0.3  # while a swap that somebody else began is under way
END_S: Final = 3.0  # for the watch beside a broker to end
_STATUS_S: Final = 5.0


def watch_pool(name: str, argument: dict[str, object], config: Path | None) -> None:
    """Swap a pool of the broker that runs here, and again after each change, until Ctrl-C.

    Args:
        name: of the pool.
        argument: of the `swap` query.
        config: the file that the swaps take the pool from; `None`: the broker's own.

    Raises:
        CommandError: there is nothing to watch, or no broker.
        OSError: files can't be watched.
    """
    needs_library()
    if os.environ.get("TRUNKLINE_ENDPOINT", "").startswith("tcp:"):
        fail("--watch needs a broker on this host: its workers read these files", ExitCode.USAGE)
    document = run_async(ask("watch", "status", {}, _STATUS_S))
    directory = _working_directory(document["pid"])
    own = directory / document["config"] if document["config"] else None
    source = config or own
    if source is None:
        fail("--watch: the broker has no configuration file", ExitCode.USAGE)
    if all(spec.name != name for spec in _settings(source).pool_specs()):
        fail(f"{source} has no [worker.{name}]", ExitCode.USAGE)
    stop = Stop()
    say = _printer(out().print)
    asker = Asker(stop, SWAP_S)

    def act(affected: Affected) -> None:
        again = {"config": str(source)} if affected.is_config else {}
        if affected.pools or affected.is_config:
            _note(affected, say)
            _swap(asker, {**argument, **again}, say)

    def plan() -> WatchPlan:
        return plan_for(_settings(source), [name], directory, say)

    try:
        Follower(stop, plan, act, say).run(Affected((name,)))
    except KeyboardInterrupt:
        fail("", ExitCode.INTERRUPTED)
    finally:
        stop.set()


@contextlib.contextmanager
def watching(settings: Settings) -> Generator[None]:
    """Watch the files of all pools while the broker runs in this process."""
    stop = Stop()
    say = _printer(err().print)
    asker = Asker(stop, SWAP_S, settings.endpoint)
    names = [spec.name for spec in settings.pool_specs()]

    def act(affected: Affected) -> None:
        _note(affected, say)
        done = _reload(asker, say) if affected.is_config else frozenset[str]()
        for name in affected.pools:
            if name not in done:
                _swap(asker, {"pool": name}, say)

    def plan() -> WatchPlan:
        fresh = _settings(settings.source) if settings.source is not None else settings
        names[:] = [spec.name for spec in fresh.pool_specs()]
        return plan_for(fresh, names, Path.cwd(), say)

    def follow() -> None:
        try:
            Follower(stop, plan, act, say).run(Affected())
        except (CommandError, OSError) as exc:
            say(f"nothing is watched any more: {exc}")

    thread = threading.Thread(target=follow, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(END_S)


def needs_library() -> None:
    """End the command if the library that watches is not installed."""
    if find_spec("watchfiles") is None:
        fail("--watch needs watchfiles: pip install 'trunkline[broker]'", ExitCode.USAGE)


class Follower:
    """Acts on changes until it is time to end.

    Args:
        stop: when.
        plan: makes the plan anew; asked at the start and after the configuration has changed.
        act: brings the pools in line with what is on the disk.
        say: one line for people.
    """

    def __init__(
        self,
        stop: Stop,
        plan: Callable[[], WatchPlan],
        act: Callable[[Affected], None],
        say: Say,
    ) -> None:
        self._stop = stop
        self._plan = plan
        self._act = act
        self._say = say

    def run(self, first: Affected) -> None:
        """Act on `first` and then on what changes; returns after `stop`.

        Raises:
            OSError: files can't be watched.
            CommandError: the configuration can't be read at the start.
        """
        plan, affected = self._plan(), first
        while not self._stop.is_set():
            changes = Changes(plan, self._stop)
            with changes.coming():
                self._say(_overview(plan))
                # Only now: what is saved while a new worker reads its files is seen.
                self._act(affected)
                affected = plan.affected(changes.take())
                while not affected.is_config and not self._stop.is_set():
                    self._act(affected)
                    affected = plan.affected(changes.take())
            plan = self._renewed(plan)

    def _renewed(self, plan: WatchPlan) -> WatchPlan:
        if self._stop.is_set():
            return plan
        try:
            return self._plan()
        except CommandError:  # a mistake in the file: whoever reads it next says which
            return plan


def _overview(plan: WatchPlan) -> str:
    names = ", ".join(pool.pool for pool in plan.pools) or "no pool"
    return f"watching the files of {names}"


class Asker:
    """Asks the broker, and gives up when it is time to end."""

    def __init__(self, stop: Stop, timeout_s: float, endpoint: str | None = None) -> None:
        """Make one that asks at an endpoint; `None`: the one of the environment."""
        self._stop = stop
        self._timeout_s = timeout_s
        self._endpoint = endpoint

    def __call__(self, op: str, argument: dict[str, object]) -> Any:
        """Ask; wait first for the end of a swap that somebody else began, or of a restart.

        Raises:
            CommandError: no, with the reason; or it is time to end.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                while self._is_busy(argument.get("pool")) and time.monotonic() < deadline_s:
                    self._stop.wait(SWAP_AGAIN_S)
                return self._ask(op, argument)
            except LlmError as exc:
                if exc.code != SWAP_RUNNING or time.monotonic() > deadline_s:
                    fail(str(exc))
            except (TrunklineError, OSError) as exc:
                fail(str(exc))

    def _is_busy(self, name: object) -> bool:
        """Tell whether that pool can't be swapped yet; `None`: any."""
        document = self._ask("status", {})
        pools = [pool for pool in document["pools"] if name in (None, pool["name"])]
        return document["settling"] or any(pool["swapping"] for pool in pools)

    def _ask(self, op: str, argument: dict[str, object]) -> Any:
        return self._run(ask("watch", op, argument, self._timeout_s, self._endpoint))

    def _run(self, job: Coroutine[Any, Any, Any]) -> Any:
        async def until_stopped() -> Any:
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(job)
            with self._stop.telling(lambda: loop.call_soon_threadsafe(task.cancel)):
                return await task

        try:
            return asyncio.run(until_stopped())
        except asyncio.CancelledError:
            fail("ended")


def _note(affected: Affected, say: Say) -> None:
    if affected.text:
        say(f"{affected.text} changed")


def _swap(asker: Asker, argument: dict[str, object], say: Say) -> None:
    name = argument["pool"]
    try:
        done = asker("swap", argument)
    except CommandError as exc:
        say(f"{name}: not swapped, what served before goes on: {exc}")
        return
    for line in swap_lines(done):
        say(line)


def _reload(asker: Asker, say: Say) -> frozenset[str]:
    """Bring the pools in line with the configuration; return those that are new or exchanged."""
    try:
        done = asker("reload", {})
    except CommandError as exc:
        say(f"the configuration is not in force: {exc}")
        return frozenset()
    for line in reload_lines(done):
        say(line)
    return frozenset({*done["added"], *(report["pool"] for report in done["swapped"])})


def _settings(source: Path) -> Settings:
    try:
        return load(source, os.environ)
    except ConfigError as exc:
        fail(str(exc), ExitCode.USAGE)


def _working_directory(pid: int) -> Path:
    """Return where a broker was started: relative names of its workers begin there."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:  # of another user, or no Linux
        return Path.cwd()


def _printer(write: Callable[..., None]) -> Say:
    return lambda line: write(line, markup=False)
