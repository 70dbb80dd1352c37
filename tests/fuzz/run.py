"""Sends hostile frames to the four sockets of a real broker and looks at what becomes of it.

Four attackers take turns in batches: a client on control (greeted, and not), anybody up the lane, a
worker on control (registered, and not), a worker down the lane. After each round the broker must
answer, have counted every frame that can't be decoded, and serve an honest client; at the end it
must idle and not have grown.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import zmq
from trunkline_protocol import frames
from trunkline_protocol.codec import Direction, encode, pack_body
from trunkline_protocol.ids import CallId, ClientId, Epoch, Generation, PoolName, StreamKey
from trunkline_protocol.limits import PROTOCOL_MAJOR, PROTOCOL_MINOR

from tests.fuzz.corpus import Corpus
from tests.fuzz.mutate import Parts, all_seeds, hostile, lane_frame, seeds
from tests.support.broker import BrokerProcess
from tests.support.processes import rss_bytes
from tests.support.raw_peer import RawClient
from tests.support.timing import SLOW, until

BATCH: Final = 500
GROWTH_BYTES: Final = 64 * 2**20
IDLE_SHARE: Final = 0.1
_VERSION: Final = (PROTOCOL_MAJOR, PROTOCOL_MINOR)
_WAIT_S: Final = 20.0


@dataclass(slots=True)
class Attack:
    """The state of one run."""

    broker: BrokerProcess
    rng: random.Random
    corpus: Corpus
    sent: Counter[str] = field(default_factory=Counter[str])
    expected: int = 0
    served: int = 0
    _sockets: list[zmq.Socket[bytes]] = field(default_factory=list[zmq.Socket[bytes]])
    _victim: ClientId = field(default_factory=lambda: ClientId(os.urandom(16)))

    def run(self, frames_wanted: int) -> dict[str, Any]:
        """Send that many frames and return what was seen; raises what goes wrong."""
        with zmq.Context() as context, RawClient(self.broker.endpoint) as watcher:
            watcher.hello()
            pid, memory = self.broker.pid, 0
            refused = _refused(watcher)
            attackers = self._attackers(context)
            try:
                while sum(self.sent.values()) < frames_wanted:
                    for name, attack in attackers.items():
                        attack()
                        self.sent[name] += BATCH
                    self._check(watcher, refused)
                    memory = memory or rss_bytes(pid)  # once everything was there
            finally:
                for socket in self._sockets:
                    socket.close(0)
            growth = rss_bytes(pid) - memory
            assert growth < GROWTH_BYTES, f"the broker grew by {growth} bytes"
            share = idle_share(pid)
            assert share < IDLE_SHARE, f"the broker spins: {share:.0%} of a CPU while idle"
            counted = _refused(watcher) - refused
            return {
                "sent": dict(self.sent),
                "undecodable": self.expected,
                "refused": counted,
                "stray": watcher.status()["counters"].get("stray_lane_frames", 0),
                "honest calls": self.served,
                "growth KiB": growth // 1024,
                "idle": f"{share:.1%}",
                "corpus": len(self.corpus.entries),
            }

    def _attackers(self, context: zmq.Context[zmq.Socket[bytes]]) -> dict[str, Any]:
        run = self.broker.run_dir

        def dealer(name: str, identity: bytes = b"") -> zmq.Socket[bytes]:
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.SNDTIMEO, int(_WAIT_S * SLOW * 1000))
            socket.setsockopt(zmq.LINGER, int(_WAIT_S * SLOW * 1000))
            if identity:
                socket.setsockopt(zmq.ROUTING_ID, identity)
            socket.connect(f"ipc://{run}/{name}")
            self._sockets.append(socket)
            return socket

        client, worker = dealer("control"), dealer("workers/control")
        up, down = dealer("lane", os.urandom(16)), dealer("workers/lane")
        others = all_seeds()

        def control(socket: zmq.Socket[bytes], way: Direction, greeting: frames.Frame) -> None:
            mine = seeds(way)
            if self.rng.random() < 0.8:
                socket.send_multipart(encode(greeting))
            for _ in range(BATCH):
                parts = hostile(self.rng, mine, others)
                said = self.corpus.add(parts, way)
                self.expected += ": " in said
                socket.send_multipart(parts)
                _discard(socket)

        def lane_up() -> None:
            for _ in range(BATCH):
                parts = [self.rng.randbytes(self.rng.randrange(200))] * self.rng.randrange(1, 4)
                up.send_multipart(parts)
                _discard(up)

        def lane_down() -> None:
            for _ in range(BATCH):
                to = self.rng.choice((self._victim, self.rng.randbytes(self.rng.randrange(20))))
                down.send_multipart([to, lane_frame(self.rng)])

        hello = frames.Hello(_VERSION, self._victim, os.getpid(), "fuzz")
        register = frames.Register(
            _VERSION, PoolName("fuzz"), 0, Generation(Epoch(0), 0), os.getpid(), role="serving"
        )
        return {
            "control": lambda: control(client, Direction.CLIENT_TO_BROKER, hello),
            "lane": lane_up,
            "workers/control": lambda: control(worker, Direction.WORKER_TO_BROKER, register),
            "workers/lane": lane_down,
        }

    def _check(self, watcher: RawClient, refused_before: int) -> None:
        assert self.broker.child is not None
        assert self.broker.child.poll() is None, self.broker.log_text()[-4000:]
        until(
            lambda: _refused(watcher) - refused_before >= self.expected,
            _WAIT_S,
            "not every refusal was counted",
        )
        self._serve_honest(watcher)

    def _serve_honest(self, watcher: RawClient) -> None:
        """Have a call accepted for somebody who does nothing wrong, and cancel it."""
        call, key = CallId(os.urandom(16)), StreamKey(os.urandom(8))
        body = pack_body({"provider": "scripted", "model": "echo", "messages": []})
        watcher.send(frames.Open(call, 0, key, "scripted", "echo", body=body))
        watcher.receive_kind(frames.Accepted, _WAIT_S)
        watcher.send(frames.Cancel(call, 0))
        self.served += 1


def idle_share(pid: int) -> float:
    """Return which part of a CPU a process uses in a second in which nobody wants anything."""
    before = _cpu_s(pid)
    time.sleep(1.0)  # what is measured is that nothing happens
    return _cpu_s(pid) - before


def replay(broker: BrokerProcess, entries: dict[tuple[str, str], Parts]) -> None:
    """Send the corpus, each side to its own socket, and have the broker answer afterwards."""
    names = {"CLIENT_TO_BROKER": "control", "WORKER_TO_BROKER": "workers/control"}
    with zmq.Context() as context:
        for way, name in names.items():
            with context.socket(zmq.DEALER) as socket:
                socket.setsockopt(zmq.LINGER, 1000)
                socket.connect(f"ipc://{broker.run_dir}/{name}")
                for (each, _), parts in entries.items():
                    if each == way:
                        socket.send_multipart(parts)
                        _discard(socket)
    with RawClient(broker.endpoint) as client:
        client.hello()
        client.status()


def _discard(socket: zmq.Socket[bytes]) -> None:
    try:
        while True:
            socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return


def _refused(watcher: RawClient) -> int:
    return sum(watcher.status()["refused"].values())


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
