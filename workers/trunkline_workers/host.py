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
from trunkline_protocol.frames import Cancel, Query, Start, ToWorkerFrame
from trunkline_protocol.ids import LEASE_ID_BYTES, CallId, LeaseId, QueryId
from trunkline_protocol.limits import CANCEL_S, HEARTBEAT_INTERVAL_S
from trunkline_protocol.redact import Redactor, redactor

from trunkline_workers.adapter import AdapterContext
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
    EXIT_CONFIG,
    EXIT_ORPHANED,
    EXIT_REFUSED,
    RegistrationSet,
    WorkerIdentity,
)
from trunkline_workers.core.worker import WorkerCore
from trunkline_workers.dispatch import Dispatcher
from trunkline_workers.figures import process_figures
from trunkline_workers.group import kill_others
from trunkline_workers.health import HealthFile
from trunkline_workers.lane import LaneSocket
from trunkline_workers.loader import Entry
from trunkline_workers.plugin import Plugin
from trunkline_workers.prompts import PromptLog
from trunkline_workers.pull import Puller
from trunkline_workers.queries import PreparedCall, Queries
from trunkline_workers.runtime import WorkerRuntime
from trunkline_workers.stuck import Arm, LoopWatch
from trunkline_workers.tracing import AttemptNotes, SpanSource

_CLOSE_S: Final = 5.0  # for the adapter's own close(); the broker kills after stop_s anyway
_CANCELLED: Final = FinishReason("aborted", LlmFailure("cancelled", Code.ABORTED))
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
    ) -> None:
        self._boot = boot
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
        self._asker = Asker(self._send_query)
        self._attachments = Attachments(self._asker.ask)
        self._runtime = WorkerRuntime(self._submit, self._spawn)
        self._plugin = Plugin(entry, self._adapter_context(environ), self._runtime)
        self._queries = Queries(
            self._runtime, self._leases, _draw_lease_id, self._clock, self._clean
        )
        self._dispatcher = Dispatcher(self._runtime, self._queries, self._attachments.ensure)
        self._pullers: dict[_Key, tuple[Puller, asyncio.Task[None]]] = {}
        self._answers: dict[QueryId, asyncio.Task[None]] = {}
        self._dropped: set[asyncio.Task[None]] = set()  # answers that were cancelled and still run
        self._decisions: dict[int, asyncio.Future[Resolve]] = {}
        self._exit_code = 0
        self._exit_reason = ""
        self._crash: Exception | None = None
        self._opening: asyncio.Task[None] | None = None

    def _adapter_context(self, environ: Mapping[str, str]) -> AdapterContext:
        boot = self._boot
        return AdapterContext(
            boot.pool,
            boot.providers,
            boot.options,
            environ,
            self.report,
            self._attachments.read,
            self._clean.learn,
        )

    # --- life ----------------------------------------------------------------------------------

    async def run(self) -> int:
        """Connect, serve, and leave when told to.

        Returns:
            0 after `BYE` or a signal; 2, 3 or 4 as in `core.link`, with the reason on stderr.
        """
        loop = asyncio.get_running_loop()
        self._leaving = asyncio.Event()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, self._boot.drain_s)
        loop.add_signal_handler(signal.SIGINT, self._on_signal, 0.0)
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
        try:
            async with asyncio.TaskGroup() as self._tasks:
                ticker = self._tasks.create_task(self._tick())
                await self._leaving.wait()
                ticker.cancel()
                is_clean = await self._stop_all()
                if not is_clean:
                    self._close(context)
                    os._exit(self._exit_code)  # an adapter that ignores cancel holds nobody up
        finally:
            self._close(context)
        if self._crash is not None:
            raise self._crash
        return self._exit_code

    def _close(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        """Close the sockets, say why, and flush what was sent last."""
        loop = asyncio.get_running_loop()
        self._control.close()
        self._lane.close()
        self._notes.close()
        self._watch.stop()
        self._health.remove()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        context.term()
        if self._exit_code:
            self.report(self._exit_reason)
        if self._exit_code == EXIT_ORPHANED and self._boot.token:
            kill_others()  # the broker that made this group would have done it

    def report(self, diagnostic: str) -> None:
        """Write one line to the worker's log, without its secrets; a full disk is only counted."""
        line = f"[trunkline] {self._clean(diagnostic)}\n"
        try:
            sys.stderr.write(line)
            sys.stderr.flush()
        except OSError:
            self._count("log_lines_lost")

    async def _stop_all(self) -> bool:
        """Cancel every attempt and answer, then close the adapter, each within its deadline.

        Returns:
            Whether everything has ended; an adapter may ignore that it was cancelled.
        """
        for future in self._decisions.values():
            future.cancel()
        pulling = (task for _, task in self._pullers.values())
        tasks = [*pulling, *self._answers.values(), *self._dropped]
        if self._opening is not None:
            tasks.append(self._opening)
        for task in tasks:
            task.cancel()
        alive = (await asyncio.wait(tasks, timeout=CANCEL_S))[1] if tasks else ()
        if alive:
            self.report(f"{len(alive)} streams of the adapter ignore that they were cancelled")
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._plugin.close()
        # Foreign code at the very end: its trouble is told and changes nothing.
        except Exception as exc:  # noqa: BLE001
            self.report(f"closing the adapter failed: {type(exc).__name__}: {exc}")
        return not alive

    async def _tick(self) -> None:
        """Beat once a second; sockets are drained first, so that no frame is judged unheard."""
        due_s = self._clock() + HEARTBEAT_INTERVAL_S
        while True:
            await asyncio.sleep(max(0.0, due_s - self._clock()))
            now_s = self._clock()
            self._control.drain()
            self._lane.drain()
            self._leases.on_tick(now_s)
            late = self._watch.lateness.to_dict()
            figures = {**process_figures(), **late, "counters": dict(self._counters)}
            if self._prompts is not None:
                figures["debugPrompts"] = True
            self._feed(self._core.on_tick, now_s, now_s - due_s, figures)
            self._feed(self._core.on_look, self._pullers, now_s)
            self._health.write(self._core.state())
            due_s = max(due_s + HEARTBEAT_INTERVAL_S, now_s)

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
        # Our own invariant broke, in a callback that nobody awaits: the process ends with the
        # traceback, and whoever supervises it starts it again.
        except Exception as exc:  # noqa: BLE001
            self._crash = self._crash or exc
            self._leaving.set()

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
                self._opening = self._tasks.create_task(self._open())
            case Resolve():
                future = self._decisions.pop(effect.request, None)
                if future is not None and not future.done():
                    future.set_result(effect)
            case Answer():
                self._answer(effect.query)
            case DropAnswer():
                self._drop_answer(effect.query)
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
        if not self._leaving.is_set():
            self._exit_code, self._exit_reason = code, reason
            self._leaving.set()

    def _begin(self, start: Start) -> None:
        key = (start.call, start.attempt)
        sink = self if self._prompts is None else self._prompts.tap(self)
        puller = Puller(sink, start, StreamGuard(self._clean, is_strict=self._is_strict))
        running = puller.run(lambda: self._dispatcher.open_stream(start))
        task = self._tasks.create_task(running, context=self._notes.begin(start))
        self._pullers[key] = (puller, task)
        task.add_done_callback(lambda _: self._forget_puller(key))

    def _forget_puller(self, key: _Key) -> None:
        self._pullers.pop(key, None)
        self._notes.end(*key, _CANCELLED, None)  # unless it was ended with its finish

    def _note_cancelled(self, frame: Cancel) -> None:
        """Tell the core what was used before an attempt is cut: it may have to be paid for."""
        found = self._pullers.get((frame.call, frame.attempt))
        if found is not None:
            usage = found[0].usage
            after_s = self._core.calls.first_chunk_after_s(frame.call, frame.attempt)
            request = self._notes.end(frame.call, frame.attempt, _CANCELLED, usage, after_s)
            counts = None if usage is None else usage.to_dict()
            self._core.calls.note(frame.call, frame.attempt, counts, request)

    def _wake(self, key: _Key) -> None:
        found = self._pullers.get(key)
        if found is None:
            self._count("effects_without_puller")
            return
        found[0].on_credit()

    def _stop(self, key: _Key) -> None:
        found = self._pullers.get(key)
        if found is None:
            self._count("effects_without_puller")
            return
        task = found[1]
        task.cancel()
        asyncio.get_running_loop().call_later(CANCEL_S, self._check_stopped, task)

    def _check_stopped(self, task: asyncio.Task[None]) -> None:
        if not task.done():
            self._count("cancels_overdue")
            self.report("an adapter did not honour cancel in time")

    def _answer(self, query: Query) -> None:
        if query.query in self._answers:
            return  # asked again while the answer is worked out
        task = self._tasks.create_task(self._send_answer(query))
        self._answers[query.query] = task
        task.add_done_callback(lambda ended: self._forget_answer(query.query, ended))

    def _drop_answer(self, query: QueryId) -> None:
        """Cancel an answer. The same question asked again is worked out anew at once.

        The adapter may take its time to end the cancelled answer, or ignore the cancel.
        """
        task = self._answers.pop(query, None)
        if task is None:
            self._leases.release_of(query)
        else:
            task.cancel()
            self._dropped.add(task)

    def _send_query(self, query: Query) -> None:
        self._control.send(query)

    async def _send_answer(self, query: Query) -> None:
        reply = await self._queries.answer(query)
        if asyncio.current_task() in self._dropped:
            return  # the cancel was ignored; a question asked again has an answer of its own
        # Before the reply is sent: a question that is asked again after it is answered again.
        self._answers.pop(query.query, None)
        self._control.send(reply)

    def _forget_answer(self, query: QueryId, ended: asyncio.Task[None]) -> None:
        self._dropped.discard(ended)
        if self._answers.get(query) is ended:
            del self._answers[query]

    def _count(self, name: str) -> None:
        self._counters[name] += 1

    # --- registration --------------------------------------------------------------------------

    async def _open(self) -> None:
        """Open the adapter and register what it serves; then the worker is ready."""
        try:
            await self._plugin.open()
        # Foreign code: whatever it raises means that this worker cannot serve.
        except Exception as exc:  # noqa: BLE001
            self._leave(EXIT_CONFIG, f"the adapter cannot open: {_told(exc)}")
            return
        try:
            await self._runtime.publish()
        except LlmError as exc:
            self._leave(EXIT_REFUSED, f"registration refused: {_told(exc)}")
            return
        self._watch.start()  # from here on a loop that stands still is killed after the lease

    async def _submit(self, wanted: RegistrationSet) -> LlmError | None:
        request, effects = self._core.ask(wanted)
        future: asyncio.Future[Resolve] = asyncio.get_running_loop().create_future()
        self._decisions[request] = future
        self._perform(effects)
        decided = await future
        if decided.code is None:
            return None
        return LlmError(LlmFailure(decided.message, decided.code))

    def _spawn(self, change: Coroutine[Any, Any, LlmError | None]) -> asyncio.Task[LlmError | None]:
        return self._tasks.create_task(change)


def _core_of(boot: Boot, leases: Leases[PreparedCall], now_s: float) -> WorkerCore:
    identity = WorkerIdentity(
        boot.pool, boot.slot, boot.generation, os.getpid(), boot.token, boot.is_standby
    )
    return WorkerCore(
        identity, now_s, boot.orphan_timeout_s, leases.ids, leases.holders, leases.clients
    )


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


def _told(exc: Exception) -> str:
    if isinstance(exc, LlmError):
        return f"{exc.code}: {exc}"
    return f"{type(exc).__name__}: {exc}"


def run_host(host: Host) -> int:
    """Run a worker on uvloop, or on asyncio where there is none; returns its exit code."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(host.run())


def _loop_factory() -> Any:
    try:
        import uvloop
    except ModuleNotFoundError:  # Windows, or an adapter's own lean environment
        return asyncio.new_event_loop
    return uvloop.new_event_loop
