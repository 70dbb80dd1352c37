"""The shell around the client's core: performs effects, keeps the clock, turns waits to futures.

What any frame means is decided in `core`; this file has no opinion about calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from time import monotonic
from typing import Final, cast

from trunkline_protocol.codec import Direction, begins_stream, decode, encode, pack_body
from trunkline_protocol.curve import CurveKeys
from trunkline_protocol.failure import LocalProtocolError, RemoteProtocolError
from trunkline_protocol.frames import ToClientFrame
from trunkline_protocol.ids import CLIENT_ID_BYTES, CallId, ClientId, QueryId

from trunkline.connection import Connection, Receivers
from trunkline.core.drawn import SEED_BYTES
from trunkline.core.effects import (
    Answered,
    BecameReady,
    Count,
    Effect,
    Effects,
    Happened,
    Left,
    OpenLane,
    Rejected,
    RetryBegan,
    RetryOffered,
    Send,
    Suspected,
    Wake,
)
from trunkline.core.mux import ADAPTERS_UPDATED, Mux
from trunkline.core.stream_state import StreamState
from trunkline.errors import BrokerRefusedError, BrokerUnreachableError, ForkedClientError
from trunkline.events import AdapterEvents, tell
from trunkline.request import prepared_lease
from trunkline.stream import RetryEvent, RetryObserver

GIVE_BACK_S: Final = 5.0  # nobody waits for the answer
CLOSE_S: Final = 0.25  # how long closing waits for the broker
STRICT_VARIABLE: Final = "TRUNKLINE_STRICT_LIVENESS"  # set by the tests of this project
_NEVER_S: Final = float("inf")
_log: Final = logging.getLogger("trunkline")


class Shell:
    """One client on one event loop of one process.

    Attributes:
        endpoint: address of the broker.
        mux: the core.
        events: who hears that the provider topology changed.
    """

    def __init__(self, endpoint: str, name: str, keys: CurveKeys | None = None) -> None:
        self.endpoint = endpoint
        self._keys = keys
        self._pid = os.getpid()
        self._client_id = ClientId(os.urandom(CLIENT_ID_BYTES))
        self.mux = Mux(self._client_id, self._pid, name, os.urandom(SEED_BYTES), monotonic())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection | None = None
        self._ready: asyncio.Future[None] | None = None
        self._left: asyncio.Future[None] | None = None
        self._is_closing = False  # nothing new from the application
        self._is_closed = False  # no sockets any more
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = _NEVER_S
        self._waiters: dict[CallId, asyncio.Future[None]] = {}
        self._answers: dict[QueryId, asyncio.Future[Answered]] = {}
        self._observers: dict[CallId, RetryObserver] = {}
        self._counters: dict[str, int] = {}
        self._defect = ""
        self.events = AdapterEvents()

    # --- life ----------------------------------------------------------------------------------

    async def connect(self, timeout_s: float) -> None:
        """Connect; cancelling this leaves nothing behind.

        Raises:
            BrokerUnreachableError: no broker has answered within `timeout_s`.
            BrokerRefusedError: it will not serve this client.
            LocalProtocolError: connected before.
        """
        if self._loop is not None or self._is_closing:
            raise LocalProtocolError("a runtime is connected once; call trunkline.connect() again")
        self._loop = asyncio.get_running_loop()
        self._ready = self._loop.create_future()
        receivers = Receivers(
            self._on_control, self._on_lane, self._on_connected, self._on_rejected, self._arm
        )
        try:
            self._connection = Connection(self.endpoint, self._client_id, receivers, self._keys)
        except OSError as exc:  # no descriptor is free
            self._is_closing = self._is_closed = True
            text = f"cannot open the sockets to the broker at {self.endpoint}: {exc.strerror}"
            raise BrokerUnreachableError(text, self.endpoint) from exc
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready
        except TimeoutError:
            raise BrokerUnreachableError(self._silence(), self.endpoint) from None
        finally:
            if not self.mux.is_up:
                self._is_closing = True
                self._disconnect()

    def _silence(self) -> str:
        """Say why nothing came of the connection."""
        if self.mux.lane:
            return (
                f"the broker at {self.endpoint} answers, but nothing arrives over its lane"
                f" {self.mux.lane}"
            )
        return f"no broker at {self.endpoint}; start one with `trunkline up`"

    async def close(self) -> None:
        """End every stream in `aborted` and every query in an error, and disconnect; idempotent.

        Waits until the broker has read that, for at most `CLOSE_S`; cancelling the wait only ends
        the wait.
        """
        if self._is_closing or self._pid != os.getpid():  # in a child the sockets are the parent's
            return
        self._is_closing = True
        if self._loop is None or self._connection is None:
            return
        try:
            self._left = self._loop.create_future()
            self.perform(self.mux.close(monotonic()))
            if self.mux.is_leaving:
                async with asyncio.timeout(CLOSE_S):
                    await self._left
        except TimeoutError:  # a stopped broker; what was sent still goes out in the background
            pass
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._connection.close()
        self._observers.clear()
        self.events.close()

    def check_usable(self) -> None:
        """Make sure that this is the process and the loop that connected.

        Raises:
            ForkedClientError: a child of the process that connected.
            LocalProtocolError: not connected, closed, or another event loop.
        """
        if self._pid != os.getpid():
            raise ForkedClientError
        if self._loop is None:
            raise LocalProtocolError("not connected; use `async with trunkline.connect() as llm`")
        if self._is_closing:
            raise LocalProtocolError("this runtime is closed")
        if asyncio.get_running_loop() is not self._loop:
            raise LocalProtocolError("this runtime belongs to another event loop")

    # --- waiting -------------------------------------------------------------------------------

    def wait_for(self, call: CallId) -> asyncio.Future[None]:
        """Return a future that is done when the call has something to take."""
        if self._defect:
            raise AssertionError(self._defect)
        waiter = self._waiters[call] = asyncio.get_running_loop().create_future()
        return waiter

    def stop_waiting(self, call: CallId) -> None:
        """Forget the future of `wait_for`."""
        self._waiters.pop(call, None)

    async def ask(self, op: str, provider: str, body: bytes, timeout_s: float) -> Answered:
        """Put a query and wait for its end; cancelling this reaches whoever works on it."""
        self.check_usable()
        query, effects = self.mux.ask(op, provider, body, timeout_s, monotonic())
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._answers[query] = answer
        self.perform(effects)
        self._arm()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                self._give_back(op, answer.result())
            raise
        finally:
            del self._answers[query]
            self.perform(self.mux.abandon(query))

    def _give_back(self, op: str, unread: Answered) -> None:
        """Release the prepared call of an answer that came in the turn of its reader's end."""
        lease = prepared_lease(op, unread.body) if unread.failure is None else None
        if lease is not None and not self._is_closing:
            body = pack_body({"lease": lease})
            self.perform(self.mux.ask("releaseCall", "", body, GIVE_BACK_S, monotonic())[1])
            self._arm()

    def observe(self, call: CallId, observer: RetryObserver | None) -> None:
        """Have an observer told of the retries of a call; `None`: no more."""
        if observer is None:
            self._observers.pop(call, None)
        else:
            self._observers[call] = observer

    def cancel_later(self, state: StreamState) -> None:
        """Cancel a call whose stream was dropped, from whatever thread; never raises."""
        loop = self._loop
        if loop is None or self._is_closed or self._pid != os.getpid():
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the call with it
            loop.call_soon_threadsafe(self._cancel_dropped, state)

    def _cancel_dropped(self, state: StreamState) -> None:
        self.observe(state.call, None)
        self.perform(self.mux.cancel(state, monotonic()))

    # --- effects -------------------------------------------------------------------------------

    def perform(self, effects: Effects) -> None:
        """Do what the core wants, in order, and be woken when it wants to be."""
        for effect in effects:
            if effect.__class__ is Wake:
                self._wake(cast("Wake", effect).call)
            elif effect.__class__ is Send:
                self._send(cast("Send", effect))
            else:
                self._perform(effect)
        if effects:
            self._arm()

    def _wake(self, call: CallId) -> None:
        waiter = self._waiters.pop(call, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _send(self, effect: Send) -> None:
        if self._connection is not None and not self._connection.send(encode(effect.frame)):
            self._count("unsent_frames")
            self.mux.on_unsent(effect.frame, monotonic())

    def _perform(self, effect: Effect) -> None:  # noqa: C901  one row per effect
        match effect:
            case OpenLane():
                if self._connection is not None and not self._connection.open_lane(effect.endpoint):
                    self._count("unopened_lanes")
            case BecameReady() | Left():
                _resolve(self._ready if isinstance(effect, BecameReady) else self._left)
            case Rejected():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_exception(BrokerRefusedError(effect.message, effect.code))
            case Answered():
                self._answer(effect)
            case RetryOffered() | RetryBegan():
                self._tell(effect)
            case Happened():
                self._announce(effect.event)
            case Suspected():
                self._report(effect)
            case Count():
                self._count(effect.name)
            case Wake() | Send():
                raise AssertionError("perform has taken these")

    def _answer(self, effect: Answered) -> None:
        answer = self._answers.get(effect.query)
        if answer is not None and not answer.done():
            answer.set_result(effect)

    def _tell(self, effect: RetryOffered | RetryBegan) -> None:
        observer = self._observers.get(effect.call)
        if observer is not None:
            is_offer = isinstance(effect, RetryOffered)
            event = RetryEvent("retry" if is_offer else "retry-started", effect.notice)
            tell(lambda: observer(event), "an on_retry observer")

    def _report(self, suspected: Suspected) -> None:
        """Tell of a call that nobody answers for; in tests of this project every reader fails."""
        self._count("suspected_calls")
        told = (
            f"the broker answers, but sends nothing about call {suspected.call.hex()}:"
            f" {suspected.state}. This is a fault of trunkline; please report this line"
        )
        _log.error("%s", told)
        if os.environ.get(STRICT_VARIABLE, "0") != "0":
            self._defect = told
            for call in list(self._waiters):
                self._wake(call)

    def _announce(self, event: str) -> None:
        if event == ADAPTERS_UPDATED:
            self.events.emit()
        else:  # of a newer broker
            self._count("unknown_events")

    def _count(self, name: str) -> None:
        self._counters[name] = self._counters.get(name, 0) + 1

    @property
    def counters(self) -> Mapping[str, int]:
        """How often something was dropped, refused or repeated, by name."""
        return dict(self._counters)

    # --- facts ---------------------------------------------------------------------------------

    def _on_lane(self, frame: bytes) -> None:
        if self._connection is not None and begins_stream(frame):
            # It may have overtaken ACCEPTED, which names the worker and the policy of the stream.
            self._connection.drain_control()
        for effect in self.mux.on_lane(frame, monotonic()):
            if effect.__class__ is Wake:
                self._wake(cast("Wake", effect).call)
            else:
                self.perform((effect,))

    def _on_control(self, parts: list[bytes]) -> None:
        try:
            frame = decode(parts, Direction.BROKER_TO_CLIENT)
        except RemoteProtocolError:
            self._count("bad_control_frames")
            return
        # The direction has admitted no other kinds.
        self.perform(self.mux.on_control(cast("ToClientFrame", frame), monotonic()))

    def _on_connected(self, is_connected: bool) -> None:
        mux, now_s = self.mux, monotonic()
        self.perform(mux.on_connected(now_s) if is_connected else mux.on_disconnected(now_s))

    def _on_rejected(self, message: str) -> None:
        self.perform(self.mux.on_rejected("HANDSHAKE", message))

    def _arm(self) -> None:
        """Set the timer for the core's next deadline; a later one is found out when it rings."""
        deadline_s = self.mux.next_deadline_s()
        if deadline_s >= self._timer_at_s or self._is_closed or self._loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = deadline_s
        self._timer = self._loop.call_later(max(0.0, deadline_s - monotonic()), self._tick)

    def _tick(self) -> None:
        lateness_s = monotonic() - self._timer_at_s
        self._timer, self._timer_at_s = None, _NEVER_S
        if self._connection is not None:
            # What is here already must not look as if it had not come.
            self._connection.drain_control()
            self._connection.drain_lane()
        if not self._is_closed:
            self.perform(self.mux.on_tick(monotonic(), lateness_s))
            self._arm()


def _resolve(waited_for: asyncio.Future[None] | None) -> None:
    """Tell a future that it has come true; later news of the same kind are nobody's."""
    if waited_for is not None and not waited_for.done():
        waited_for.set_result(None)
