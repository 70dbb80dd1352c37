"""Worker processes: start, watch by pidfd, signal, reap once; also the pids of clients.

It performs what the core decided and reports facts; when a process is started again is not its
business. Each worker leads a session and process group of its own, so that a Ctrl-C in the
broker's terminal does not reach it and its helpers go with it. No PDEATHSIG: workers outlive a
killed broker and are adopted by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from trunkline_protocol.ids import Generation, PoolName
from trunkline_protocol.redact import Redactor, secrets_in
from trunkline_protocol.secret import SecretBytes, SecretStr

from trunkline_broker import outputs
from trunkline_broker.core.effects import Adopt, Forget, NoteUnseen, Signal, Spawn
from trunkline_broker.core.events import (
    ClientExited,
    Event,
    ProcessExited,
    ProcessSpawned,
    SpawnFailed,
)
from trunkline_broker.core.specs import PoolSpec
from trunkline_broker.edge import Edges, in_a_line
from trunkline_broker.environment import EnvironmentFileError, worker_environment
from trunkline_broker.hints import Hint, started_ticks, write_hints
from trunkline_broker.paths import RunPaths
from trunkline_broker.regular_files import open_regular
from trunkline_broker.resources import ResourceRule, limit_process, own_rules
from trunkline_broker.secret_options import revealed
from trunkline_broker.users import UserError, Users
from trunkline_broker.worker_start import WorkerStart

OUTPUT_CHECK_S: Final = 0.5
OUTPUT_FLOOD_S: Final = 0.02  # after a look that found too much
KILL_WAIT_S: Final = 2.0  # a killed process that is still there hangs in the kernel
_SIGNALS: Final = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_UNKNOWN: Final = "unknown status"
_KEY_FILE_BYTES: Final = 64 * 1024


class WorkerKey(NamedTuple):
    """Names one process."""

    pool: PoolName
    slot: int
    generation: Generation


@dataclass(slots=True)
class _Process:
    key: WorkerKey
    pid: int
    pidfd: int
    is_child: bool
    leads_group: bool
    started_ticks: int
    output: Path | None
    token: SecretBytes
    is_manual: bool = False


class Processes:
    """Every process this broker watches, on the running loop."""

    def __init__(
        self,
        paths: RunPaths,
        report: Callable[[Event], None],
        count: Callable[[str], None],
        environ: Mapping[str, str],
        orphan_timeout_s: float,
        rules: tuple[ResourceRule, ...] = (),
        traces: str = "",
        users: Users | None = None,
        edges: Edges | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._paths = paths
        self._report = report
        self._count = count
        self._environ = environ
        self._rules = rules
        self._edges = edges or Edges(count, _unlogged)
        self._starter = WorkerStart(paths, environ, users or Users(paths), orphan_timeout_s, traces)
        self._workers: dict[WorkerKey, _Process] = {}
        self._clients: dict[int, int] = {}  # pid → pidfd
        self._hints: dict[int, Hint] = {}  # by pid: what the broker before knew of them
        self._unseen: set[WorkerKey] = set()
        self._clean = Redactor(secrets_in(environ))
        self._check = self._loop.call_later(OUTPUT_CHECK_S, self._check_outputs)

    def conceal(self, spec: PoolSpec) -> None:
        """Keep the keys of a pool out of what is reported of its processes.

        A worker cleans what Python prints. What a C library or the runtime prints while it dies
        gets into its file as it is, and the last lines of that go to logs and to clients.
        """
        self._edges.of("keys").guard(self._conceal)(spec)

    def _conceal(self, spec: PoolSpec) -> None:
        with contextlib.suppress(EnvironmentFileError):  # starting a worker will say so
            for secret in secrets_in(worker_environment(spec, self._environ)):
                self._clean.learn(secret)
        for secret in secrets_in(revealed(spec.options)):
            self._clean.learn(secret)
        if file := spec.options.get("apiKeyFile"):
            self._clean.learn(_text_of(str(file)).strip())

    # --- starting ---------------------------------------------------------------------------

    def spawn(self, order: Spawn) -> None:
        """Start a worker; `ProcessSpawned` or `SpawnFailed` is reported before this returns."""
        key = WorkerKey(order.pool, order.slot, order.generation)
        self.conceal(order.spec)
        output = self._edges.of("output").run(lambda: self._new_output(key), None)
        try:
            pid = self._start(order, output)
            pidfd = _watchable(pid)
        except (OSError, ValueError, EnvironmentFileError, UserError) as exc:
            self._report(SpawnFailed(*key, reason=f"can't start worker: {exc}"))
            return
        except Exception as exc:  # noqa: BLE001  # any error of a side service ends at its edge
            self._edges.of("starting").note(exc)
            self._report(SpawnFailed(*key, reason=f"can't start worker: {in_a_line(exc)}"))
            return
        ticks = started_ticks(pid) or 0
        self._watch(_Process(key, pid, pidfd, True, True, ticks, output, order.token))
        self._report(ProcessSpawned(*key, pid=pid))

    def adopt(self, order: Adopt) -> None:
        """Watch a process that this broker did not start; `ProcessExited` if it is gone."""
        key = WorkerKey(order.pool, order.slot, order.generation)
        if key in self._workers:
            return
        hint = self._hints.pop(order.pid, None)
        try:
            pidfd = os.pidfd_open(order.pid)
            leads_group = os.getsid(order.pid) == order.pid
        except (OSError, ValueError, OverflowError) as exc:
            if not isinstance(exc, ProcessLookupError):  # no descriptor is left, or no process id
                self._edges.of("reaping").note(exc)
            self._report(ProcessExited(*key, exit_text=_UNKNOWN))
            return
        ticks = started_ticks(order.pid) or 0
        if hint is not None and hint.started_ticks != ticks:  # the pid is another process's now
            os.close(pidfd)
            self._report(ProcessExited(*key, exit_text=_UNKNOWN))
            return
        output = self._own_output(hint.output) if hint is not None else None
        process = _Process(key, order.pid, pidfd, False, leads_group, ticks, output, order.token)
        process.is_manual = order.is_manual
        self._watch(process)

    def _own_output(self, text: str) -> Path | None:
        """Return the file of a hint if it is one of ours: others are not cut nor read."""
        path = Path(text)
        return path if text and path.parent == self._paths.workers else None

    def remember(self, hints: list[Hint]) -> None:
        """Take what the broker before knew of workers that may be adopted."""
        self._hints = {hint.pid: hint for hint in hints if hint.pid is not None}

    def note_unseen(self, order: NoteUnseen) -> None:
        """Name a worker in the hint file whose process is out of sight."""
        self._unseen.add(WorkerKey(order.pool, order.slot, order.generation))
        self._write_hints()

    def forget(self, order: Forget) -> None:
        """Name a worker no more that no broker started, and let its process be."""
        key = WorkerKey(order.pool, order.slot, order.generation)
        self._unseen.discard(key)
        process = self._workers.pop(key, None)
        if process is not None:
            self._loop.remove_reader(process.pidfd)
            os.close(process.pidfd)
        self._write_hints()

    def _new_output(self, key: WorkerKey) -> Path | None:
        directory = self._paths.workers
        path = outputs.output_path(directory, key.pool, key.slot, *key.generation)
        try:
            outputs.prune(directory, key.pool, key.slot)
            os.close(outputs.open_output(path))
        except OSError:
            self._count("output.lost")  # disk full: the worker runs, what it prints is not kept
            return None
        return path

    def _start(self, order: Spawn, output: Path | None) -> int:
        """Start a worker within its limits; return its process id.

        Raises:
            Exception: whatever it was, no process is left.
        """
        sink = os.open(output or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            pid = self._starter.start(order, sink)
        finally:
            os.close(sink)
        spec = order.spec
        rules = own_rules(self._rules, spec.memory_limit_mib, spec.open_files_limit)
        try:
            limit_process(pid, rules)
        except BaseException:  # whatever it was: without its limits it must not run
            _end_child(pid)
            raise
        return pid

    # --- watching ---------------------------------------------------------------------------

    def _watch(self, process: _Process) -> None:
        self._workers[process.key] = process
        self._loop.add_reader(process.pidfd, self._on_exit, process)
        self._write_hints()

    def _on_exit(self, process: _Process) -> None:
        self._loop.remove_reader(process.pidfd)
        # Before reaping, while the pid still names this group: what it left behind goes too.
        if process.leads_group:
            self._signal(process, signal.SIGKILL)
        reaping = self._edges.of("reaping")
        text = reaping.run(lambda: _reap(process.pidfd), _UNKNOWN) if process.is_child else _UNKNOWN
        os.close(process.pidfd)
        del self._workers[process.key]
        self._write_hints()
        tail = self._edges.of("output").run(lambda: self._last_words(process), ())
        self._report(ProcessExited(*process.key, exit_text=text, output_tail=tail))

    def _last_words(self, process: _Process) -> tuple[str, ...]:
        self._keep_below(process)
        lines = outputs.last_lines(process.output) if process.output else ()
        return tuple(map(self._clean, lines))

    def _write_hints(self) -> None:
        self._edges.of("hints").guard(self._write_hint_file)()

    def _write_hint_file(self) -> None:
        hints = [
            Hint(
                pool=process.key.pool,
                slot=process.key.slot,
                epoch=process.key.generation.epoch,
                number=process.key.generation.number,
                pid=process.pid,
                started_ticks=process.started_ticks,
                output=str(process.output or ""),
                token=SecretStr(process.token.get_secret_value().hex()),
                is_manual=process.is_manual,
            )
            for process in self._workers.values()
        ]
        hints += [
            Hint(
                pool=key.pool,
                slot=key.slot,
                epoch=key.generation.epoch,
                number=key.generation.number,
                is_manual=True,  # who is out of sight was not started by a broker
            )
            for key in sorted(self._unseen)
        ]
        try:
            write_hints(self._paths.hints, hints)
        except OSError:
            self._count("hints.lost")  # disk full: the next broker may start what it need not

    def _check_outputs(self) -> None:
        edge = self._edges.of("output")
        cut = [edge.run(partial(self._keep_below, each), False) for each in self._workers.values()]
        # Whoever has just printed so much goes on: what it writes between two looks stays bounded.
        wait_s = OUTPUT_FLOOD_S if any(cut) else OUTPUT_CHECK_S
        self._check = self._loop.call_later(wait_s, self._check_outputs)

    def _keep_below(self, process: _Process) -> bool:
        """Cut the output of a process if it is too large; return whether it was."""
        if process.output is None:
            return False
        try:
            is_cut = outputs.keep_below(process.output)
        except OSError:
            self._count("output.lost")
            return False
        if is_cut:
            self._count("output.cut")
        return is_cut

    # --- signals ----------------------------------------------------------------------------

    def signal(self, order: Signal) -> None:
        """Signal a worker's process group; nothing if it has exited."""
        process = self._workers.get(WorkerKey(order.pool, order.slot, order.generation))
        if process is not None:
            self._signal(process, _SIGNALS[order.signal])

    def _signal(self, process: _Process, number: signal.Signals) -> None:
        self._edges.of("signals").guard(_signal)(process, number)

    def kill_all(self) -> int:
        """Kill what is left, wait up to two seconds for each; return how many there were."""
        left = list(self._workers.values())
        for process in left:
            self._signal(process, signal.SIGKILL)
        for process in left:
            gone = select.poll()
            gone.register(process.pidfd, select.POLLIN)
            if gone.poll(KILL_WAIT_S * 1000):
                self._on_exit(process)
        return len(left)

    # --- clients ----------------------------------------------------------------------------

    def watch_client(self, pid: int) -> None:
        """Report `ClientExited` when the process ends, at once if it is gone or never was one.

        After a restart a worker names it, and may name anything: a thread, a number too large.
        """
        if pid in self._clients:
            return
        try:
            pidfd = os.pidfd_open(pid)
        except (OSError, ValueError, OverflowError) as exc:
            if isinstance(exc, OSError) and exc.errno in _NO_ROOM:
                self._count("clients.unwatched")  # its connection tells, or the time it is given
            else:
                self._report(ClientExited(pid))
            return
        self._clients[pid] = pidfd
        self._loop.add_reader(pidfd, self._on_client_exit, pid)

    def unwatch_client(self, pid: int) -> None:
        """Forget a process; nothing if it is not watched."""
        pidfd = self._clients.pop(pid, None)
        if pidfd is not None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)

    def _on_client_exit(self, pid: int) -> None:
        self.unwatch_client(pid)
        self._report(ClientExited(pid))

    def close(self) -> None:
        """Stop watching; processes are left alone and the hint file names them."""
        self._check.cancel()
        for pid in list(self._clients):
            self.unwatch_client(pid)
        for process in self._workers.values():
            self._loop.remove_reader(process.pidfd)
            os.close(process.pidfd)
        self._workers.clear()

    def figures(self) -> list[dict[str, object]]:
        """Return what the status document says of each process."""
        return [
            {
                "pool": process.key.pool,
                "slot": process.key.slot,
                "generation": list(process.key.generation),
                "pid": process.pid,
                "adopted": not process.is_child,
                "output": str(process.output or ""),
            }
            for process in self._workers.values()
        ]


def alive(hints: list[Hint]) -> list[Hint]:
    """Return the hints whose very process still lives, or is out of sight."""
    return [
        hint for hint in hints if hint.pid is None or started_ticks(hint.pid) == hint.started_ticks
    ]


def _text_of(file: str) -> str:
    """Return the beginning of a file; nothing of what is none.

    A pipe would hold up the broker, and what was read of it would be missing in the worker.
    """
    try:
        with open(open_regular(Path(file)), "rb") as source:
            return source.read(_KEY_FILE_BYTES).decode(errors="replace")
    except (OSError, ValueError):  # ValueError: a path with NUL; the worker's first call will say
        return ""


def _watchable(pid: int) -> int:
    """Return a pidfd of a new child; without one it is ended, since nothing would reap it.

    Raises:
        OSError: no descriptor is left.
    """
    try:
        return os.pidfd_open(pid)  # a child that nobody has reaped yet: no other process's
    except OSError:
        _end_child(pid)
        raise


def _end_child(pid: int) -> None:
    """Kill a child that nothing watches, and reap it."""
    with contextlib.suppress(OSError):  # something else has reaped it
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _unlogged(level: str, event: str, fields: Mapping[str, object]) -> None:
    """Drop a line: whoever makes `Processes` without edges has no log."""
    del level, event, fields


def _signal(process: _Process, number: signal.Signals) -> None:
    """Signal the group that a worker leads; a worker started by hand in some shell only itself."""
    with contextlib.suppress(ProcessLookupError):  # nobody left: the wanted state
        if process.leads_group:
            os.killpg(process.pid, number)
        else:
            signal.pidfd_send_signal(process.pidfd, number)


def _reap(pidfd: int) -> str:
    """Reap a child and return how it ended.

    Raises:
        ChildProcessError: something else has reaped it (a library that waits for every child).
    """
    facts = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    if facts is None:
        raise AssertionError("a readable pidfd of a child that can't be reaped")
    if facts.si_code == os.CLD_EXITED:
        return f"status {facts.si_status}"
    known = {number.value: f" ({number.name})" for number in signal.Signals}
    return f"signal {facts.si_status}{known.get(facts.si_status, '')}"  # real-time ones: no name
