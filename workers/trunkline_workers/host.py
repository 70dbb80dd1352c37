"""The worker host: one loop that runs the adapter, its sockets and its heartbeats.

It turns frames and time into events of `core.worker.WorkerCore` and performs the effects. The
heartbeat comes from this very loop, so a worker that is stuck goes silent. Nothing here decides
anything about calls or registrations.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, assert_never

import zmq
from trunkline_protocol.chunks import Finish, TokenUsage
from trunkline_protocol.curve import lane_address
from trunkline_protocol.failure import Code, LlmError, LlmFailure
from trunkline_protocol.finish import FinishReason
from trunkline_protocol.frames import Cancel, Query, Reply, Start, ToWorkerFrame
from trunkline_protocol.ids import LEASE_ID_BYTES, CallId, LeaseId
from trunkline_protocol.limits import CANCEL_S, HEARTBEAT_INTERVAL_S
from trunkline_protocol.redact import Redactor, redactor

from trunkline_workers.adapter import AdapterContext
from trunkline_workers.answers import Answers
from trunkline_workers.asking import Asker
from trunkline_workers.attachments import Attachments
from trunkline_workers.boot import Boot
from trunkline_workers.boundary import StreamGuard
from trunkline_workers.control import ControlSocket
from trunkline_workers.core.effects import (
    Answer,
    Begin,
    ConnectLane,
    Count,
    DropAnswer,
    Effect,
    Exit,
    LinkEffect,
    OpenAdapter,
    Pull,
    Resolve,
    SendControl,
    SendLane,
    Stalled,
    Stop,
    TakeReply,
    UseAttachments,
)
from trunkline_workers.core.leases import Leases
from trunkline_workers.core.link import (
    EXIT_BROKEN,
    EXIT_CONFIG,
    EXIT_ORPHANED,
    EXIT_REFUSED,
    RegistrationSet,
    WorkerIdentity,
)
from trunkline_workers.core.worker import WorkerCore
from trunkline_workers.dispatch import Dispatcher
from trunkline_workers.figures import process_figures
from trunkline_workers.foreign import SELF_CANCELLED, class_name, is_a
from trunkline_workers.group import kill_others
from trunkline_workers.health import HealthFile
from trunkline_workers.host_task import HostTask, HostTasks, wait_for_all
from trunkline_workers.lane import LaneSocket
from trunkline_workers.leaving import CLOSE_S, Limit
from trunkline_workers.loader import Entry
from trunkline_workers.plugin import Plugin
from trunkline_workers.process_state import ProcessState
from trunkline_workers.prompts import PromptLog
from trunkline_workers.pull import Puller
from trunkline_workers.queries import PreparedCall, Queries
from trunkline_workers.runtime import WorkerRuntime
from trunkline_workers.stuck import Arm, LoopWatch
from trunkline_workers.tracing import AttemptNotes, SpanSource

_MAX_LINE_CHARS: Final = 64 * 1024  # of the log: the prompts of the debug switch have less
_STOPPING: Final = "STOPPING"
_LEAVING: Final = "this worker is about to leave"
_CANCELLED: Final = FinishReason("aborted", LlmFailure("cancelled", Code.ABORTED))
_ABANDONED: Final = Finish(
    FinishReason("error", LlmFailure("the adapter's stream was abandoned", Code.INVARIANT))
)
_STRICT_GRAMMAR: Final = "TRUNKLINE_STRICT_GRAMMAR"
_STRICT_LIVENESS: Final = "TRUNKLINE_STRICT_LIVENESS"  # set by the tests of this project

_Key = tuple[CallId, int]


class Host:
    """Runs one worker until it is told to end; `run` returns the exit code.

    Args:
        boot: how it starts.
        entry: the adapter class or plugin.
        environ: the environment of the process.
        clean: takes secrets out of texts, and learns those that the adapter tells of; `None`: one
            of its own.
        arm: has the stacks written if the loop stands still (`stuck.arm_stacks`); `None`: nobody.
        limit: ends the process if leaving takes too long (`leaving.arm_hard_limit`); `None`:
            nothing does.

    Raises:
        ValueError: the adapter does not accept its options.
    """

    def __init__(
        self,
        boot: Boot,
        entry: Entry,
        environ: Mapping[str, str],
        clean: Redactor | None = None,
        arm: Arm | None = None,
        limit: Limit | None = None,
    ) -> None:
        self._boot = boot
        self._limit = limit
        self._log = sys.stderr  # adapter code may put another stream there
        self._clock = time.monotonic
        self._counters: Counter[str] = Counter()
        self._clean = clean or redactor(environ, boot.options)
        self._is_strict = environ.get(_STRICT_GRAMMAR, "") not in {"", "0"}
        self._is_liveness_strict = environ.get(_STRICT_LIVENESS, "") not in {"", "0"}
        self._health = HealthFile(boot.health_file, self._count)
        self._watch = LoopWatch(self._clock, self._on_blocked, arm)
        self._leases: Leases[PreparedCall] = Leases(boot.lease_s)
        self._prompts = PromptLog(self.report, self._clean) if boot.debug_prompts else None
        self._notes = AttemptNotes(_spans(boot, self.report), self._clean, self._prompts)
        self._core = _core_of(boot, self._leases, self._clock())
        self._asker = Asker(self._send_control)
        self._attachments = Attachments(self._asker.ask)
        self._runtime = WorkerRuntime(self._submit, self._spawn, self._clean)
        self._plugin = Plugin(entry, self._adapter_context(environ), self._runtime)
        self._queries = Queries(
            self._runtime, self._leases, _draw_lease_id, self._clock, self._clean
        )
        self._dispatcher = Dispatcher(self._runtime, self._queries, self._attachments.ensure)
        self._pullers: dict[_Key, tuple[Puller, HostTask[None]]] = {}
        self._decisions: dict[int, asyncio.Future[Resolve]] = {}
        self._exit_code = 0
        self._exit_reason = ""
        self._crash: BaseException | None = None

    def _adapter_context(self, environ: Mapping[str, str]) -> AdapterContext:
        boot = self._boot
        return AdapterContext(
            boot.pool,
            boot.providers,
            boot.options,
            environ,
            self.report,
            self._attachments.read,
            self._conceal,
        )

    def _conceal(self, secret: str) -> None:
        """Learn a secret that adapter code names; what is not text is its error, and raised."""
        if type(secret) is not str:
            raise TypeError(f"conceal: a str is required, not {class_name(secret)}")
        self._clean.learn(secret)

    # --- life ----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Connect, serve, and leave when told to.

        Returns:
            0 after `BYE` or a signal; 2, 3 or 4 as in `core.link`, with the reason on stderr.
        """
        loop = self._loop = asyncio.get_running_loop()
        self._leaving = asyncio.Event()
        self._tasks = HostTasks(loop, self._break)
        self._answers = Answers(
            self._tasks,
            self._queries.answer,
            self._send_control,
            self._leases.release_of,
            loop.call_later,
        )
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        drain_s = self._boot.drain_s
        self._state = ProcessState(
            loop,
            {
                signal.SIGTERM: lambda: self._on_signal(drain_s),
                **_hang_up(lambda: self._on_signal(drain_s)),
                signal.SIGINT: lambda: self._on_signal(0.0),
            },
        )
        self._health.write("starting")
        keys = self._boot.keys
        self._lane = LaneSocket(context, self._on_lane_connected, self._count, keys, self.report)
        self._control = ControlSocket(
            context,
            self._boot.control,
            self._on_frame,
            self._on_connected,
            self._count,
            keys,
            self.report,
        )
        self._due_s = self._clock() + HEARTBEAT_INTERVAL_S
        self._schedule_tick()
        is_clean = False
        try:
            await self._leaving.wait()
            self._ticker.cancel()
            is_clean = await self._stop_all()
        finally:
            self._close(context)
        if not is_clean:
            os._exit(self._exit_code)  # an adapter that ignores cancel holds nobody up
        if self._crash is not None:
            raise self._crash
        return self._exit_code

    def _close(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Close the sockets, say why, and flush what was sent last."""
        self._control.close()
        self._lane.close()
        self._notes.close()
        self._watch.stop()
        self._health.remove()
        context.term()
        if self._exit_code:
            self.report(self._exit_reason)
        self._state.release()
        self._end_group()

    def _end_group(self) -> None:
        """Kill what the adapter has started, if there is no broker that would do so."""
        if self._exit_code == EXIT_ORPHANED and self._boot.token:
            kill_others()

    def report(self, diagnostic: str) -> None:
        """Write one line to the worker's log, without its secrets; a full disk is only counted."""
        line = f"[trunkline] {self._clean(diagnostic[:_MAX_LINE_CHARS])}\n"
        try:
            self._log.write(line)
            self._log.flush()
        except (OSError, ValueError):  # ValueError: adapter code closed the stream
            self._count("log_lines_lost")

    async def _stop_all(self) -> bool:
        """Cancel every attempt and answer, then close the adapter, each within its deadline.

        Returns:
            Whether everything has ended; an adapter may ignore that it was cancelled.
        """
        alive = await self._tasks.stop_all(CANCEL_S)
        if alive:
            self.report(f"{alive} streams of the adapter ignore that they were cancelled")
        closing = self._tasks.start(self._close_adapter())
        await wait_for_all([closing], CLOSE_S)
        if not closing.done():
            closing.stop()
            self.report(f"closing the adapter took longer than {CLOSE_S:g} s")
            return False
        return not alive

    async def _close_adapter(self) -> None:
        try:
            await self._plugin.close()
        except LlmError as exc:
            self.report(f"closing the adapter failed: {_told(exc)}")

    def _schedule_tick(self) -> None:
        # A timer and not a task: adapter code may cancel every task of the loop.
        wait_s = max(0.0, self._due_s - self._clock())
        self._ticker = self._loop.call_later(wait_s, self._tick)

    def _tick(self) -> None:
        """Beat once a second; sockets are drained first, so that no frame is judged unheard."""
        now_s, due_s = self._clock(), self._due_s
        self._due_s = max(due_s + HEARTBEAT_INTERVAL_S, now_s)
        self._schedule_tick()
        try:
            self._beat(now_s, due_s)
        # A broken invariant of the host, as in _feed.
        except Exception as exc:  # noqa: BLE001
            self._break(exc)

    def _beat(self, now_s: float, due_s: float) -> None:
        for line in self._state.restore():
            self.report(line)
        self._control.drain()
        self._lane.drain()
        self._leases.on_tick(now_s)
        late = self._watch.lateness.to_dict()
        figures = {**process_figures(), **late, "counters": dict(self._counters)}
        if self._prompts is not None:
            figures["debugPrompts"] = True
        self._feed(self._core.on_tick, now_s, now_s - due_s, figures)
        pullers = {key: puller.is_waiting for key, (puller, _) in self._pullers.items()}
        self._feed(self._core.on_look, pullers, now_s)
        self._health.write(self._core.state())

    def _on_blocked(self, late_s: float) -> None:
        routes = ", ".join(self._core.calls.routes()) or "none"
        self.report(
            f"the loop stood still for {late_s:.1f} s, and with it every stream here; work that"
            f" blocks belongs into asyncio.to_thread. Routes of running calls: {routes}"
        )

    # --- events --------------------------------------------------------------------------------

    def _on_signal(self, drain_s: float) -> None:
        self._feed(self._core.on_stop, self._clock(), drain_s)

    def _on_connected(self) -> None:
        self._feed(self._core.on_connected)

    def _on_lane_connected(self) -> None:
        self._feed(self._core.on_lane_connected)

    def _on_frame(self, frame: ToWorkerFrame) -> None:
        if isinstance(frame, Cancel):
            self._note_cancelled(frame)
        self._feed(self._core.on_frame, frame, self._clock())

    def _feed(self, event: Callable[..., list[Effect]], *facts: Any) -> None:
        """Tell the core of an event and perform what follows."""
        try:
            self._perform(event(*facts))
        except Exception as exc:  # noqa: BLE001
            self._break(exc)

    def _break(self, error: BaseException) -> None:
        """End the process with a traceback: an invariant of the host broke.

        It happened in a callback that nobody awaits. The supervisor starts the worker again.
        """
        self._crash = self._crash or error
        self._leave(EXIT_BROKEN, "")

    # --- the sink of the pullers ---------------------------------------------------------------

    def ask_room(self, call: CallId, attempt: int) -> int:
        """Return how many chunks may be pulled now; after 0 the puller counts as waiting."""
        return self._core.ask_room(call, attempt)

    def push(self, call: CallId, attempt: int, arrays: Sequence[Sequence[Any]]) -> int:
        """Send chunks, or let them wait for credit; returns the room that is left."""
        self._feed(self._core.on_chunks, call, attempt, arrays, self._clock())
        return self._core.room(call, attempt)

    def finish(
        self,
        call: CallId,
        attempt: int,
        finish: Finish,
        usage: TokenUsage | None,
        arrays: Sequence[Sequence[Any]],
    ) -> None:
        """Send the last chunks and the finish."""
        told_s = self._clock() if arrays else None
        after_s = self._core.calls.first_chunk_after_s(call, attempt, told_s)
        request = self._notes.end(call, attempt, finish.reason, usage, after_s)
        self._core.calls.note(call, attempt, None, request)
        self._feed(self._core.on_finish, call, attempt, finish, usage, self._clock(), arrays)

    # --- effects -------------------------------------------------------------------------------

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendLane():
                    self._lane.send(effect.client, effect.frame)
                case SendControl():
                    self._control.send(effect.frame)
                case Pull():
                    self._wake((effect.call, effect.attempt))
                case Begin():
                    self._begin(effect.start)
                case Stop():
                    self._stop((effect.call, effect.attempt))
                case Count():
                    self._counters[effect.name] += effect.amount
                case _:
                    self._perform_rare(effect)

    def _perform_rare(self, effect: LinkEffect | Stalled) -> None:  # noqa: C901  one row per effect
        match effect:
            case ConnectLane():
                told = lane_address(effect.endpoint, self._boot.control)
                self._lane.connect(self._boot.lane or told)
            case OpenAdapter():
                self._tasks.start(self._open()).add_done_callback(self._on_opened)
            case Resolve():
                future = self._decisions.pop(effect.request, None)
                if future is not None and not future.done():
                    future.set_result(effect)
            case Answer():
                self._answers.begin(effect.query)
            case DropAnswer():
                self._answers.drop(effect.query)
            case TakeReply():
                self._asker.on_reply(effect.reply)
            case Stalled():
                self._on_stalled(effect)
            case UseAttachments():
                self._attachments.use(effect.directory)
            case Exit():
                self._leave(effect.code, effect.reason)
            case _:
                assert_never(effect)

    def _on_stalled(self, stalled: Stalled) -> None:
        self._count("stalled_attempts")
        told = (
            f"call {stalled.call.hex()}, attempt {stalled.attempt}, stood still although nothing"
            f" holds it up: {stalled.state}. This is a fault of trunkline; please report this line"
        )
        self.report(told)
        if self._is_liveness_strict:
            raise AssertionError(told)

    def _leave(self, code: int, reason: str) -> None:
        """Begin to leave: every question that is open is answered now, later ones at once."""
        if self._leaving.is_set():
            return
        self._exit_code, self._exit_reason = code, reason
        self._leaving.set()
        if self._limit is not None:
            self._limit(code, self._end_group)
        decisions = dict(self._decisions)
        self._decisions.clear()
        for request, future in decisions.items():
            if not future.done():
                future.set_result(Resolve(request, _STOPPING, _LEAVING))
        self._answers.leave()

    def _begin(self, start: Start) -> None:
        key = (start.call, start.attempt)
        sink = self if self._prompts is None else self._prompts.tap(self)
        puller = Puller(sink, start, StreamGuard(self._clean, is_strict=self._is_strict))
        running = puller.run(lambda: self._dispatcher.open_stream(start))
        task = self._tasks.start(running, context=self._notes.begin(start))
        self._pullers[key] = (puller, task)
        task.add_done_callback(lambda _: self._on_puller_done(key))

    def _on_puller_done(self, key: _Key) -> None:
        self._pullers.pop(key, None)
        if self._core.calls.is_unfinished(*key):
            # Cancelled by adapter code before its first step: its body had no chance to end it.
            self.finish(*key, _ABANDONED, None, ())
        self._notes.end(*key, _CANCELLED, None)  # unless it was ended with its finish

    def _wake(self, key: _Key) -> None:
        """Wake the puller of an attempt; one that the core believes in and is gone ends it."""
        found = self._pullers.get(key)
        if found is not None:
            found[0].on_credit()
            return
        self._count("effects_without_puller")
        if self._core.calls.is_unfinished(*key):
            self.finish(*key, _ABANDONED, None, ())

    def _note_cancelled(self, frame: Cancel) -> None:
        """Tell the core what was used before an attempt is cut: it may have to be paid for."""
        found = self._pullers.get((frame.call, frame.attempt))
        if found is not None:
            usage = found[0].usage
            after_s = self._core.calls.first_chunk_after_s(frame.call, frame.attempt)
            request = self._notes.end(frame.call, frame.attempt, _CANCELLED, usage, after_s)
            counts = None if usage is None else usage.to_dict()
            self._core.calls.note(frame.call, frame.attempt, counts, request)

    def _stop(self, key: _Key) -> None:
        found = self._pullers.get(key)
        if found is None:
            self._count("effects_without_puller")
            return
        task = found[1]
        task.stop()
        self._loop.call_later(CANCEL_S, self._check_stopped, task)

    def _check_stopped(self, task: HostTask[None]) -> None:
        if not task.done():
            self._count("cancels_overdue")
            self.report("an adapter did not honour cancel in time")
            task.stop()  # once more: its code may have swallowed the first

    def _send_control(self, frame: Query | Reply) -> None:
        self._control.send(frame)

    def _count(self, name: str) -> None:
        self._counters[name] += 1

    # --- registration --------------------------------------------------------------------------

    async def _open(self) -> None:
        """Open the adapter; it registers what it serves, as yet with this process only."""
        try:
            await self._plugin.open()
        except LlmError as exc:
            self._leave(EXIT_CONFIG, f"the adapter cannot open: {_told(exc)}")

    def _on_opened(self, task: asyncio.Task[None]) -> None:
        """Make the worker ready, unless it leaves."""
        if self._leaving.is_set():
            return
        if task.cancelled():
            self._leave(EXIT_CONFIG, f"the adapter cannot open: {SELF_CANCELLED}")
            return
        self._tasks.start(self._publish(), is_shielded=True)

    async def _publish(self) -> None:
        """Ask the broker for what was registered; once it has agreed, the worker is ready."""
        try:
            await self._runtime.publish()
        except LlmError as exc:
            self._leave(EXIT_REFUSED, f"registration refused: {_told(exc)}")
            return
        self._watch.start()  # from here on a loop that stands still is killed after the lease

    async def _submit(self, wanted: RegistrationSet) -> LlmError | None:
        if self._leaving.is_set():
            return LlmError(LlmFailure(_LEAVING, _STOPPING))
        request, effects = self._core.ask(wanted)
        future: asyncio.Future[Resolve] = self._loop.create_future()
        self._decisions[request] = future
        self._perform(effects)
        decided = await future
        if decided.code is None:
            return None
        return LlmError(LlmFailure(decided.message, decided.code))

    def _spawn(self, change: Coroutine[Any, Any, LlmError | None]) -> HostTask[LlmError | None]:
        return self._tasks.start(change, is_shielded=True)


def _core_of(boot: Boot, leases: Leases[PreparedCall], now_s: float) -> WorkerCore:
    identity = WorkerIdentity(
        boot.pool, boot.slot, boot.generation, os.getpid(), boot.token, boot.is_standby
    )
    return WorkerCore(
        identity, now_s, boot.orphan_timeout_s, leases.ids, leases.holders, leases.clients
    )


def _hang_up(leave: Callable[[], None]) -> dict[int, Callable[[], None]]:
    """Return what follows SIGHUP: the end of a terminal is a stop, unless `nohup` has said no."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return {} if is_ignored else {signal.SIGHUP: leave}


def _draw_lease_id() -> LeaseId:
    return LeaseId(os.urandom(LEASE_ID_BYTES))


def _spans(boot: Boot, report: Callable[[str], None]) -> SpanSource | None:
    """Return where spans are begun, if that is wanted and its package is here."""
    if not boot.traces:
        return None
    try:
        from trunkline_workers.spans import Spans
    except ImportError:
        report("spans are wanted, but OpenTelemetry is not installed here: trunkline[traces]")
        return None
    return Spans(boot.traces, boot.pool, boot.slot, report)


def _told(exc: LlmError) -> str:
    """Return what went wrong in adapter code, with its code or the class of its error."""
    cause = exc.__cause__
    if cause is None or is_a(cause, LlmError) or not is_a(cause, Exception):
        return f"{exc.code}: {exc.failure.message}"
    return f"{class_name(cause)}: {exc.failure.message}"
