"""How clients come and go: `HELLO`, `BYE`, closed connections, ended processes (SPEC 2.1).

It decides when a client is dead; what becomes of its calls and queries is decided elsewhere.
"""

from __future__ import annotations

from typing import Final

from trunkline_protocol import limits
from trunkline_protocol.frames import Hello, Refused, Stopping, Welcome
from trunkline_protocol.ids import ClientId
from trunkline_protocol.version import __version__

from trunkline_broker.core.access import access_of
from trunkline_broker.core.calls import CallState
from trunkline_broker.core.clients import ALIVE_GRACE_S, Client
from trunkline_broker.core.effects import SendToClient, UnwatchClient, WatchClient
from trunkline_broker.core.endings import Endings
from trunkline_broker.core.forwarding import Forwarding
from trunkline_broker.core.hub import Hub, Timer
from trunkline_broker.core.questions import Questions

_COMMAND: Final = "trunkline "  # what `trunkline status` and the like call themselves
_COMMANDS: Final = 4  # of them get in where nobody else does


class Greeting:
    """Takes note of clients."""

    def __init__(
        self, hub: Hub, endings: Endings, forwarding: Forwarding, questions: Questions
    ) -> None:
        self._hub = hub
        self._endings = endings
        self._forwarding = forwarding
        self._questions = questions

    def on_hello(
        self, peer: bytes, frame: Hello, pid: int | None, now_s: float, user: str | None = None
    ) -> None:
        """Bind a client to its connection and tell it the rest, or refuse it."""
        hub = self._hub
        refused = self._refusal(frame, user)
        if refused is not None:
            hub.count_refused(refused.code)
            hub.out.append(SendToClient(peer, refused))
            return
        known = hub.clients.get(frame.client)
        is_new_link = known is None or known.peer != peer
        old_pid = known.pid if known is not None else None
        displaced = hub.clients.at(peer)
        client = hub.clients.greet(frame.client, peer, pid, frame.name)
        client.user, client.is_greeted = user, True
        client.access = access_of(hub.access, user)
        hub.deadlines.clear((Timer.CLIENT, client.id))
        self._watch(old_pid, client)
        if displaced is not None and displaced is not client:
            # No client changes its id. One that says HELLO with ever new ones would else fill the
            # table for everybody: seen, 4,096 of them in 0.1 s.
            self._dead(displaced, "its connection speaks for another one")
        hub.to_client(
            client,
            Welcome(
                protocol=(limits.PROTOCOL_MAJOR, limits.PROTOCOL_MINOR),
                epoch=hub.epoch,
                lane=hub.spec.lane if user is None else hub.spec.remote_lane,
                version=__version__,
                max_open_calls=hub.spec.max_calls_per_client,
                orphan_timeout_ms=round(hub.spec.orphan_timeout_s * 1000),
            ),
        )
        if hub.is_draining:
            hub.to_client(client, Stopping("the broker is stopping"))
        if is_new_link:
            self._say_again(client, now_s)

    def on_bye(self, client: Client) -> None:
        """A client leaves by itself."""
        self._dead(client, "bye")

    def on_disconnected(self, peer: bytes, now_s: float, *, is_stuck: bool = False) -> None:
        """A connection closed; its client is dead only if its process is gone too.

        One that does not read is a client that stands still: its process tells when it is dead.
        """
        client = self._hub.clients.disconnect(peer)
        if client is None:
            return
        if is_stuck and client.pid is not None and not client.is_pid_gone:
            self._hub.deadlines.set((Timer.CLIENT, client.id), now_s + ALIVE_GRACE_S)
        else:
            self._judge(client, now_s)

    def on_exited(self, pid: int, now_s: float) -> None:
        """A process is gone; its clients are dead once their connections are closed too."""
        for client in self._hub.clients.exited(pid):
            self._judge(client, now_s)

    def on_client_due(self, client_id: ClientId) -> None:
        """A client stayed without a connection or a process for too long."""
        client = self._hub.clients.get(client_id)
        if client is None:
            raise AssertionError("a client that goes clears its deadline")
        self._dead(client, "gone")

    def _refusal(self, frame: Hello, user: str | None) -> Refused | None:
        known = self._hub.clients.get(frame.client)
        if known is not None and known.is_greeted and known.user != user:
            # It would get the streams of the other one; a client has one key for its life.
            self._hub.count("client_id_of_another_key")
            return Refused("FORBIDDEN", "this client id belongs to a client with another key")
        spec = self._hub.spec
        if frame.protocol[0] != limits.PROTOCOL_MAJOR:
            ours = f"{limits.PROTOCOL_MAJOR}.{limits.PROTOCOL_MINOR}"
            theirs = f"{frame.protocol[0]}.{frame.protocol[1]}"
            text = f"the broker speaks protocol {ours}, the client {theirs}"
            return Refused("VERSION", text)
        is_known = known is not None
        # Whoever looks what is wrong must get in.
        places = spec.max_clients + _COMMANDS * frame.name.startswith(_COMMAND)
        if not is_known and len(self._hub.clients) >= places:
            bound = f"{spec.max_clients} clients are here, the most that {spec.clients_bound}"
            return Refused("OVERLOADED", f"{bound} allows; close some, or raise it")
        return None

    def _watch(self, old_pid: int | None, client: Client) -> None:
        hub = self._hub
        if client.pid is not None and client.pid != old_pid:
            hub.out.append(WatchClient(client.pid))
        if old_pid is not None and old_pid != client.pid and not hub.clients.is_watched(old_pid):
            hub.out.append(UnwatchClient(old_pid))

    def _say_again(self, client: Client, now_s: float) -> None:
        """Repeat what may have got lost with the older connection and nobody would ask for."""
        for call in list(client.calls.values()):
            if call.state is CallState.BACKOFF:
                self._endings.say_retry(call, client, now_s)
            else:
                self._endings.say_ended(call, now_s)

    def _judge(self, client: Client, now_s: float) -> None:
        grace_s = client.grace_s(self._hub.spec.orphan_timeout_s)
        if grace_s is None:
            return
        if grace_s > 0:
            self._hub.deadlines.set((Timer.CLIENT, client.id), now_s + grace_s)
        else:
            self._dead(client, "process gone")

    def _dead(self, client: Client, why: str) -> None:
        hub = self._hub
        hub.count("clients_gone")
        self._endings.client_is_gone(client)
        self._questions.client_is_gone(client)
        pid = client.pid
        hub.clients.remove(client)
        hub.deadlines.clear((Timer.CLIENT, client.id))
        if pid is not None and not hub.clients.is_watched(pid):
            hub.out.append(UnwatchClient(pid))
        hub.log("debug", "client_gone", {"client": client.id.hex()[:8], "why": why})
