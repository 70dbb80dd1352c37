"""A fault in a side service is that service's: counted, logged, answered, and the broker goes on.

Real faults where this machine has them: sockets that reset, files that are directories or pipes, a
broken ledger, a full disk, children that something else reaps. For the others a broker is started
with one function replaced by one that raises.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
import resource
import shutil
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trunkline

from tests.support.broker import SCRIPTED, BrokerProcess, broker_in, run_directory
from tests.support.raw_peer import RawClient
from tests.support.timing import SLOW, until

pytestmark = pytest.mark.integration
METRICS = '[broker]\nmetrics = "127.0.0.1:0"\nlog_calls = "all"\n'
CONFIG = METRICS + SCRIPTED

# A broker of which one function is replaced, before it starts.
DRIVER = """
import sys
from pathlib import Path
from trunkline_broker import config, daemon
def boom(*args, **kwargs):
    raise RuntimeError("an injected fault")
{patch}
sys.exit(daemon.run(config.load(Path(sys.argv[1]))))
"""


def call_works(broker: BrokerProcess) -> None:
    """Make a call from its beginning to its end."""

    async def make() -> None:
        async with trunkline.connect(broker.endpoint) as llm:
            messages: Any = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
            done = await llm.generate(provider="scripted", model="scripted", messages=messages)
            assert done.finish.kind == "stop", done

    asyncio.run(asyncio.wait_for(make(), 30 * SLOW))


def assert_alive(broker: BrokerProcess) -> None:
    assert broker.child is not None
    assert broker.child.poll() is None, broker.log_text()[-3000:]
    call_works(broker)
    assert broker.child.poll() is None, broker.log_text()[-3000:]


def page_address(broker: BrokerProcess) -> tuple[str, int]:
    parts = urlsplit(str(broker.status()["measures"]["metrics"]))
    return str(parts.hostname), int(parts.port or 0)


def get(address: tuple[str, int], path: str, **headers: str) -> int:
    connection = http.client.HTTPConnection(*address, timeout=10 * SLOW)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("service", "patch", "fault"),
    [
        ("status", "daemon.usage = boom", "status"),
        (
            "metrics",
            "from trunkline_broker.measured import metrics as m; m._of_pools = boom",
            "page",
        ),
        (
            "metrics",
            "from trunkline_broker.measured.tallies import Tallies as T; T.on_attempt = boom",
            "",
        ),
        (
            "ledger",
            "from trunkline_broker.measured.ledger_writer import LedgerWriter as L; L.put = boom",
            "",
        ),
        (
            "ledger",
            "from trunkline_broker.measured.ledger import Ledger as L; L.prune = boom",
            "",
        ),
        ("log", "from trunkline_broker.measured import measures as m; m.attempt_fields = boom", ""),
        ("log", "from trunkline_broker import telemetry as t; t._shown = boom", ""),
        ("hints", "from trunkline_broker import processes as p; p.write_hints = boom", ""),
        ("output", "from trunkline_broker import outputs as o; o.keep_below = boom", ""),
        ("keys", "from trunkline_broker import processes as p; p.revealed = boom", ""),
        ("systemd", "from trunkline_broker.supervisor import Supervisor as S; S.ready = boom", ""),
        ("configuration", "daemon.advice = boom", ""),
        (
            "configuration",
            "from trunkline_broker import config_reader as c; c.load = boom",
            "reload",
        ),
        (
            "attachments",
            "from trunkline_broker.attachment_store import AttachmentStore as A; A._scan = boom",
            "",
        ),
        ("reaping", "from trunkline_broker import processes as p; p._reap = boom", "kill"),
        ("loop", "daemon.Daemon.open_metrics = fail_later", ""),
    ],
)
def test_a_fault_in_a_side_service_ends_nothing(service: str, patch: str, fault: str) -> None:
    """The counter names the service, the log has a line, and calls work as before."""
    later = (
        "async def fail_later(self):\n"
        "    f = self._loop.create_future(); f.set_exception(RuntimeError('left by a library'))\n"
    )
    with run_directory() as root, broker_in(root, CONFIG) as broker:
        broker.command = [
            sys.executable,
            "-c",
            DRIVER.format(patch=later + patch),
            str(broker.config),
        ]
        broker.environ["PYTHONWARNINGS"] = "ignore"
        broker.start()
        with RawClient(broker.endpoint) as client:
            client.hello()
            if fault == "status":
                with pytest.raises(AssertionError, match="status document cannot be made"):
                    client.status()
            elif fault == "reload":
                with pytest.raises(AssertionError, match="injected fault"):
                    client.query("reload", {})
        if fault == "kill":
            (worker,) = broker.worker_pids()["scripted"]
            os.kill(worker, signal.SIGKILL)
            until(lambda: broker.worker_pids().get("scripted", [worker]) != [worker], 20)
        if fault == "page":
            assert get(page_address(broker), "/metrics") == 500
            assert get(page_address(broker), "/healthz") == 200
        assert_alive(broker)
        if fault == "status":
            until(lambda: "service=status" in broker.log_text(), 10)
            return
        name = f"service_failed.{service}"
        counted = until(lambda: broker.status()["counters"].get(name), 20, broker.log_text())
        assert counted >= 1
        assert broker.status()["services"][service]["errors"] >= 1
        assert name.replace(".", " ").split()[0] in broker.log_text()
        assert broker.stop() == 0


def test_a_broker_that_gets_no_thread_any_more_goes_on() -> None:
    """No memory or no place for one: reading fails with a text; storing had its thread before."""
    patch = (
        "import threading\n"
        "ready = daemon.Daemon._say_ready\n"
        "def then(self, count):\n"
        "    ready(self, count)\n"
        "    threading.Thread.start = boom\n"
        "daemon.Daemon._say_ready = then\n"
    )
    picture = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes([0, 0, 0, 1, 0, 0, 0, 1, 8, 2, 0, 0, 0])
    with run_directory() as root, broker_in(root, CONFIG) as broker:
        driver = DRIVER.format(patch=patch)
        broker.command = [sys.executable, "-c", driver, str(broker.config)]
        broker.start()
        broker.until_ready("scripted")
        for _ in range(2):
            with RawClient(broker.endpoint) as client:
                client.hello()
                with pytest.raises(AssertionError, match="ulimit -u"):
                    client.query("reload", {})
        assert get(page_address(broker), "/metrics") in {200, 500}
        with RawClient(broker.endpoint) as client:
            client.hello()
            name = f"sha256:{hashlib.sha256(picture).hexdigest()}"
            part = {"attachment": name, "mediaType": "image/png", "bytes": len(picture)}
            stored = client.query("putAttachment", {**part, "offset": 0, "data": picture})
            assert stored == {"next": len(picture), "stored": True}
        (worker,) = broker.worker_pids()["scripted"]
        os.kill(worker, signal.SIGKILL)
        until(lambda: broker.worker_pids().get("scripted", [worker]) != [worker], 20)
        assert_alive(broker)
        assert broker.stop() == 0, broker.log_text()[-3000:]


def test_no_request_to_the_metrics_page_ends_the_broker() -> None:
    """Odd headers, half requests, resets, pipelining, connections that say nothing."""
    with run_directory() as root, broker_in(root, CONFIG) as broker:
        broker.start()
        broker.until_ready("scripted")
        address = page_address(broker)
        for accept in (
            "text/plain; version=a",
            ";;;=",
            "a" * 7000,
            "application/openmetrics-text;version=\xff",
        ):
            assert get(address, "/metrics", Accept=accept) == 200
        kept = []
        for at in range(200):
            each = socket.create_connection(address)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.sendall((b"GET /metrics HTTP/1.1\r\nAccept: x\r\n\r\n" * 3)[: at % 120])
            if at % 3 == 0:
                kept.append(each)
            else:
                time.sleep(0.001 * (at % 5))
                each.close()
        assert get(address, "/healthz") == 200
        assert get(address, "/metrics") == 200
        for each in kept:
            each.close()
        assert_alive(broker)
        assert "service_failed.metrics" not in broker.status()["counters"]
        assert broker.stop() == 0


@pytest.mark.parametrize("kind", ["directory", "fifo", "junk", "link to nowhere"])
@pytest.mark.parametrize(
    "name",
    [
        "alive.json",
        "alive.new",
        "broker.lock",
        "usage.sqlite",
        "control",
        "workers/lane",
        "attachments/lock",
    ],
)
def test_junk_in_a_file_of_the_run_directory_stops_no_start(name: str, kind: str) -> None:
    """A broker starts over it and serves."""
    with run_directory() as root, broker_in(root, SCRIPTED) as broker:
        path = broker.run_dir / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if kind == "directory":
            path.mkdir()
            (path / "x").write_text("x")
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "junk":
            path.write_bytes(b'{"bootId": 5, "\xff' + os.urandom(5000))
        else:
            path.symlink_to(broker.run_dir / "nowhere" / "x")
        broker.start()
        broker.until_ready("scripted")
        assert_alive(broker)
        assert broker.stop() == 0, broker.log_text()


def test_a_full_disk_ends_nothing() -> None:
    """No file of the broker grows beyond two kilobytes, and the hints have no place at all."""
    with run_directory() as root, broker_in(root, CONFIG) as broker:
        broker.start()
        broker.until_ready("scripted")
        (broker.run_dir / "alive.new").mkdir()
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))
        (worker,) = broker.worker_pids()["scripted"]
        os.kill(worker, signal.SIGKILL)
        until(lambda: broker.worker_pids().get("scripted", [worker]) != [worker], 20)
        broker.until_ready("scripted")
        for _ in range(10):
            assert_alive(broker)
        counters = broker.status()["counters"]
        assert counters["hints.lost"] >= 1
        assert counters["log.lost"] >= 1


def test_a_broken_ledger_ends_nothing() -> None:
    with run_directory() as root, broker_in(root, CONFIG) as broker:
        broker.start()
        broker.until_ready("scripted")
        call_works(broker)
        until(lambda: broker.status()["measures"]["ledger"]["written"], 20)
        for path in broker.run_dir.glob("usage.sqlite*"):
            with path.open("r+b") as file:
                file.truncate(0)
                file.write(os.urandom(20_000))
        assert_alive(broker)
        until(lambda: broker.status()["measures"]["ledger"]["trouble"], 30)
        assert_alive(broker)


def test_a_broker_whose_run_directory_was_removed_ends() -> None:
    """It is no ghost beside the next one, whose sockets it leaves alone; the worker is adopted."""
    with run_directory() as root, broker_in(root, SCRIPTED) as broker:
        broker.start()
        broker.until_ready("scripted")
        ghost = broker.child
        assert ghost is not None
        broker.run_dir.rename(root / "gone")
        broker.run_dir.mkdir(mode=0o700)
        broker.start()
        assert ghost.wait(30 * SLOW) == 1
        assert "run_directory_lost" in (root / "gone" / "stderr").read_text()
        broker.until_ready("scripted")
        assert_alive(broker)
        assert broker.stop() == 0


def test_a_removed_socket_file_is_named_in_the_status() -> None:
    """Nothing new can connect there, so the operator is told what to do; what runs goes on."""
    with run_directory() as root, broker_in(root, SCRIPTED) as broker:
        broker.start()
        broker.until_ready("scripted")
        shutil.rmtree(broker.run_dir / "workers")

        def said() -> str:
            return broker.status()["services"].get("sockets", {}).get("last", "")

        text = until(said, 20.0, "the status names no socket file")
        assert "workers" in text
        assert "trunkline restart" in text
        assert_alive(broker)


INHERITED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGUSR2, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os._exit(7)  # a child that is not the broker's own, and a zombie of it
os.execv(sys.executable, [sys.executable, "-m", "trunkline_broker", "--config", sys.argv[1]])
"""


def test_signals_that_a_broker_inherits_change_nothing() -> None:
    """Ignored SIGCHLD and SIGTERM, everything blocked, a foreign child: workers die and come."""
    with run_directory() as root, broker_in(root, SCRIPTED) as broker:
        broker.command = [sys.executable, "-c", INHERITED, str(broker.config)]
        broker.start()
        broker.until_ready("scripted")
        (worker,) = broker.worker_pids()["scripted"]
        blocked = [
            line.split()[1]
            for line in Path(f"/proc/{worker}/status").read_text().splitlines()
            if line.startswith("SigBlk")
        ]
        assert int(blocked[0], 16) == 0
        os.kill(worker, signal.SIGKILL)
        until(lambda: broker.worker_pids().get("scripted", [worker]) != [worker], 20)
        document = broker.until_ready("scripted")
        assert document["pools"][0]["slots"][0]["lastExit"].startswith("signal 9")
        assert_alive(broker)
        assert broker.stop() == 0  # by SIGTERM


def test_an_ignored_hangup_stays_ignored_as_nohup_wishes() -> None:
    code = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "python = sys.executable;"
        "os.execv(python, [python, '-m', 'trunkline_broker', '--config', sys.argv[1]])"
    )
    with run_directory() as root, broker_in(root, SCRIPTED) as broker:
        broker.command = [sys.executable, "-c", code, str(broker.config)]
        broker.start()
        broker.signal(signal.SIGHUP)
        assert_alive(broker)
        assert broker.stop() == 0


REAPED = """
import os, sys, threading, time
from pathlib import Path
from trunkline_broker import config, daemon
def reap():
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.001)
threading.Thread(target=reap, daemon=True).start()
sys.exit(daemon.run(config.load(Path(sys.argv[1]))))
"""


def test_a_worker_that_something_else_has_reaped_is_replaced() -> None:
    """A library that waits for every child takes its status; its end is known all the same."""
    with run_directory() as root, broker_in(root, SCRIPTED) as broker:
        broker.command = [sys.executable, "-c", REAPED, str(broker.config)]
        broker.start()
        broker.until_ready("scripted")
        (worker,) = broker.worker_pids()["scripted"]
        os.kill(worker, signal.SIGKILL)
        until(lambda: broker.worker_pids().get("scripted", [worker]) != [worker], 20)
        broker.until_ready("scripted")
        assert_alive(broker)
