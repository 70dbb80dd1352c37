"""How the broker ends: drain by a deadline, stop the workers, exit; or exit at once for a restart.

It does not know signals; `StopRequested` and the queries `stop` and `restart` lead here.
"""

from __future__ import annotations

from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.frames import Stopping as StoppingFrame

from trunkline_broker.core.calls import CallState
from trunkline_broker.core.effects import Exit
from trunkline_broker.core.endings import Endings
from trunkline_broker.core.hub import Hub, Timer
from trunkline_broker.core.openings import STOPPING
from trunkline_broker.core.staffing import Staffing


class Stopping:
    """Ends the broker."""

    def __init__(self, hub: Hub, endings: Endings, staffing: Staffing) -> None:
        self._hub = hub
        self._endings = endings
        self._staffing = staffing
        self._is_dismissing = False
        self._has_exited = False

    def restart(self) -> None:
        """Exit at once and touch no worker: the next broker takes over what runs."""
        self._hub.to_all_clients(StoppingFrame("the broker is restarted", restart=True))
        self._exit()

    def begin(self, drain_s: float, now_s: float) -> None:
        """Accept nothing new, let running calls end; a second request waits no longer."""
        hub = self._hub
        if hub.is_draining:
            self.on_stop_due(now_s)
            return
        hub.is_draining = True
        hub.log("info", "stopping", {"calls": len(hub.calls), "drain_s": drain_s})
        hub.to_all_clients(StoppingFrame("the broker is stopping"))
        for call in list(hub.calls):
            if call.state is CallState.QUEUED:
                self._endings.fail(call, LlmFailure("the broker is stopping", STOPPING))
            elif call.backoff is not None:
                self._endings.fail_with(call, call.backoff.failure)
        hub.deadlines.set((Timer.STOP, None), now_s + drain_s)

    def on_stop_due(self, now_s: float) -> None:
        """The drain is over: end the calls that still run, and dismiss the workers."""
        hub = self._hub
        hub.deadlines.clear((Timer.STOP, None))
        failure = LlmFailure("the broker stopped before the call ended", Code.TRANSPORT)
        for call in list(hub.calls):
            if call.client is not None and call.state is CallState.RUNNING:
                self._endings.fail(call, failure)
        self._dismiss(now_s)

    def go_on(self, now_s: float) -> None:
        """Take the next step as soon as nothing is left to wait for; called after every event."""
        hub = self._hub
        if not self._is_dismissing and not len(hub.calls):
            self._dismiss(now_s)
        if self._is_dismissing and not len(hub.workers):
            self._exit()

    def _dismiss(self, now_s: float) -> None:
        self._is_dismissing = True
        self._hub.deadlines.clear((Timer.STOP, None))
        for worker in list(self._hub.workers):
            self._staffing.dismiss(worker, "the broker is stopping", now_s)

    def _exit(self) -> None:
        if not self._has_exited:
            self._has_exited = True
            self._hub.out.append(Exit(0))
