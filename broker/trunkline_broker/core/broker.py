"""The broker core: events in, effects out. The only core that the shell calls.

It composes the machines and flows and passes facts between them; it decides nothing itself but
who is asked. No I/O, no clock, no randomness: `now_s` is told and `draw` is the shell's source.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from trunkline_protocol import frames
from trunkline_protocol.frames import ClientFrame, Reply, Who, WorkerFrame
from trunkline_protocol.ids import Epoch

from trunkline_broker.core import events
from trunkline_broker.core.adoption import Adoption
from trunkline_broker.core.answers import Answers
from trunkline_broker.core.clients import Client
from trunkline_broker.core.effects import EchoProbe, Effect, SendToClient, SendToWorker
from trunkline_broker.core.endings import Endings
from trunkline_broker.core.events import Event, Side
from trunkline_broker.core.forwarding import Forwarding
from trunkline_broker.core.greeting import Greeting
from trunkline_broker.core.hub import Hub, WorkerLost, WorkerServed
from trunkline_broker.core.liveness import extend, is_late
from trunkline_broker.core.openings import Openings
from trunkline_broker.core.outcomes import Outcomes
from trunkline_broker.core.questions import WORKER_OPS, Questions
from trunkline_broker.core.queue_report import queues, tables
from trunkline_broker.core.registering import Registering
from trunkline_broker.core.reloading import Reloading
from trunkline_broker.core.report import status
from trunkline_broker.core.specs import BrokerSpec
from trunkline_broker.core.staffing import Staffing
from trunkline_broker.core.stopping import Stopping
from trunkline_broker.core.swaps import Swaps
from trunkline_broker.core.timers import Timers
from trunkline_broker.core.upkeep import Upkeep
from trunkline_broker.core.uploads import PUT, Uploads
from trunkline_broker.core.workers import Worker


class Broker:
    """One broker."""

    def __init__(self, spec: BrokerSpec, epoch: Epoch, draw: Callable[[int], bytes]) -> None:
        """Make a broker that has done nothing yet; `Started` is its first event.

        Args:
            spec: the configuration.
            epoch: start time in ns; above every epoch that workers may name.
            draw: returns n random bytes that nobody can guess: spawn tokens come from it.
        """
        hub = self._hub = Hub(spec, epoch, draw)
        self._endings = Endings(hub)
        outcomes = Outcomes(hub)
        self._openings = Openings(hub, self._endings, outcomes)
        self._forwarding = Forwarding(hub, self._endings, self._openings, outcomes)
        self._upkeep = Upkeep(hub, self._endings, self._openings)
        self._questions = Questions(hub, self._openings)
        self._staffing = Staffing(hub, self._endings)
        self._swaps = Swaps(hub, self._staffing)
        self._stopping = Stopping(hub, self._endings, self._staffing)
        reloading = Reloading(hub, self._staffing, self._swaps)
        self._adoption = Adoption(
            hub, self._endings, self._openings, self._forwarding, self._staffing, outcomes
        )
        self._registering = Registering(
            hub, self._staffing, self._adoption, self._forwarding, self._upkeep
        )
        self._greeting = Greeting(hub, self._endings, self._forwarding, self._questions)
        self._answers = Answers(
            hub, self._openings, self._staffing, self._swaps, reloading, self._stopping
        )
        self._uploads = Uploads(hub)
        self._timers = Timers(
            hub,
            endings=self._endings,
            openings=self._openings,
            staffing=self._staffing,
            adoption=self._adoption,
            greeting=self._greeting,
            questions=self._questions,
            stopping=self._stopping,
            upkeep=self._upkeep,
        )

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take one event.

        Args:
            event: what happened.
            now_s: monotonic seconds, never less than before.

        Returns:
            What is to be done, in order. Nothing a peer does raises; an `AssertionError` is a
            defect of this broker, which then must end.
        """
        hub = self._hub
        hub.out = []
        hub.now_s = hub.deadlines.now_s = now_s
        was_settling = hub.is_settling
        self._dispatch(event, now_s)
        if hub.has_more():
            self._follow_up(now_s)
        if was_settling and not hub.is_settling:  # everybody has spoken, or the time is over
            self._answers.settle()
            self._uploads.settle()
        self._upkeep.arm(now_s)
        return hub.out

    def next_deadline_s(self) -> float | None:
        """Return when a `Ticked` is needed at the latest; `None`: not before another event."""
        return self._hub.deadlines.earliest()

    def status(self, now_s: float) -> dict[str, object]:
        """Return the status document, as far as the core knows it."""
        return {
            **status(self._hub, self._swaps, now_s),
            "queues": queues(self._hub, self._questions, self._answers, self._uploads),
            "tables": tables(self._hub),
            "attachments": self._uploads.report(),
        }

    def _dispatch(self, event: Event, now_s: float) -> None:  # noqa: C901  one row per event
        match event:
            case events.ClientFrameReceived():
                self._on_client_frame(event, now_s)
            case events.WorkerFrameReceived():
                self._on_worker_frame(event, now_s)
            case events.Ticked(lateness_s):
                self._on_tick(lateness_s, now_s)
            case events.Started(alive, attachments):
                self._adoption.start(alive, now_s)
                self._uploads.start(attachments)
            case events.FrameRejected():
                self._on_rejected(event)
            case events.PeerDisconnected():
                self._on_disconnected(event, now_s)
            case events.ClientExited(pid):
                self._greeting.on_exited(pid, now_s)
            case events.ProcessSpawned():
                self._staffing.on_spawned(event.generation, event.pid)
            case events.SpawnFailed():
                text = f"not started: {event.reason}"
                self._staffing.on_exited(event.generation, text, (), now_s)
            case events.ProcessExited():
                self._staffing.on_exited(
                    event.generation, event.exit_text, event.output_tail, now_s
                )
            case events.WorkerLooked(generation, look):
                self._staffing.leases.on_looked(generation, look, now_s)
            case events.StrayLaneFrames(count):
                self._hub.count("stray_lane_frames", count)
            case events.StopRequested(restart, drain_s):
                if restart:
                    self._stopping.restart()
                else:
                    self._stopping.begin(drain_s, now_s)
            case events.ConfigReplaced():
                self._answers.on_config(event, now_s)
            case events.ConfigRejected(peer, query, reason):
                self._answers.rejected(peer, query, reason)
            case _:
                self._on_store(event)

    def _on_store(self, event: events.AttachmentEvent) -> None:
        match event:
            case events.PartStored():
                self._uploads.on_stored(event)
            case events.PartRefused():
                self._uploads.on_refused(event)
            case events.AttachmentChecked():
                self._uploads.on_checked(event)
            case events.AttachmentsGone():
                self._uploads.on_gone(event)
            case events.PartRead():
                self._uploads.on_read(event)
            case _:
                assert_never(event)

    # --- frames of clients ------------------------------------------------------------------

    def _on_client_frame(self, event: events.ClientFrameReceived, now_s: float) -> None:
        peer, frame = event.peer, event.frame
        if isinstance(frame, frames.Hello):
            self._greeting.on_hello(peer, frame, event.pid, now_s, event.user)
            return
        client = self._hub.clients.at(peer)
        if client is None:
            self._hub.count("frames_before_hello")
            self._hub.out.append(SendToClient(peer, Who(self._hub.epoch)))
            return
        client.heard_s = now_s
        self._on_known_client(client, frame, now_s)

    def _on_known_client(  # noqa: C901  one row per kind
        self, client: Client, frame: ClientFrame, now_s: float
    ) -> None:
        match frame:
            case frames.Open():
                self._openings.on_open(client, frame, now_s)
                self._uploads.touch(frame.attachments)
            case frames.Credit() | frames.Resume():
                self._forwarding.on_position(client, frame, now_s)
            case frames.Done():
                self._forwarding.on_done(client, frame)
            case frames.Cancel():
                self._forwarding.on_cancel(client, frame)
            case frames.Restate():
                self._forwarding.on_restate(client, frame, now_s)
            case frames.Probe(nonce):
                self._hub.out.append(EchoProbe(client.id, nonce))
            case frames.Query():
                self._on_query(client, frame, now_s)
            case frames.QueryCancel():
                self._questions.on_cancel(client, frame)
            case frames.Attach():
                self._forwarding.on_attach(client, frame, now_s)
            case frames.Bye():
                self._greeting.on_bye(client)
            case frames.Hello():
                raise AssertionError("taken before the client was looked up")
            case _:
                assert_never(frame)

    def _on_query(self, client: Client, frame: frames.Query, now_s: float) -> None:
        refused = self._answers.refusal(client, frame)
        if refused is not None:
            self._answers.refuse(client, frame, refused)
        elif frame.op == PUT:
            self._uploads.on_put(client, frame)
        elif frame.op in WORKER_OPS:
            self._questions.on_query(client, frame, now_s)
        elif self._answers.knows(frame.op):
            self._answers.on_query(client, frame, now_s)
        else:
            self._answers.unknown(client, frame)

    # --- frames of workers ------------------------------------------------------------------

    def _on_worker_frame(self, event: events.WorkerFrameReceived, now_s: float) -> None:
        peer, frame = event.peer, event.frame
        if isinstance(frame, frames.Register):
            self._registering.on_register(
                peer, frame, event.pid, now_s, event.user, is_guest=event.is_guest
            )
            return
        worker = self._hub.workers.at(peer)
        if worker is None:
            self._hub.count("frames_before_register")
            self._hub.out.append(SendToWorker(peer, Who(self._hub.epoch)))
            return
        worker.heard_s = now_s
        if worker.unheard_bytes:
            if worker.unheard_bytes >= self._hub.spec.queue_bytes:
                self._hub.on_topology()  # calls may wait for it
            worker.unheard_bytes = 0
        self._on_known_worker(worker, frame, now_s)

    def _on_known_worker(self, worker: Worker, frame: WorkerFrame, now_s: float) -> None:
        match frame:
            case frames.Ended():
                self._endings.on_ended(worker, frame, now_s)
            case frames.Heartbeat():
                self._registering.on_heartbeat(worker, frame, now_s)
            case frames.Registrations():
                self._registering.on_registrations(worker, frame, now_s)
            case Reply():
                self._questions.on_reply(worker, frame, now_s)
            case frames.Query():
                self._uploads.on_get(worker, frame)
            case frames.Snapshot():
                self._forwarding.on_snapshot(worker, frame)
            case frames.Bye(reason):
                self._registering.on_bye(worker, reason, now_s)
            case frames.Register():
                raise AssertionError("taken before the worker was looked up")
            case _:
                assert_never(frame)

    # --- the rest ---------------------------------------------------------------------------

    def _on_rejected(self, event: events.FrameRejected) -> None:
        self._hub.count_refused(event.code)
        refused = frames.Refused(event.code, event.message, **(event.about or {}))
        if event.side is Side.CLIENT:
            self._hub.out.append(SendToClient(event.peer, refused))
        else:
            self._hub.out.append(SendToWorker(event.peer, refused))

    def _on_disconnected(self, event: events.PeerDisconnected, now_s: float) -> None:
        if event.side is Side.CLIENT:
            self._greeting.on_disconnected(event.peer, now_s, is_stuck=event.is_stuck)
        else:
            # A worker's death is told by its process or its lease; its link may come back.
            self._hub.workers.disconnect(event.peer)

    def _on_tick(self, lateness_s: float, now_s: float) -> None:
        hub = self._hub
        if is_late(lateness_s):
            hub.count("late_ticks")
            hub.log("warning", "late_tick", {"lateness_s": round(lateness_s, 3)})
            hub.deadlines.shift(lateness_s)
            for worker in hub.workers:
                extend(worker, lateness_s)
        while (name := hub.deadlines.take_due(now_s)) is not None:
            self._timers.on_due(name, now_s)

    def _follow_up(self, now_s: float) -> None:
        """Pass on what one flow left for others, until nothing is left."""
        hub = self._hub
        while True:
            if hub.facts:
                self._on_fact(hub.facts.pop(0), now_s)
            elif self._adoption.is_over():
                self._adoption.settle(now_s)
            elif hub.freed:
                self._openings.pump(hub.freed.pop(), now_s)
            elif hub.is_topology_new:
                hub.is_topology_new = False
                self._questions.ask_waiting()
            elif hub.drained:
                self._staffing.leave_if_drained(hub.drained.pop(), now_s)
            elif hub.is_look_due:
                self._upkeep.look(now_s)
            else:
                break
        if hub.is_draining:
            self._stopping.go_on(now_s)

    def _on_fact(self, fact: WorkerServed | WorkerLost, now_s: float) -> None:
        match fact:
            case WorkerServed():
                self._swaps.on_served(fact, now_s)
            case WorkerLost():
                self._questions.worker_is_lost(fact.worker, fact.reason)
                self._swaps.on_lost(fact, now_s)
            case _:
                assert_never(fact)
