"""Greeting, lane proof and silence: how far this client may speak with a broker right now.

SPEC.md 2.1 and rules 6 and 8 of section 5. It knows no calls; `mux` tells it facts and asks.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from trunkline_protocol.frames import Hello, Probe, Welcome
from trunkline_protocol.ids import ClientId, Epoch
from trunkline_protocol.limits import (
    PROBE_TIMEOUT_S,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    REPEAT_AFTER_S,
    REPEAT_MAX_S,
)

from trunkline.core.effects import NOTHING, Effects, OpenLane, Rejected, Send

_NEVER_S: Final = float("inf")
# A lane socket that is still connecting is unknown to the broker, and an echo for it vanishes: the
# same probe is said again after this, then twice this, and so on.
_PROBE_AGAIN_S: Final = 0.002


class LinkPhase(Enum):
    """How far the client and the broker know of each other."""

    DOWN = "down"  # no connection
    GREETING = "greeting"  # HELLO is out
    PROVING = "proving"  # WELCOME came; the lane is not proven yet
    UP = "up"
    REJECTED = "rejected"


class Link:
    """The one connection to a broker.

    Attributes:
        phase: assigned in this file only.
        epoch: of the broker that answered last.
        lane: endpoint that `WELCOME` named.
        heard_s: when the broker last said anything.
        is_restarting: the broker has said that another one will take over.
    """

    __slots__ = (
        "_down_s",
        "_hello",
        "_hello_at_s",
        "_hello_pause_s",
        "_nonce",
        "_probe_at_s",
        "_probe_patience_s",
        "_probe_pause_s",
        "_probe_until_s",
        "_proven_s",
        "epoch",
        "heard_s",
        "is_restarting",
        "lane",
        "phase",
    )

    def __init__(self, client: ClientId, pid: int, name: str, now_s: float) -> None:
        self._hello = Hello((PROTOCOL_MAJOR, PROTOCOL_MINOR), client, pid, name)
        self.phase = LinkPhase.DOWN
        self.epoch: Epoch | None = None
        self.lane = ""
        self.heard_s = self._down_s = now_s
        self.is_restarting = False
        self._hello_at_s = _NEVER_S
        self._hello_pause_s = REPEAT_AFTER_S
        self._nonce: int | None = None
        self._probe_at_s = self._probe_until_s = _NEVER_S
        self._probe_pause_s = _PROBE_AGAIN_S
        self._probe_patience_s = PROBE_TIMEOUT_S
        self._proven_s = now_s

    @property
    def is_greeted(self) -> bool:
        """Whether the broker knows this client: queries and cancels may be sent."""
        return self.phase in {LinkPhase.PROVING, LinkPhase.UP}

    @property
    def is_up(self) -> bool:
        """Whether the lane is proven too: calls may be opened and restated."""
        return self.phase is LinkPhase.UP

    @property
    def is_probing(self) -> bool:
        """Whether an echo is awaited, so that `RESUME` has to wait (rule 6)."""
        return self._nonce is not None

    @property
    def has_given_up(self) -> bool:
        """Whether the broker refuses this client for good."""
        return self.phase is LinkPhase.REJECTED

    def down_for_s(self, now_s: float) -> float:
        """Return for how long no broker could be spoken to; 0 when it can."""
        return 0.0 if self.phase is LinkPhase.UP else now_s - self._down_s

    def hello(self) -> Send:
        """Return the greeting; said where the broker knows us it only brings an answer."""
        return Send(self._hello)

    # --- facts ---------------------------------------------------------------------------------

    def on_connected(self, now_s: float) -> Effects:
        """Greet: there is a new connection."""
        return NOTHING if self.has_given_up else self._greet(now_s)

    def on_disconnected(self, now_s: float) -> Effects:
        """Stop speaking; ZeroMQ connects again by itself."""
        if not self.has_given_up:
            self._fall(now_s, LinkPhase.DOWN)
            self._hello_at_s = _NEVER_S
        return NOTHING

    def on_who(self, now_s: float) -> Effects:
        """Greet a broker that does not know this connection, unless a `HELLO` is under way."""
        if self.has_given_up or (self.phase is LinkPhase.GREETING and now_s < self._hello_at_s):
            return NOTHING
        return self._greet(now_s)

    def on_welcome(self, frame: Welcome, nonce: int, now_s: float) -> Effects:
        """Take the answer to `HELLO` and have the lane proven; a second answer changes nothing.

        One of another epoch when none is awaited has been overtaken, or has overtaken: of two
        brokers in turn the one that answers a further `HELLO` lives.

        Args:
            frame: it names epoch and lane.
            nonce: a fresh number for the probe.
            now_s: monotonic seconds.
        """
        if self.phase is not LinkPhase.GREETING:
            is_other = self.is_greeted and frame.epoch != self.epoch
            return self._greet(now_s) if is_other else NOTHING
        if frame.protocol[0] != PROTOCOL_MAJOR:
            message = (
                f"the broker speaks protocol {frame.protocol[0]}.{frame.protocol[1]}, "
                f"this client {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}"
            )
            return self.on_rejected("VERSION", message)
        self.epoch = frame.epoch
        self.phase = LinkPhase.PROVING
        self.is_restarting = False
        self._hello_at_s = _NEVER_S
        self._probe_patience_s = PROBE_TIMEOUT_S
        effects: Effects = NOTHING
        if frame.lane != self.lane:
            self.lane = frame.lane
            effects = [OpenLane(frame.lane)]
        return [*effects, *self._probe(nonce, now_s)]

    def on_rejected(self, code: str, message: str) -> Effects:
        """Give up: the broker refuses the greeting."""
        self.phase = LinkPhase.REJECTED
        self._nonce = None
        self._hello_at_s = self._probe_at_s = _NEVER_S
        return [Rejected(code, message)]

    def on_echo(self, nonce: int, now_s: float) -> bool:
        """Take the echo of a probe; return whether it is the one awaited."""
        if self._nonce is None or nonce != self._nonce:
            return False
        self._nonce = None
        self._probe_at_s = _NEVER_S
        self._probe_patience_s = PROBE_TIMEOUT_S
        self._proven_s = now_s
        if self.phase is LinkPhase.PROVING:
            self.phase = LinkPhase.UP
        return True

    def doubt(self, nonce: int, now_s: float) -> Effects:
        """Probe the lane, since a stream is silent that should not be; at most every second."""
        if not self.is_up or self.is_probing or now_s - self._proven_s < 1.0:
            return NOTHING
        return self._probe(nonce, now_s)

    # --- time ----------------------------------------------------------------------------------

    def next_deadline_s(self) -> float:
        """Return when `on_tick` must be called next."""
        return min(self._hello_at_s, self._probe_at_s)

    def on_tick(self, nonce: int, now_s: float) -> Effects:
        """Repeat `HELLO` or a probe; replace a lane that did not echo and probe the new one."""
        if now_s >= self._hello_at_s:
            self._hello_pause_s = min(2 * self._hello_pause_s, REPEAT_MAX_S)
            self._hello_at_s = now_s + self._hello_pause_s
            return [Send(self._hello)]
        if self._nonce is None or now_s < self._probe_at_s:
            return NOTHING
        if now_s >= self._probe_until_s:
            self._probe_patience_s = min(2 * self._probe_patience_s, REPEAT_MAX_S)
            return [OpenLane(self.lane), *self._probe(nonce, now_s)]
        self._probe_pause_s *= 2
        self._probe_at_s = min(now_s + self._probe_pause_s, self._probe_until_s)
        return [Send(Probe(self._nonce))]

    def extend(self, lateness_s: float) -> None:
        """Do not count time in which this process did not run as silence of the broker."""
        self._down_s += lateness_s
        self.heard_s += lateness_s

    def _greet(self, now_s: float) -> Effects:
        self._fall(now_s, LinkPhase.GREETING)
        self._hello_pause_s = REPEAT_AFTER_S
        self._hello_at_s = now_s + REPEAT_AFTER_S
        return [Send(self._hello)]

    def _fall(self, now_s: float, phase: LinkPhase) -> None:
        if self.phase is LinkPhase.UP:
            self._down_s = now_s
        self.phase = phase
        self._nonce = None
        self._probe_at_s = _NEVER_S

    def _probe(self, nonce: int, now_s: float) -> Effects:
        self._nonce = nonce
        self._probe_pause_s = _PROBE_AGAIN_S
        self._probe_at_s = now_s + _PROBE_AGAIN_S
        self._probe_until_s = now_s + self._probe_patience_s
        return [Send(Probe(nonce))]
