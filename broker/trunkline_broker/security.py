"""Who may connect over TCP: CURVE, ZAP, an allow-list of public keys; nothing here on ipc.

ZAP is answered per ZeroMQ context, so control and the chunk lane have a handler each, over one
allow-list (measured: with a handler beside control alone, an unlisted key read the lane). ZeroMQ
copies a socket's options when it binds: a socket first binds its ipc endpoint without CURVE and
then, with it, TCP; every endpoint keeps what it was bound with (measured).
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import zmq
from trunkline_protocol.curve import MAX_KEY_FILE_BYTES, is_key
from trunkline_protocol.secret import SecretStr
from zmq.utils import z85

from trunkline_broker.regular_files import read_regular
from trunkline_broker.sockets import Context, Socket, descriptor, has_input

Kind = Literal["clients", "workers"]
Tell = Callable[[str, Mapping[str, object]], None]
"""Takes the name of what happened and its fields, for counter and log."""

USER_ID: Final = "User-Id"  # of ZAP, as a property of each frame
PUBLIC_SUFFIX: Final = ".pub"
HANDSHAKE_FAILURES: Final = int(
    zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
)
ACCEPTED: Final = int(zmq.Event.ACCEPTED)
HANDSHAKE_MS: Final = 5_000  # then ZeroMQ closes a connection that says nothing
_ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
_ZAP_VERSION: Final = b"1.0"
_ZAP_PARTS: Final = 7  # version, request, domain, address, routing id, mechanism, key
_KEY_BYTES: Final = 32
_REREAD_S: Final = 1.0
_MAX_LISTED: Final = 10_000
_SAY_EVERY_S: Final = 1.0
_HANDSHAKE_BYTES: Final = 1024  # INITIATE has 257 and metadata; the limit of messages holds for it
_HEARTBEAT_MS: Final = 3_000
_TIMEOUT_MS: Final = 10_000
_DRAIN: Final = 64
_EVENT: Final = struct.Struct("=Hi")


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """The broker's own pair."""

    public: str
    secret: SecretStr


class AllowList:
    """The public keys in a directory: `clients/NAME.pub` and `workers/NAME.pub`.

    Read again at most once a second when somebody asks, so that adding and removing files is all
    there is to do.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._read_s = -_REREAD_S
        self._names: dict[tuple[Kind, str], str] = {}
        self.version = 0  # grows with every change

    def name_of(self, kind: Kind, key: str) -> str | None:
        """Return the name of a key, if it is in the list of this kind."""
        self.refresh()
        return self._names.get((kind, key))

    def refresh(self) -> None:
        """Read the directories again, if that was more than a second ago."""
        now_s = self._clock()
        if now_s - self._read_s < _REREAD_S:
            return
        self._read_s = now_s
        names: dict[tuple[Kind, str], str] = {}
        kinds: tuple[Kind, ...] = ("clients", "workers")
        for kind in kinds:
            for name, key in listed(self._directory / kind):
                names[kind, key] = name
        if names != self._names:
            self._names = names
            self.version += 1


def listed(directory: Path) -> list[tuple[str, str]]:
    """Return names and public keys in a directory; files that hold no key are passed over."""
    found: list[tuple[str, str]] = []
    try:
        paths = sorted(directory.glob(f"*{PUBLIC_SUFFIX}"))[:_MAX_LISTED]
    except OSError:
        return []
    for path in paths:
        try:
            key = read_regular(path, MAX_KEY_FILE_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):  # removed meanwhile, or no key file
            continue
        if is_key(key):
            found.append((path.name.removesuffix(PUBLIC_SUFFIX), key))
    return found


@dataclass(frozen=True, slots=True)
class Guard:
    """What a CURVE socket of this broker needs."""

    keys: ServerKeys
    allowed: AllowList
    tell: Tell

    def admits(self, kind: Kind, user: str) -> bool:
        """Tell whether the key that a connection was made with is in the list still."""
        name, _, key = user.partition(":")
        return self.allowed.name_of(kind, key) == name


@dataclass(frozen=True, slots=True)
class TcpListen:
    """A TCP endpoint of one of the four sockets.

    Attributes:
        address: `HOST:PORT`; port 0: any.
        kind: whose keys are accepted.
        guard: `None`: no keys, which the configuration allows on loopback only.
    """

    address: str
    kind: Kind
    guard: Guard | None

    def bind(self, socket: Socket) -> str:
        """Bind, in addition to what the socket is bound to; return the endpoint.

        Raises:
            zmq.ZMQError: the address can't be bound.
        """
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _TIMEOUT_MS)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.IPV6, int(self.address.startswith("[")))
        if self.guard is not None:
            limit = int(socket.getsockopt(zmq.MAXMSGSIZE))
            if 0 <= limit < _HANDSHAKE_BYTES:
                socket.setsockopt(zmq.MAXMSGSIZE, _HANDSHAKE_BYTES)
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            secret = self.guard.keys.secret.get_secret_value()
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret.encode())
            socket.setsockopt(zmq.ZAP_DOMAIN, self.kind.encode())
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.bind(f"tcp://{self.address}")
        bound = socket.getsockopt(zmq.LAST_ENDPOINT)
        return bytes(bound).rstrip(b"\0").decode() if isinstance(bound, bytes) else ""


class ZapHandler:
    """Answers the handshakes of one context, on the running loop."""

    def __init__(self, context: Context, guard: Guard) -> None:
        self._guard = guard
        self._loop = asyncio.get_running_loop()
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(_ZAP_ENDPOINT)
        self._fd = descriptor(self._socket)
        self._loop.add_reader(self._fd, self._on_readable)
        self._loop.call_soon(self._on_readable)

    def close(self) -> None:
        """Leave the loop; who is still shaking hands is refused."""
        self._loop.remove_reader(self._fd)
        self._socket.close(0)

    def _on_readable(self) -> None:
        for _ in range(_DRAIN):
            if self._socket.closed or not has_input(self._socket):
                return
            self._socket.send_multipart(self._answer(self._socket.recv_multipart(zmq.DONTWAIT)))
        self._loop.call_soon(self._on_readable)

    def _answer(self, parts: list[bytes]) -> list[bytes]:
        request = parts[1] if len(parts) > 1 else b""
        user = self._user(parts)
        status = (b"200", b"OK") if user else (b"400", b"not in the allow-list")
        return [_ZAP_VERSION, request, *status, user.encode(), b""]

    def _user(self, parts: list[bytes]) -> str:
        """Return the user id of who may enter; empty: nobody."""
        if len(parts) != _ZAP_PARTS or parts[0] != _ZAP_VERSION or parts[5] != b"CURVE":
            return ""
        domain, key_bytes = parts[2], parts[6]
        if len(key_bytes) != _KEY_BYTES or domain not in {b"clients", b"workers"}:
            return ""
        kind: Kind = "clients" if domain == b"clients" else "workers"
        key = z85.encode(key_bytes).decode()
        name = self._guard.allowed.name_of(kind, key)
        if name is None:
            host = parts[3].decode("ascii", "replace")
            self._guard.tell("key_refused", {"kind": kind, "public": key, "host": host})
            return ""
        return f"{name}:{key}"


class HandshakeWatch:
    """Tells of connections and of handshakes that fail, on a socket that has no other monitor.

    Args:
        context: of the socket.
        socket: is watched.
        name: of the socket, for people.
        tell: takes failed handshakes; `None`: nobody shakes hands here.
        accepted: takes the descriptor of each new connection.
    """

    def __init__(
        self,
        context: Context,
        socket: Socket,
        name: str,
        tell: Tell | None,
        accepted: Callable[[int], None],
    ) -> None:
        self._name = name
        self._tell = tell
        self._accepted = accepted
        self._loop = asyncio.get_running_loop()
        address = f"inproc://handshakes-{descriptor(socket)}"
        socket.monitor(address, ACCEPTED | (0 if tell is None else HANDSHAKE_FAILURES))
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.LINGER, 0)
        self._monitor.setsockopt(zmq.RCVHWM, 0)  # ZeroMQ's thread blocks on a full one
        self._monitor.connect(address)
        self._fd = descriptor(self._monitor)
        self._loop.add_reader(self._fd, self._on_readable)
        self._loop.call_soon(self._on_readable)

    def close(self) -> None:
        """Leave the loop."""
        self._loop.remove_reader(self._fd)
        self._monitor.close(0)

    def _on_readable(self) -> None:
        while not self._monitor.closed and has_input(self._monitor):
            event, value = _EVENT.unpack(self._monitor.recv_multipart(zmq.DONTWAIT)[0])
            if event == ACCEPTED:
                self._accepted(value)
            elif self._tell is not None:
                self._tell("handshake_failed", handshake_fields(self._name, event))


def handshake_fields(socket: str, event: int) -> dict[str, object]:
    """Return what a log line says of a handshake that failed."""
    if event == zmq.Event.HANDSHAKE_FAILED_AUTH:
        reason = "the key is not in the allow-list"
    elif event == zmq.Event.HANDSHAKE_FAILED_PROTOCOL:
        reason = "no key, another broker's key, or no ZeroMQ peer"
    else:
        reason = "the peer closed the connection"
    return {"socket": socket, "reason": reason}


class Bell:
    """Counts everything and lets a line per second and kind through, with what it held back.

    Args:
        count: takes the name of a counter.
        log: takes level, event and fields.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        count: Callable[[str], None],
        log: Callable[[str, str, Mapping[str, object]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count = count
        self._log = log
        self._clock = clock
        self._next_s: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def ring(self, event: str, fields: Mapping[str, object]) -> None:
        """Take note of something that went wrong at the door."""
        self._count(f"security.{event}")
        kind = f"{event} {fields.get('socket') or fields.get('kind')}"
        now_s = self._clock()
        if now_s < self._next_s.get(kind, now_s):
            self._held[kind] = self._held.get(kind, 0) + 1
            return
        self._next_s[kind] = now_s + _SAY_EVERY_S
        more = self._held.pop(kind, 0)
        self._log("warning", event, {**fields, "more": more} if more else fields)
