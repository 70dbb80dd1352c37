"""Who may start now on a route, who waits, and in which order.

Each route has a gate: a count of running attempts, a pause, and a queue that is fair over clients
(one of each in turn). It does not know workers or policies; limits are told with each question.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from trunkline_protocol.ids import CallId, ClientId, RouteName


class FairQueue:
    """Calls in order of arrival per client, taken one client after the other."""

    __slots__ = ("_clients", "_count")

    def __init__(self) -> None:
        self._clients: OrderedDict[ClientId | None, OrderedDict[CallId, None]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """Return the number of calls that wait."""
        return self._count

    def __iter__(self) -> Iterator[CallId]:
        """Iterate over all calls that wait, client by client."""
        return (call for calls in self._clients.values() for call in calls)

    def put(self, client: ClientId | None, call: CallId) -> None:
        """Append a call to those of its client."""
        calls = self._clients.get(client)
        if calls is None:
            calls = self._clients[client] = OrderedDict()
        calls[call] = None
        self._count += 1

    def peek(self) -> CallId | None:
        """Return the call whose turn it is, or `None`."""
        for calls in self._clients.values():
            return next(iter(calls))
        return None

    def take(self) -> CallId:
        """Remove the call whose turn it is; the turn goes to the next client."""
        client, calls = next(iter(self._clients.items()))
        call, _ = calls.popitem(last=False)
        self._count -= 1
        if calls:
            self._clients.move_to_end(client)
        else:
            del self._clients[client]
        return call

    def remove(self, client: ClientId | None, call: CallId) -> None:
        """Remove a call that waits."""
        calls = self._clients[client]
        del calls[call]
        self._count -= 1
        if not calls:
            del self._clients[client]


class Gate:
    """Admission of one route.

    Attributes:
        running: attempts that workers run.
        queue: calls that wait in turn.
        bench: suspect calls; each waits for a turn of its own, so it must not hold up the others.
        bound: most calls that may wait, as last told.
        high_water: most calls that ever waited.
        paused_until_s: nothing starts before; what comes waits.
        closed_until_s: nothing starts and nothing waits before; what comes is told to come later.
    """

    __slots__ = (
        "bench",
        "bound",
        "closed_until_s",
        "high_water",
        "paused_until_s",
        "queue",
        "running",
    )

    def __init__(self) -> None:
        self.running = 0
        self.bound = 0
        self.high_water = 0
        self.paused_until_s = 0.0
        self.closed_until_s = 0.0
        self.queue = FairQueue()
        self.bench: dict[CallId, None] = {}

    def __len__(self) -> int:
        """Return the number of calls that wait."""
        return len(self.queue) + len(self.bench)

    def has_place(self, concurrency: int | None) -> bool:
        """Tell whether one more attempt may run."""
        return concurrency is None or self.running < concurrency

    def is_paused(self, now_s: float) -> bool:
        """Tell whether the provider asked everybody to wait."""
        return now_s < self.paused_until_s or now_s < self.closed_until_s

    def is_idle(self) -> bool:
        """Tell whether nothing would be lost with this gate."""
        return not (self.running or len(self) or self.paused_until_s or self.closed_until_s)

    def end_pause(self) -> None:
        """Take note that every pause is over."""
        self.paused_until_s = self.closed_until_s = 0.0

    def put(
        self, client: ClientId | None, call: CallId, bound: int, *, is_suspect: bool = False
    ) -> bool:
        """Let a call wait; `False` and no change if `bound` calls do already."""
        self.bound = bound
        if len(self) >= bound:
            return False
        if is_suspect:
            self.bench[call] = None
        else:
            self.queue.put(client, call)
        self.high_water = max(self.high_water, len(self))
        return True

    def bench_next(self) -> None:
        """Move the call whose turn it is to the bench: it has become suspect while it waited."""
        self.bench[self.queue.take()] = None

    def take(self, client: ClientId | None, call: CallId) -> None:
        """Remove a call that starts: the first one of the queue, or any one of the bench."""
        if self.queue.peek() == call:
            self.queue.take()  # the turn goes to the next client
        else:
            self.remove(client, call)

    def remove(self, client: ClientId | None, call: CallId) -> None:
        """Remove a call that waits."""
        if call in self.bench:
            del self.bench[call]
        else:
            self.queue.remove(client, call)


class Gates:
    """The gates of all routes that have something to say; others are made when asked for."""

    __slots__ = ("_gates",)

    def __init__(self) -> None:
        self._gates: dict[RouteName, Gate] = {}

    def __iter__(self) -> Iterator[tuple[RouteName, Gate]]:
        """Iterate over the gates there are."""
        return iter(self._gates.items())

    def at(self, route: RouteName) -> Gate:
        """Return the gate of a route."""
        gate = self._gates.get(route)
        if gate is None:
            gate = self._gates[route] = Gate()
        return gate

    def is_paused(self, route: RouteName, now_s: float) -> bool:
        """Return whether a route waits because its provider asked for it."""
        gate = self._gates.get(route)
        return gate is not None and gate.is_paused(now_s)

    def waiting(self) -> list[RouteName]:
        """Return the routes for which calls wait."""
        return [route for route, gate in self._gates.items() if len(gate)]

    def tidy(self, route: RouteName) -> None:
        """Forget the gate of a route if it says nothing: a client may name any route."""
        gate = self._gates.get(route)
        if gate is not None and gate.is_idle():
            del self._gates[route]
