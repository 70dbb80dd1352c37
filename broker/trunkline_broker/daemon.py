"""The broker process: one loop that turns arrivals into events and performs what the core decides.

It holds no rule of its own about calls, workers or clients; every branch here is about a system
call's result or about the life of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
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
from trunkline_protocol.frames import Reply
from trunkline_protocol.ids import Epoch, Generation, PoolName
from trunkline_protocol.secret import SecretBytes

from trunkline_broker import outputs
from trunkline_broker.attachment_store import AttachmentStore
from trunkline_broker.config import Settings, load
from trunkline_broker.config_errors import ConfigError
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
from trunkline_broker.locks import BrokerRunning, take_lock
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
LOG_LIMIT_BYTES: Final = 8 * 1024 * 1024
_LOG_CHECK_S: Final = 10.0
_STDERR: Final = 2
_UMASK: Final = 0o077  # what we and our workers make is private from its first moment, sockets too


def run(settings: Settings) -> int:
    """Run a broker until it is told to stop; log and messages go to stderr.

    Returns:
        The exit status: 0 after a stop or a handover, `EXIT_RUNNING` if a live broker holds the
        run directory (nothing was touched), `EXIT_FAILED` after anything else.
    """
    os.umask(_UMASK)
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
            return runner.run(_serve(settings, telemetry, users))
    except (RunDirError, KeyFileError, zmq.ZMQError, OSError) as exc:
        telemetry.log("error", "start_failed", {"reason": str(exc)})
        return EXIT_FAILED
    finally:
        telemetry.close()
        lock.release()


async def _serve(settings: Settings, telemetry: Telemetry, users: Users) -> int:
    daemon = Daemon(settings, telemetry, users)
    try:
        await daemon.open_metrics()
        return await daemon.until_finished()
    finally:
        daemon.close()


class Daemon:
    """Sockets, processes and the core on the running loop; `close` gives everything back."""

    def __init__(self, settings: Settings, telemetry: Telemetry, users: Users) -> None:
        """Bind the sockets and start the core.

        Raises:
            zmq.ZMQError, OSError: a socket can't be bound; nothing is left open.
            RunDirError: the attachment store can't be used; nothing is left open.
        """
        self._settings = settings
        self._users = users
        self._telemetry = telemetry
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
        self._measures = Measures(self._settings, self._telemetry.log)
        self._cleanup.callback(self._measures.close)
        self._loop.set_exception_handler(self._on_loop_error)
        self._supervisor = Supervisor(os.environ)
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
            self._own_log()
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
        self._attachments = AttachmentStore(self._settings.attachments_dir, self.report)
        self._cleanup.callback(self._attachments.close)
        if not self._attachments.is_ours:
            place = {"directory": str(self._settings.attachments_dir)}
            self._telemetry.log("warning", "attachments_held_by_another_broker", place)

    def _say_ready(self, adopting: int) -> None:
        """Say to people and to whoever supervises us that it serves, and what may be amiss."""
        for note in advice(self._settings):
            self._telemetry.log("warning", "configuration_note", {"note": note})
        facts = {"pid": os.getpid(), "endpoint": self._settings.endpoint, "adopting": adopting}
        source = self._settings.source
        facts["config"] = str(source) if source is not None else "built in"
        self._telemetry.log("info", "ready", facts)
        self._supervisor.ready(self._settings.endpoint)

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
        )
        processes.remember(hints)
        for spec in self._settings.pool_specs():
            processes.conceal(spec)
        self._cleanup.callback(processes.close)
        return processes

    def _catch_signals(self) -> None:
        drain_s = self._settings.broker.drain_s
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            stop = said.StopRequested(restart=False, drain_s=drain_s)
            self._loop.add_signal_handler(number, self._on_stop_signal, stop)
            self._cleanup.callback(self._loop.remove_signal_handler, number)
        self._loop.add_signal_handler(signal.SIGUSR2, self.report, said.StopRequested(restart=True))
        self._cleanup.callback(self._loop.remove_signal_handler, signal.SIGUSR2)

    def _on_stop_signal(self, stop: said.StopRequested) -> None:
        self._supervisor.stopping()
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
        self._supervisor.beat()
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
        return {
            do.SendToClient: lambda e: self._clients.send(e.peer, e.frame),
            do.SendToWorker: lambda e: self._workers.send(e.peer, e.frame),
            do.SendStatus: self._send_status,
            do.LoadConfig: self._load_config,
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
        reply = Reply(effect.query, body=pack_body(self.status()))
        self._clients.send(effect.peer, reply)

    def _load_config(self, effect: do.LoadConfig) -> None:
        source = Path(effect.path) if effect.path else self._settings.source
        try:
            fresh = load(source, self._settings.environ)
            self._users.check(fresh.pool_specs())
        except (ConfigError, UserError) as exc:
            self.report(said.ConfigRejected(effect.peer, effect.query, str(exc)))
            return
        pools, access = fresh.pool_specs(), fresh.access()
        old, new = self._settings.broker, fresh.broker
        names = type(new).model_fields
        restart = tuple(name for name in names if getattr(old, name) != getattr(new, name))
        self.report(said.ConfigReplaced(pools, effect.peer, effect.query, access, restart))

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
        """End the process on any error in a callback: a broken invariant is not carried on with."""
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._telemetry.crash("broken", error)
        else:
            self._telemetry.log("error", "broken", {"reason": context.get("message")})
        self._finish(EXIT_FAILED)

    def _remove_files(self) -> None:
        for path in (*self._settings.paths.sockets, *self._users.sockets):
            path.unlink(missing_ok=True)

    def _own_log(self) -> None:
        """Keep the log of a detached broker below its size, which needs it to be appended to."""
        flags = fcntl.fcntl(_STDERR, fcntl.F_GETFL)
        fcntl.fcntl(_STDERR, fcntl.F_SETFL, flags | os.O_APPEND)
        self._cap_log()

    def _cap_log(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: the next time
            outputs.keep_below(self._settings.paths.log, LOG_LIMIT_BYTES)
        self._loop.call_later(_LOG_CHECK_S, self._cap_log)


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
