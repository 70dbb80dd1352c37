"""The broker process: one loop that turns arrivals into events and performs what the core decides.

It holds no rule of its own about calls, workers or clients; every branch here is about a system
call's result or about the life of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes
from typing import Any, Final, cast, get_args

import zmq
from trunkline_protocol.codec import Direction, pack_body
from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.frames import Reply
from trunkline_protocol.ids import Epoch, Generation, PoolName
from trunkline_protocol.secret import SecretBytes

from trunkline_broker.attachment_store import AttachmentStore
from trunkline_broker.config import Settings
from trunkline_broker.config_reader import ConfigReader
from trunkline_broker.config_view import advice
from trunkline_broker.core import effects as do
from trunkline_broker.core import events as said
from trunkline_broker.core.broker import Broker
from trunkline_broker.core.specs import AliveWorker, BrokerSpec
from trunkline_broker.cpu_looks import look_at
from trunkline_broker.door import Door
from trunkline_broker.hints import Hint, read_hints
from trunkline_broker.key_files import KeyFileError
from trunkline_broker.lane import Lane
from trunkline_broker.locks import BrokerLock, BrokerRunning, clear_name, take_lock
from trunkline_broker.measured.measures import Measures
from trunkline_broker.open_files import SMALLEST_LIMIT, Line, OpenFiles
from trunkline_broker.paths import RunDirError, ipc
from trunkline_broker.processes import Processes, alive
from trunkline_broker.queues import QueueFigures
from trunkline_broker.receivers import ClientReceiver, WorkerReceiver
from trunkline_broker.resources import (
    forbid_core_dumps,
    open_files,
    raise_open_files_limit,
    usage,
    worker_rules,
)
from trunkline_broker.router import Router
from trunkline_broker.security import Bell, ZapHandler
from trunkline_broker.signals import own_signals, stop_signals
from trunkline_broker.sockets import Context
from trunkline_broker.supervisor import Supervisor
from trunkline_broker.telemetry import Telemetry
from trunkline_broker.users import UserError, Users

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_RUNNING: Final = 4  # a live broker holds the run directory
PULSE_S: Final = 0.5  # longest time between two ticks; so much of a standstill may go unnoticed
TICK_DRAIN_FRAMES: Final = 2000  # most frames taken from a socket before a tick
_TURN_FRAMES: Final = 64  # of them, before the other socket has its turn
LOG_LIMIT_BYTES: Final = 4 * 1024 * 1024  # of a detached broker; as much again in `.old`
LOCK_LOOK_S: Final = 2.0  # between two looks whether the run directory is still ours
_STDERR: Final = 2
_UMASK: Final = 0o077  # what we and our workers make is private from its first moment, sockets too


def run(settings: Settings) -> int:
    """Run a broker until it is told to stop; log and messages go to stderr.

    Returns:
        The exit status: 0 after a stop or a handover, `EXIT_RUNNING` if a live broker holds the
        run directory (nothing was touched), `EXIT_FAILED` after anything else.
    """
    os.umask(_UMASK)
    own_signals()
    try:
        users = Users(settings.paths, settings.pool_specs())
        settings.paths.prepare(users.uids)
        lock = take_lock(settings.paths.lock, settings.endpoint)
    except BrokerRunning as exc:
        _say(str(exc))
        return EXIT_RUNNING
    except (RunDirError, UserError, OSError) as exc:
        _say(str(exc))
        return EXIT_FAILED
    forbid_core_dumps()
    telemetry = Telemetry(_STDERR, settings.broker.log_format, settings.broker.log_level)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(settings, telemetry, users, lock))
    except (RunDirError, KeyFileError, zmq.ZMQError, OSError) as exc:
        telemetry.log("error", "start_failed", {"reason": str(exc)})
        return EXIT_FAILED
    finally:
        telemetry.close()
        lock.release()


async def _serve(settings: Settings, telemetry: Telemetry, users: Users, lock: BrokerLock) -> int:
    daemon = Daemon(settings, telemetry, users, lock)
    try:
        await daemon.open_metrics()
        return await daemon.until_finished()
    finally:
        daemon.close()


class Daemon:
    """Sockets, processes and the core on the running loop; `close` gives everything back."""

    def __init__(
        self, settings: Settings, telemetry: Telemetry, users: Users, lock: BrokerLock
    ) -> None:
        """Bind the sockets and start the core.

        Raises:
            zmq.ZMQError, OSError: a socket can't be bound; nothing is left open.
            RunDirError: the attachment store can't be used; nothing is left open.
        """
        self._settings = settings
        self._users = users
        self._telemetry = telemetry
        self._edges = telemetry.edges
        self._lock = lock
        self._lock_look_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[int] = self._loop.create_future()
        self._events: deque[said.Event] = deque()
        self._is_pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf
        self._started_s = time.monotonic()
        self._pulse_s = self._started_s + PULSE_S
        self._cleanup = contextlib.ExitStack()
        try:
            self._open()
        except BaseException:  # whatever it was: what is open already is closed
            self.close()
            raise

    async def open_metrics(self) -> None:
        """Open the metrics page, if it is wanted; nothing waits for it."""
        await self._measures.open(self.status)

    async def until_finished(self) -> int:
        """Wait for the end; return the exit status."""
        return await self._finished

    def close(self) -> None:
        """Close sockets and leave the loop; processes are not touched."""
        self._cleanup.close()

    # --- start ------------------------------------------------------------------------------

    def _open(self) -> None:
        files = OpenFiles(raise_open_files_limit())
        if files.limit < SMALLEST_LIMIT:
            raise OSError(
                f"the limit of open files is {files.limit}, at least {SMALLEST_LIMIT} are"
                " needed (ulimit -n, or LimitNOFILE= of the unit)"
            )
        hints = alive(read_hints(self._settings.paths.hints))
        self._measures = Measures(self._settings, self._telemetry.log, self._edges)
        self._cleanup.callback(self._measures.close)
        self._loop.set_exception_handler(self._on_loop_error)
        self._systemd = self._edges.of("systemd")
        self._supervisor = Supervisor(os.environ, self._systemd)
        self._cleanup.callback(self._supervisor.close)
        self._remove_files()  # left by a broker that was killed: we hold the lock
        self._context: Context = zmq.Context(io_threads=1)
        self._cleanup.callback(self._remove_files)
        self._cleanup.callback(self._context.term)
        door = Door.of(self._settings, self._telemetry)
        if door.guard is not None:
            self._cleanup.callback(ZapHandler(self._context, door.guard).close)
        self._open_sockets(files, door)
        inside, outside = self._lane.tcp_endpoints
        spec = door.with_lanes(self._settings.broker_spec(), inside, outside)
        self._core = Broker(self._within(files, spec), _epoch_after(hints), token_bytes)
        self._processes = self._watched_processes(hints)
        self._open_attachments()
        self._perform_by_type = self._performers()
        self._catch_signals()
        if _is_stderr(self._settings.paths.log):
            self._telemetry.own_file(self._settings.paths.log, LOG_LIMIT_BYTES)
        alive_workers = tuple(_alive_worker(hint) for hint in hints)
        self.report(said.Started(alive_workers, self._attachments.scan()))
        self._say_ready(len(hints))

    def _open_sockets(self, files: OpenFiles, door: Door) -> None:
        """Bind control and lane of both sides."""
        paths = self._settings.paths
        over = Bell(self._telemetry.count, self._telemetry.log).ring
        clients_line = Line(files.clients_line, "clients", over, files.backlog)
        workers_line = Line(files.workers_line, "workers", over, files.backlog)
        clients = ClientReceiver(self.report, self._telemetry.count, self._flush)
        self._clients = Router(
            self._context,
            paths.control,
            Direction.CLIENT_TO_BROKER,
            clients,
            door.clients,
            clients_line,
        )
        self._cleanup.callback(self._clients.close)
        workers = WorkerReceiver(self.report, self._telemetry.count, self._flush)
        self._workers = Router(
            self._context,
            paths.workers_control,
            Direction.WORKER_TO_BROKER,
            workers,
            door.workers,
            workers_line,
            self._users.control,
        )
        self._cleanup.callback(self._workers.close)
        self._lane = Lane(
            paths.workers_lane,
            paths.lane,
            self._on_stray,
            self._on_lane_end,
            tcp=door.lanes,
            lines=(workers_line, clients_line),
            also=self._users.lane,
        )
        self._cleanup.callback(self._lane.close)

    def _open_attachments(self) -> None:
        self._attachments = AttachmentStore(
            self._settings.attachments_dir, self.report, self._edges.of("attachments")
        )
        self._cleanup.callback(self._attachments.close)
        if not self._attachments.is_ours:
            place = {"directory": str(self._settings.attachments_dir)}
            self._telemetry.log("warning", "attachments_held_by_another_broker", place)

    def _say_ready(self, adopting: int) -> None:
        """Say to people and to whoever supervises us that it serves, and what may be amiss."""
        notes = self._edges.of("configuration").run(lambda: list(advice(self._settings)), [])
        for note in notes:
            self._telemetry.log("warning", "configuration_note", {"note": note})
        facts = {"pid": os.getpid(), "endpoint": self._settings.endpoint, "adopting": adopting}
        source = self._settings.source
        facts["config"] = str(source) if source is not None else "built in"
        self._telemetry.log("info", "ready", facts)
        self._systemd.guard(self._supervisor.ready)(self._settings.endpoint)

    def _within(self, files: OpenFiles, spec: BrokerSpec) -> BrokerSpec:
        """Return a specification with no more clients than there are descriptors for."""
        slots = sum(pool.replicas for pool in spec.pools)
        allowed = files.max_clients(open_files(), slots)
        if allowed >= spec.max_clients:
            return spec
        facts = {"limit": files.limit, "clients": allowed, "wanted": spec.max_clients}
        self._telemetry.log("warning", "open_files_limit_small", facts)
        bound = f"the broker's limit of open files ({files.limit}: ulimit -n, LimitNOFILE=)"
        return replace(spec, max_clients=allowed, clients_bound=bound)

    def _watched_processes(self, hints: list[Hint]) -> Processes:
        broker = self._settings.broker
        processes = Processes(
            self._settings.paths,
            self.report,
            self._telemetry.count,
            self._settings.environ,
            broker.orphan_timeout_s,
            worker_rules(broker.memory_limit_mib, broker.open_files_limit),
            broker.traces,
            self._users,
            self._edges,
        )
        processes.remember(hints)
        for spec in self._settings.pool_specs():
            processes.conceal(spec)
        self._cleanup.callback(processes.close)
        return processes

    def _catch_signals(self) -> None:
        drain_s = self._settings.broker.drain_s
        for number in stop_signals():
            stop = said.StopRequested(restart=False, drain_s=drain_s)
            self._loop.add_signal_handler(number, self._on_stop_signal, stop)
            self._cleanup.callback(self._loop.remove_signal_handler, number)
        self._loop.add_signal_handler(signal.SIGUSR2, self.report, said.StopRequested(restart=True))
        self._cleanup.callback(self._loop.remove_signal_handler, signal.SIGUSR2)

    def _on_stop_signal(self, stop: said.StopRequested) -> None:
        self._systemd.guard(self._supervisor.stopping)()
        self.report(stop)

    # --- events -----------------------------------------------------------------------------

    def report(self, event: said.Event) -> None:
        """Hand a fact to the core and perform what it decides.

        A fact that comes of performing an effect waits until the list of effects is done.
        """
        self._events.append(event)
        if not self._is_pumping:
            self._pump()

    def _pump(self) -> None:
        self._is_pumping = True
        try:
            while self._events and not self._finished.done():
                event = self._events.popleft()
                for effect in self._core.handle(event, time.monotonic()):
                    self._perform_by_type[type(effect)](effect)
        finally:
            self._is_pumping = False
        self._arm()

    def _arm(self) -> None:
        """Set the timer to the core's next deadline; one that is over already is left to fire.

        Never later than one pulse after the last tick. How late a tick comes is all that the core
        knows of a standstill (SIGSTOP, a paused machine), and after one of 10 s a deadline that
        was 3 s away is only 7 s late: leases would be extended to this very moment, and expire.
        """
        due_s = self._core.next_deadline_s()
        wanted_s = self._pulse_s if due_s is None else min(due_s, self._pulse_s)
        if self._finished.done():
            wanted_s = math.inf
        if wanted_s == self._due_s or self._due_s <= time.monotonic():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_s = wanted_s
        if wanted_s < math.inf:
            # Whole milliseconds, upwards: the timers of uvloop have no finer ones.
            wait_ms = math.ceil(max(0.0, wanted_s - time.monotonic()) * 1000)
            self._timer = self._loop.call_later(wait_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        lateness_s = max(0.0, time.monotonic() - self._due_s)
        self._timer = None
        # In turns: nobody waits for an answer while the other side's flood is taken.
        for _ in range(TICK_DRAIN_FRAMES // _TURN_FRAMES):
            is_empty = self._workers.drain(_TURN_FRAMES) < _TURN_FRAMES
            self._clients.drain(_TURN_FRAMES)
            if is_empty:
                break
        for router in (self._workers, self._clients):
            router.look_again()
            router.drop_revoked()
        self._due_s = math.inf
        self._pulse_s = time.monotonic() + PULSE_S
        self._systemd.guard(self._supervisor.beat)()
        self._look_at_lock()
        self.report(said.Ticked(lateness_s))

    def _flush(self) -> None:
        """Send what all that was drained has led to."""
        self._clients.flush()
        self._workers.flush()

    def _on_stray(self, count: int) -> None:
        self.report(said.StrayLaneFrames(count))

    # --- effects ----------------------------------------------------------------------------

    def _performers(self) -> dict[type[do.Effect], Callable[[Any], None]]:
        processes = self._processes
        reader = ConfigReader(
            self._settings, self._users, self.report, self._edges.of("configuration")
        )
        self._cleanup.callback(reader.close)
        return {
            do.SendToClient: lambda e: self._clients.send(e.peer, e.frame),
            do.SendToWorker: lambda e: self._workers.send(e.peer, e.frame),
            do.SendStatus: self._send_status,
            do.LoadConfig: reader.read,
            do.EchoProbe: self._echo,
            do.Spawn: processes.spawn,
            do.Adopt: processes.adopt,
            do.NoteUnseen: processes.note_unseen,
            do.Forget: processes.forget,
            do.Signal: processes.signal,
            do.LookAtWorker: lambda e: self.report(said.WorkerLooked(e.generation, look_at(e.pid))),
            do.WatchClient: lambda e: processes.watch_client(e.pid),
            do.UnwatchClient: lambda e: processes.unwatch_client(e.pid),
            **dict.fromkeys(get_args(do.AttachmentEffect), self._attachments.perform),
            do.AttemptEnded: self._measures.on_attempt,
            do.NoteLoad: self._measures.on_load,
            do.Count: lambda e: self._telemetry.count(e.name, e.amount),
            do.Log: lambda e: self._telemetry.log(e.level, e.event, e.fields),
            do.Exit: self._exit,
        }

    def _echo(self, effect: do.EchoProbe) -> None:
        if not self._lane.echo(effect.client, effect.nonce):
            self._telemetry.count("lane.echo_lost")

    def _send_status(self, effect: do.SendStatus) -> None:
        edge = self._edges.of("status")
        body = edge.run(lambda: pack_body(self.status()), None)
        if body is not None:
            self._clients.send(effect.peer, Reply(effect.query, body=body))
            return
        text = f"the status document cannot be made ({edge.last}); the broker goes on"
        failure = LlmFailure(text, Code.INVARIANT).to_dict()
        self._clients.send(effect.peer, Reply(effect.query, failure))

    def _exit(self, effect: do.Exit) -> None:
        self._finish(effect.code)

    def status(self) -> dict[str, Any]:
        """Return the core's status document with what only this process knows."""
        document = cast("dict[str, Any]", self._core.status(time.monotonic()))
        counters = {**self._telemetry.counters, **document.get("counters", {})}
        counters["log.lost"] = self._telemetry.lines_lost
        paths = self._settings.paths
        return document | {
            "pid": os.getpid(),
            "uptimeS": round(time.monotonic() - self._started_s, 3),
            "endpoints": {
                "control": ipc(paths.control),
                "lane": ipc(paths.lane),
                "workersControl": ipc(paths.workers_control),
                "workersLane": ipc(paths.workers_lane),
                "tcp": self._tcp_endpoints(),
            },
            "config": str(self._settings.source or ""),
            "runDir": str(paths.root),
            "counters": counters,
            "queues": document["queues"] + [queue.row() for queue in self._queues()],
            "peerQueues": self._peer_queues(counters),
            "measures": self._measures.figures(),
            "services": self._edges.figures(),
            "processes": self._processes.figures(),
            "connections": {
                "clients": self._clients.peer_count,
                "workers": self._workers.peer_count,
            },
            "usage": usage(),
        }

    def _queues(self) -> list[QueueFigures]:
        return [
            self._clients.queue("frames to clients"),
            self._workers.queue("frames to workers"),
            self._attachments.queue(),
            self._telemetry.queue(),
            *self._measures.queues(),
        ]

    def _peer_queues(self, counters: Mapping[str, int]) -> list[dict[str, object]]:
        return [
            *(queue.row() for queue in self._clients.peer_queues("client")),
            *(queue.row() for queue in self._workers.peer_queues("worker")),
            *(queue.row() for queue in self._lane.peer_queues(counters.get("lane.echo_lost", 0))),
        ]

    def _tcp_endpoints(self) -> dict[str, str]:
        inside, outside = self._lane.tcp_endpoints
        found = {
            "control": self._clients.tcp_endpoint,
            "lane": outside,
            "workersControl": self._workers.tcp_endpoint,
            "workersLane": inside,
        }
        return {name: endpoint for name, endpoint in found.items() if endpoint}

    # --- end --------------------------------------------------------------------------------

    def _finish(self, code: int) -> None:
        if not self._finished.done():
            self._finished.set_result(code)

    def _on_lane_end(self) -> None:
        self._telemetry.log("error", "lane_ended", {"reason": "the proxy thread ended"})
        self._finish(EXIT_FAILED)

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Judge an error that nothing has caught by where it happened.

        Core and sockets run in callbacks of the loop alone, so an error of a callback (`handle`) is
        a broken invariant and ends the process. What has no callback, as a future or a transport
        that a library has left, belongs to a side service.
        """
        error = context.get("exception")
        if "handle" not in context:
            message = str(context.get("message"))
            known = error if isinstance(error, BaseException) else RuntimeError(message)
            self._edges.of("loop").note(known)
            return
        if isinstance(error, BaseException):
            self._telemetry.crash("broken", error)
        else:
            self._telemetry.log("error", "broken", {"reason": context.get("message")})
        self._finish(EXIT_FAILED)

    def _look_at_lock(self) -> None:
        """End if the run directory was taken away: the next broker must not find a ghost.

        At once, as by a kill, which workers and clients survive: closing the sockets would remove
        files of their names, which may be the next broker's by now.
        """
        now_s = time.monotonic()
        if now_s < self._lock_look_s:
            return
        self._lock_look_s = now_s + LOCK_LOOK_S
        if self._lock.is_there():
            for path in self._settings.paths.sockets:
                if not path.exists():
                    text = f"{path} was removed: nothing new can connect; run `trunkline restart`"
                    self._edges.of("sockets").note(FileNotFoundError(text))
            return
        facts = {"directory": str(self._settings.paths.root), "fix": "trunkline up"}
        self._telemetry.log("error", "run_directory_lost", facts)
        self._measures.close()
        self._telemetry.close()
        os._exit(EXIT_FAILED)

    def _remove_files(self) -> None:
        for path in (*self._settings.paths.sockets, *self._users.sockets):
            clear_name(path)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # an optional part: slower, not different
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _epoch_after(hints: list[Hint]) -> Epoch:
    """Return now, or more where the clock was set back: a later broker has the greater epoch."""
    return Epoch(max([time.time_ns(), *(hint.epoch + 1 for hint in hints)]))


def _alive_worker(hint: Hint) -> AliveWorker:
    generation = Generation(Epoch(hint.epoch), hint.number)
    token = SecretBytes(bytes.fromhex(hint.token.get_secret_value()))
    return AliveWorker(
        PoolName(hint.pool), hint.slot, generation, hint.pid, token, is_manual=hint.is_manual
    )


def _is_stderr(path: Path) -> bool:
    """Say whether this is the file that stderr goes to, as it is for a detached broker."""
    try:
        return os.path.samestat(path.stat(), os.fstat(_STDERR))
    except OSError:
        return False


def _say(text: str) -> None:
    sys.stderr.write(f"trunkline: {text}\n")
