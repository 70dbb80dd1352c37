"""Queries that the broker answers itself: the registry's lists, the status, administration.

SPEC 7 lists them. What workers answer is in `questions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from trunkline_protocol.codec import pack_body
from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmFailure, RemoteProtocolError
from trunkline_protocol.frames import Query, Reply
from trunkline_protocol.ids import PoolName, QueryId, RouteName

from trunkline_broker.core.access import FULL, refusal
from trunkline_broker.core.arguments import read_argument
from trunkline_broker.core.clients import Client
from trunkline_broker.core.effects import LoadConfig, SendStatus, SendToClient
from trunkline_broker.core.events import ConfigReplaced
from trunkline_broker.core.hub import Hub
from trunkline_broker.core.openings import Openings
from trunkline_broker.core.questions import DISCOVER
from trunkline_broker.core.refusal import Refusal
from trunkline_broker.core.reloading import Reloading, ReloadReport
from trunkline_broker.core.specs import AccessSpec
from trunkline_broker.core.staffing import Staffing
from trunkline_broker.core.stopping import Stopping
from trunkline_broker.core.swaps import SWAP_FAILED, SwapReport, Swaps

RELOAD_FAILED: Final = "RELOAD_FAILED"
_MAX_DRAIN_S: Final = 86_400.0
_Answer = Callable[[bytes, Query, float], None]


class Answers:
    """Answers queries."""

    def __init__(
        self,
        hub: Hub,
        openings: Openings,
        staffing: Staffing,
        swaps: Swaps,
        reloading: Reloading,
        stopping: Stopping,
    ) -> None:
        self._hub = hub
        self._openings = openings
        self._staffing = staffing
        self._swaps = swaps
        self._reloading = reloading
        self._stopping = stopping
        self._held: list[tuple[bytes, Query]] = []
        self.held_high_water = 0
        self._new_specs: dict[QueryId, tuple[PoolName, str]] = {}  # swaps that wait for a file
        self._lists: Final[dict[str, Callable[[Query, AccessSpec], object]]] = {
            "listProviders": self._list_providers,
            "models": self._models,
            "providerRetryPolicy": self._retry_policy,
            "listConfigurableProviders": self._configurable,
            "listModelDiscoveryNamespaces": self._namespaces,
        }
        self._admin: Final[dict[str, _Answer]] = {
            "status": self._status,
            "swap": self._swap,
            "stop": self._stop,
            "restart": self._restart,
            "reload": self._reload,
            "drain": self._drain,
        }

    @property
    def held_count(self) -> int:
        """Number of queries that wait until it is known which workers there are."""
        return len(self._held)

    def knows(self, op: str) -> bool:
        """Tell whether the broker answers this query itself."""
        return op in self._lists or op in self._admin

    def refusal(self, client: Client, frame: Query) -> LlmFailure | None:
        """Return why a client may not ask this at all; `None`: it may."""
        access = client.access
        if frame.op in self._admin and not access.is_admin:
            return LlmFailure(f"this client's key may not {frame.op}", Code.FORBIDDEN)
        if frame.op == DISCOVER and access.providers is not None:
            return LlmFailure("this client's key may not discover models", Code.FORBIDDEN)
        return refusal(access, frame.provider) if frame.provider else None

    def refuse(self, client: Client, frame: Query, failure: LlmFailure) -> None:
        """Answer a query that the client may not ask."""
        if client.peer is not None:
            self._fail(client.peer, frame.query, Refusal(failure.code, failure.message))

    def on_query(self, client: Client, frame: Query, now_s: float) -> None:
        """Answer a query that `knows` accepts; lists wait until the registry is known."""
        peer = client.peer
        if peer is None:
            raise AssertionError("a query comes on a connection")
        self._hub.count("queries")
        if frame.op in self._admin:
            try:
                self._admin[frame.op](peer, frame, now_s)
            except Refusal as refusal:
                self._fail(peer, frame.query, refusal)
        elif self._hub.is_settling:
            if len(self._held) < self._hub.spec.max_clients:
                self._held.append((peer, replace(frame, body=b"")))  # lists have no argument
                self.held_high_water = max(self.held_high_water, len(self._held))
            else:
                self._fail(peer, frame.query, Refusal(Code.OVERLOADED, "too many queries wait"))
        else:
            self._list(peer, frame)

    def unknown(self, client: Client, frame: Query) -> None:
        """Answer a query that nobody can answer."""
        if client.peer is not None:
            text = f"no query is called {frame.op!r}"
            self._fail(client.peer, frame.query, Refusal(Code.UNSUPPORTED, text))

    def settle(self) -> None:
        """Answer what waited for the registry."""
        held, self._held = self._held, []
        for peer, frame in held:
            self._list(peer, frame)

    def on_config(self, event: ConfigReplaced, now_s: float) -> None:
        """Take a configuration that a `reload`, or a `swap` to another one, has asked for."""
        peer, query = event.peer, event.query
        wanted = self._new_specs.pop(query, None) if query is not None else None
        if wanted is None or peer is None or query is None:
            self._reloading.replace(event, now_s, self._reloaded(peer, query))
            return
        name, python = wanted
        found = next((spec for spec in event.pools if spec.name == name), None)
        if found is None:
            text = f"that file has no [worker.{name}]"
            self._fail(peer, query, Refusal("UNKNOWN_POOL", text))
            return
        fresh = replace(found, python=python or found.python)
        try:
            self._swaps.start(name, now_s, self._swapped(peer, query), fresh)
        except Refusal as refusal:
            self._fail(peer, query, refusal)

    def _reloaded(
        self, peer: bytes | None, query: QueryId | None
    ) -> Callable[[ReloadReport], None]:
        """Return what answers a `reload` query when all is in force."""

        def answer(report: ReloadReport) -> None:
            self._hub.log("info", "reloaded", report.to_dict())
            if peer is None or query is None:
                return
            if report.failures:
                self._fail(peer, query, Refusal(RELOAD_FAILED, "\n".join(report.failures)))
            else:
                self._reply(peer, query, report.to_dict())

        return answer

    def rejected(self, peer: bytes, query: QueryId, reason: str) -> None:
        """Answer a query whose configuration is wrong; nothing has changed."""
        is_swap = self._new_specs.pop(query, None) is not None
        self._fail(peer, query, Refusal(SWAP_FAILED if is_swap else RELOAD_FAILED, reason))

    # --- lists ------------------------------------------------------------------------------

    def _list(self, peer: bytes, frame: Query) -> None:
        client = self._hub.clients.at(peer)
        access = client.access if client is not None else FULL
        try:
            self._reply(peer, frame.query, self._lists[frame.op](frame, access))
        except Refusal as refusal:
            self._fail(peer, frame.query, refusal)

    def _list_providers(self, frame: Query, access: AccessSpec) -> object:
        del frame
        return [
            {"id": claim.value.id, "name": claim.value.name}
            for key, claim in self._hub.registry.routes
            if access.allows(key)
        ]

    def _models(self, frame: Query, access: AccessSpec) -> object:
        del frame
        return [key for key, _ in self._hub.registry.routes if access.allows(key)]

    def _retry_policy(self, frame: Query, access: AccessSpec) -> object:
        del access  # the query names its route, which was judged before
        route = RouteName(frame.provider)
        claim = self._hub.registry.routes.get(route)
        if claim is None:
            failure = self._openings.down_failure(route)
            raise Refusal(failure.code, failure.message)
        return claim.value.policy_map

    def _configurable(self, frame: Query, access: AccessSpec) -> object:
        del frame, access
        return [claim.value for _, claim in self._hub.registry.directory]

    def _namespaces(self, frame: Query, access: AccessSpec) -> object:
        del frame, access
        return [key for key, _ in self._hub.registry.discovery]

    # --- administration ---------------------------------------------------------------------

    def _status(self, peer: bytes, frame: Query, now_s: float) -> None:
        del now_s
        self._hub.out.append(SendStatus(peer, frame.query))

    def _swap(self, peer: bytes, frame: Query, now_s: float) -> None:
        argument = _argument(frame)
        name = PoolName(_text(argument, "pool"))
        python, config = _text(argument, "python", ""), _text(argument, "config", "")
        if config:
            self._new_specs[frame.query] = (name, python)
            self._hub.out.append(LoadConfig(peer, frame.query, config))
            return
        pool = self._hub.pools.get(name)
        fresh = replace(pool.spec, python=python) if pool is not None and python else None
        self._swaps.start(name, now_s, self._swapped(peer, frame.query), fresh)

    def _swapped(self, peer: bytes, query: QueryId) -> Callable[[SwapReport], None]:
        """Return what answers a `swap` query when the last slot is exchanged."""

        def answer(report: SwapReport) -> None:
            if report.failure:
                self._fail(peer, query, Refusal(SWAP_FAILED, report.failure))
            else:
                self._reply(peer, query, report.to_dict())

        return answer

    def _stop(self, peer: bytes, frame: Query, now_s: float) -> None:
        drain = _argument(frame).get("drainS", self._hub.spec.drain_s)
        is_number = type(drain) in {int, float} and 0 <= cast("float", drain) <= _MAX_DRAIN_S
        if not is_number:
            raise Refusal(Code.INVALID_REQUEST, f"drainS: 0 to {_MAX_DRAIN_S:g} is required")
        self._reply(peer, frame.query, {"drainS": drain})
        self._stopping.begin(cast("float", drain), now_s)

    def _restart(self, peer: bytes, frame: Query, now_s: float) -> None:
        del now_s
        self._reply(peer, frame.query, None)
        self._stopping.restart()

    def _reload(self, peer: bytes, frame: Query, now_s: float) -> None:
        del now_s
        path = _text(_argument(frame), "config", "")
        self._hub.out.append(LoadConfig(peer, frame.query, path))

    def _drain(self, peer: bytes, frame: Query, now_s: float) -> None:
        """Take a pool out of service: its workers finish, nothing is started until a swap."""
        name = PoolName(_text(_argument(frame), "pool"))
        pool = self._hub.pools.get(name)
        if pool is None:
            raise Refusal("UNKNOWN_POOL", f"no pool {name!r} is configured")
        self._swaps.cancel(name, "its pool is drained", now_s)
        self._staffing.drain_pool(pool, now_s)
        self._reply(peer, frame.query, None)

    # --- answers ----------------------------------------------------------------------------

    def _reply(self, peer: bytes, query: QueryId, value: object) -> None:
        self._hub.out.append(SendToClient(peer, Reply(query, body=pack_body(value))))

    def _fail(self, peer: bytes, query: QueryId, refusal: Refusal) -> None:
        self._hub.count_refused(refusal.code)
        failure = LlmFailure(refusal.message, refusal.code).to_dict()
        self._hub.out.append(SendToClient(peer, Reply(query, failure)))


def _argument(frame: Query) -> Mapping[str, Any]:
    """Return the map in the body of a query; an empty body is an empty map.

    Raises:
        Refusal: `INVALID_REQUEST`.
    """
    try:
        value = read_argument(frame.body)
    except RemoteProtocolError as exc:
        raise Refusal(Code.INVALID_REQUEST, f"{frame.op}: {exc}") from exc
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Refusal(Code.INVALID_REQUEST, f"{frame.op}: the argument must be a map")
    return cast("dict[str, Any]", value)


def _text(argument: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = argument.get(key, default)
    if not isinstance(value, str):
        raise Refusal(Code.INVALID_REQUEST, f"{key}: a text is required")
    return value
