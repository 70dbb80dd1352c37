"""What this process is to its broker: greeting, role, registrations, orphan timeout (SPEC 2.1).

Pure; the parent tells it which calls and leases are held. A worker outlives its broker: it greets
every new connection and epoch with everything it holds, and leaves when it has heard no broker for
the orphan timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from trunkline_protocol.frames import (
    Committed,
    HeldAttachment,
    HeldCall,
    HeldClient,
    HeldLease,
    Refused,
    Register,
    Registered,
    Registrations,
    Role,
)
from trunkline_protocol.ids import Epoch, Generation, LeaseId, PoolName
from trunkline_protocol.limits import (
    LATE_TICK_S,
    ORPHAN_TIMEOUT_S,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
)
from trunkline_protocol.secret import NO_TOKEN, SecretBytes

from trunkline_workers.core.effects import (
    ConnectLane,
    Count,
    Effect,
    Exit,
    OpenAdapter,
    Resolve,
    SendControl,
    UseAttachments,
)

EXIT_OK: Final = 0
EXIT_BROKEN: Final = 1  # an invariant of the host broke; the traceback is in the log
EXIT_CONFIG: Final = 2  # wrong options, no such adapter, the adapter cannot open
EXIT_REFUSED: Final = 3  # the broker does not want this process
ASK_AGAIN_S: Final = 5.0  # an undecided request for registrations; up to 4 MiB, so not often
EXIT_ORPHANED: Final = 4  # no broker for the orphan timeout

_LEAVING: Final = "this worker is about to leave"
_FINAL_REFUSALS: Final = frozenset({"VERSION", "BAD_TOKEN", "UNKNOWN_POOL", "SUPERSEDED"})


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who this process is.

    Attributes:
        generation: as the broker that spawned it said; (0, 0) for one started by hand.
        token: the one-time secret from the spawning broker, sent with every greeting.
        is_standby: it starts beside a serving worker and owns nothing until the cutover.
    """

    pool: PoolName
    slot: int
    generation: Generation
    pid: int
    token: SecretBytes = NO_TOKEN
    is_standby: bool = False


class RegistrationSet(NamedTuple):
    """Everything a worker registers, in the form of the `REGISTRATIONS` frame."""

    adapters: tuple[Mapping[str, Any], ...]
    directory: tuple[Mapping[str, Any], ...] = ()
    discovery: tuple[str, ...] = ()


class BrokerLink:
    """The worker's half of greeting and registration.

    Attributes:
        role: "starting", "standby", "serving" or "draining".
        is_registered: a broker has answered `REGISTER` on this connection.
        epoch: of the broker that answered last; 0 before.
        is_leaving: its routes were given back; it finishes what it holds.
    """

    def __init__(
        self, identity: WorkerIdentity, now_s: float, orphan_timeout_s: float = ORPHAN_TIMEOUT_S
    ) -> None:
        self.identity = identity
        self.role = "standby" if identity.is_standby else "starting"
        self.is_registered = False
        self.epoch = Epoch(0)
        self.is_leaving = False
        self._is_opened = False
        self._orphan_timeout_s = orphan_timeout_s
        self._last_word_s = now_s
        self._next_request = 1
        self._asked: Registrations | None = None  # waits for COMMITTED or REFUSED
        self._repeat_at_s: float | None = None  # when that is sent again
        self._committed: Registrations | None = None
        self._withdrawn: Registrations | None = None  # the empty set, once this worker leaves

    def is_serving(self) -> bool:
        """Tell whether a broker gives this worker new calls."""
        return self.is_registered and self.role == "serving" and not self.is_leaving

    def register(
        self,
        calls: tuple[HeldCall, ...] = (),
        leases: tuple[LeaseId, ...] = (),
        attachments: tuple[HeldAttachment, ...] = (),
        lease_holders: tuple[HeldLease, ...] = (),
        clients: tuple[HeldClient, ...] = (),
    ) -> list[Effect]:
        """Greet the broker with what is held; on a new connection, on `WHO`, and repeated."""
        self.is_registered = False
        identity = self.identity
        frame = Register(
            (PROTOCOL_MAJOR, PROTOCOL_MINOR),
            identity.pool,
            identity.slot,
            identity.generation,
            identity.pid,
            "draining" if self.is_leaving else self.role,
            identity.token.get_secret_value(),
            (),
            calls,
            leases,
            attachments,
            lease_holders,
            clients,
        )
        return [SendControl(frame)]

    def on_word(self, now_s: float) -> None:
        """Note that a broker was heard, whatever it said."""
        self._last_word_s = now_s

    def on_registered(self, frame: Registered) -> list[Effect]:
        """Take the generation and the lane; register the routes again if they were before."""
        is_known_broker = frame.epoch == self.epoch
        self.is_registered = True
        self.epoch = frame.epoch
        self.identity = replace(self.identity, generation=frame.generation)
        if frame.orphan_timeout_ms:
            self._orphan_timeout_s = frame.orphan_timeout_ms / 1000
        effects: list[Effect] = [ConnectLane(frame.lane)]
        if frame.attachments_dir:
            effects.append(UseAttachments(frame.attachments_dir))
        if not self._is_opened:
            self._is_opened = True
            return [*effects, OpenAdapter()]
        latest = self._asked or self._committed
        if self._withdrawn is not None and is_known_broker:
            latest = self._withdrawn  # another one learns the policies of its calls, and drains it
        return effects if latest is None else [*effects, SendControl(latest)]

    def on_who(self) -> bool:
        """Tell whether the broker must be greeted: it does not know this connection (any more).

        While a greeting is under way it is late news about frames that were sent before it.
        """
        return self.is_registered

    def on_role(self, frame: Role) -> list[Effect]:
        """Take the role; nothing else follows: a draining worker still serves what it is given."""
        self.role = frame.role
        return []

    def ask(self, wanted: RegistrationSet) -> tuple[int, list[Effect]]:
        """Ask for a whole set of registrations.

        Returns:
            The number that `Resolve` will carry, and the frame, if a broker is there to hear it;
            it is sent at the next greeting else. A worker that leaves gets its `Resolve` at once.

        Raises:
            AssertionError: an earlier request is undecided; the caller asks one at a time.
        """
        if self._asked is not None:
            raise AssertionError("one request for registrations at a time")
        request = self._next_request
        self._next_request += 1
        if self.is_leaving:
            return request, [Resolve(request, "STOPPING", _LEAVING)]
        self._asked = Registrations(request, *wanted)
        return request, [SendControl(self._asked)] if self.is_registered else []

    def withdraw(self) -> list[Effect]:
        """Give all routes back: no new call comes, and what runs goes on; cannot be undone.

        Returns:
            `Resolve` for a request that is undecided: its answer makes no difference any more.
            Then the empty set, if a broker is there.
        """
        self.is_leaving = True
        effects: list[Effect] = []
        if self._asked is not None:
            effects.append(Resolve(self._asked.request, "STOPPING", _LEAVING))
            self._asked = None
        self._withdrawn = Registrations(self._next_request, ())
        self._next_request += 1
        if self.is_registered:
            effects.append(SendControl(self._withdrawn))
        return effects

    def on_committed(self, frame: Committed) -> list[Effect]:
        """Take the broker's yes; a repeated one changes nothing."""
        if self._asked is None or frame.request != self._asked.request:
            return []
        self._committed, self._asked = self._asked, None
        return [Resolve(frame.request)]

    def on_refused(self, frame: Refused) -> list[Effect]:
        """Take a refusal: of a request, of this process, or of some frame.

        Returns:
            `Resolve` for the request that is undecided; `Exit` where the broker does not want
            this process, or no longer grants what it had granted; else only a count.
        """
        if frame.request is not None:
            if self._asked is not None and frame.request == self._asked.request:
                self._asked = None
                return [Resolve(frame.request, frame.code, frame.message)]
            if self._committed is not None and frame.request == self._committed.request:
                return [Exit(EXIT_REFUSED, f"registration refused: {_said(frame)}")]
            return []
        if frame.code in _FINAL_REFUSALS:
            return [Exit(EXIT_REFUSED, f"refused by the broker: {_said(frame)}")]
        return [Count(f"refused_{frame.code}")]

    def on_tick(self, now_s: float, lateness_s: float) -> list[Effect]:
        """Leave if no broker was heard for the orphan timeout; repeat a request that is undecided.

        Args:
            now_s: monotonic seconds.
            lateness_s: how late the tick is; time in which this process did not run (a stopped
                process, a paused machine) is not the broker's silence.
        """
        if lateness_s > LATE_TICK_S:
            self._last_word_s += lateness_s
        silent_s = now_s - self._last_word_s
        if silent_s <= self._orphan_timeout_s:
            return self._asked_again(now_s)
        return [Exit(EXIT_ORPHANED, f"no broker for {silent_s:.0f} s")]

    def _asked_again(self, now_s: float) -> list[Effect]:
        """Repeat an undecided request now and then: its frame or its answer may be lost."""
        if self._asked is None or not self.is_registered:
            self._repeat_at_s = None
            return []
        if self._repeat_at_s is None or now_s < self._repeat_at_s:
            self._repeat_at_s = self._repeat_at_s or now_s + ASK_AGAIN_S
            return []
        self._repeat_at_s = now_s + ASK_AGAIN_S
        return [SendControl(self._asked)]


def _said(frame: Refused) -> str:
    return f"{frame.code}: {frame.message}"
