"""The broker as a process: started, started twice, killed, stopped, talked to by fools."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

import pytest
import zmq
from trunkline_broker.daemon import EXIT_FAILED, EXIT_RUNNING
from trunkline_broker.hints import read_hints
from trunkline_protocol.codec import DIRECTIONS, Direction

from tests.support.broker import (
    SCRIPTED,
    BrokerProcess,
    broker_in,
    run_directory,
    running_broker,
)
from tests.support.processes import cpu_s, has_its_ledger, is_alive, open_files, rss_bytes
from tests.support.raw_peer import RawClient
from tests.support.timing import SLOW, until

pytestmark = pytest.mark.integration
ONLY_BROKER = "[broker]\ndrain_s = 5\n"
FRAMES = 10_000
IDLE_WINDOW_S = 1.0


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    """Yield a running broker with one scripted worker."""
    with running_broker(SCRIPTED) as running:
        yield running


def _answers(broker: BrokerProcess) -> bool:
    with RawClient(broker.endpoint) as client:
        return client.hello().epoch > 0


def _load(broker: BrokerProcess) -> Mapping[str, object]:
    """Return what the worker has said of itself with its last heartbeat."""
    return broker.status()["pools"][0]["slots"][0]["load"]


def _idle_share(pid: int) -> float:
    """Return the processor share of a process over a window, all threads."""
    began_s, used_s = time.monotonic(), cpu_s(pid)
    time.sleep(IDLE_WINDOW_S)
    return (cpu_s(pid) - used_s) / (time.monotonic() - began_s)


# --- start and end --------------------------------------------------------------------------


def test_files_are_private(broker: BrokerProcess) -> None:
    """Directories 0700, sockets, lock, hints and output 0600."""
    broker.until_ready("scripted")
    files = [path for path in broker.run_dir.rglob("*") if path.name != "stderr"]
    directories = {broker.run_dir, *(path for path in files if path.is_dir())}
    assert {path.name for path in directories} == {"run", "workers", "attachments"}
    for path in directories:
        assert path.stat().st_mode & 0o777 == 0o700, path
    files = [path for path in files if path not in directories]
    assert {"control", "lane", "broker.lock", "alive.json"} <= {path.name for path in files}
    assert any(path.suffix == ".log" for path in files)
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600, path


def test_a_second_one_says_so_and_harms_nothing(broker: BrokerProcess) -> None:
    """Its own exit status, pid and endpoint of the first; an open connection goes on."""
    with RawClient(broker.endpoint) as client:
        client.hello()
        second = subprocess.run(  # noqa: S603  # our own program
            broker.command, env=broker.environ, capture_output=True, text=True, check=False
        )
        assert second.returncode == EXIT_RUNNING
        assert f"pid {broker.pid}" in second.stderr
        assert broker.endpoint in second.stderr
        assert client.status()["pid"] == broker.pid
    assert _answers(broker)


def test_the_leftovers_of_a_killed_one_are_taken_over(broker: BrokerProcess) -> None:
    """Sockets and lock are there, nobody is behind them; the worker lives on and is adopted."""
    before = broker.until_ready("scripted")
    (worker,) = broker.worker_pids()["scripted"]
    broker.kill()
    assert all(path.exists() for path in broker.paths.sockets)
    assert is_alive(worker)
    broker.start()
    after = broker.until_ready("scripted")
    assert broker.worker_pids() == {"scripted": [worker]}
    assert after["epoch"] > before["epoch"]
    assert (
        after["pools"][0]["slots"][0]["generation"] == before["pools"][0]["slots"][0]["generation"]
    )


def test_a_broken_hint_file_is_no_obstacle() -> None:
    """Half of it was written when the machine stopped."""
    with run_directory() as root, broker_in(root, ONLY_BROKER) as broker:
        broker.paths.hints.write_text('{"bootId": "x", "work')
        broker.start()
        assert _answers(broker)


def test_a_stop_leaves_no_process_and_no_socket(broker: BrokerProcess) -> None:
    """Exit status 0; lock and log files may stay."""
    broker.until_ready("scripted")
    workers = broker.worker_pids()["scripted"]
    assert broker.stop() == 0, broker.log_text()
    assert not [pid for pid in workers if is_alive(pid)]
    assert not any(path.exists() for path in broker.paths.sockets)
    assert read_hints(broker.paths.hints) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_and_a_closed_terminal_are_a_stop_too(number: signal.Signals) -> None:
    """As SIGTERM."""
    with running_broker(ONLY_BROKER) as broker:
        broker.signal(number)
        assert broker.wait() == 0, broker.log_text()
        assert not any(path.exists() for path in broker.paths.sockets)


def test_a_stop_during_the_start_leaves_no_process() -> None:
    """A worker that has not registered yet goes too."""
    with running_broker(SCRIPTED) as broker:
        (worker,) = broker.worker_pids()["scripted"]
        assert broker.stop() == 0, broker.log_text()
        assert not is_alive(worker)


def test_a_handover_touches_no_worker(broker: BrokerProcess) -> None:
    """SIGUSR2: exit 0 at once; the next broker adopts the worker."""
    broker.until_ready("scripted")
    (worker,) = broker.worker_pids()["scripted"]
    began_s = time.monotonic()
    broker.signal(signal.SIGUSR2)
    assert broker.wait() == 0
    assert time.monotonic() - began_s < 2 * SLOW
    assert is_alive(worker)
    broker.start()
    broker.until_ready("scripted")
    assert broker.worker_pids() == {"scripted": [worker]}


def test_a_wrong_configuration_starts_nothing() -> None:
    """Exit status 2, file, line and key; no directory is filled."""
    with run_directory() as root, broker_in(root, "[broker]\ndrain = 1\n") as broker:
        broker.launch()
        assert broker.wait() == 2
        assert f"{broker.config}, line 2: unknown key broker.drain" in broker.log_text()
        assert [path.name for path in broker.run_dir.iterdir()] == ["stderr"]


def test_a_run_directory_open_to_others_is_refused() -> None:
    """With what to do about it."""
    with run_directory() as root, broker_in(root, ONLY_BROKER) as broker:
        broker.run_dir.chmod(0o755)
        broker.launch()
        assert broker.wait() == EXIT_FAILED
        assert "chmod 700" in broker.log_text()


# --- what must end it -----------------------------------------------------------------------

_FAULT = """
import sys, threading, zmq
from trunkline_broker import config, daemon
{fault}
sys.exit(daemon.run(config.load()))
"""


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "zmq.proxy = lambda *_: None\nimport trunkline_broker.lane as lane\n"
            "lane.Lane.__init__.__defaults__ = (zmq.proxy,)",
            "lane_ended",
        ),
        (
            "def broken(*_): raise AssertionError('an invariant')\n"
            "daemon.Broker.next_deadline_s = broken",
            "an invariant",
        ),
    ],
)
def test_what_is_broken_inside_ends_the_process(fault: str, said: str) -> None:
    """A lane that ended, a core that broke: exit status 1, the reason in the log."""
    with run_directory() as root:
        command = [sys.executable, "-c", _FAULT.format(fault=fault)]
        environ = {"TRUNKLINE_CONFIG": str(root / "test.toml")}
        with broker_in(root, ONLY_BROKER, environ, command) as broker:
            broker.launch()
            assert broker.wait() == EXIT_FAILED
            assert said in broker.log_text()


# --- what must not --------------------------------------------------------------------------


def _nonsense(rng: random.Random, kinds: list[bytes], most_bytes: int) -> list[bytes]:
    """Return one multipart: random bytes, half of them behind a real kind."""
    parts = [rng.randbytes(rng.randrange(most_bytes)) for _ in range(rng.randrange(1, 5))]
    if rng.random() < 0.5:
        parts[0] = rng.choice(kinds)
    return parts


@pytest.mark.parametrize(
    ("name", "direction", "most_bytes"),
    [
        ("control", Direction.CLIENT_TO_BROKER, 400),
        ("workers/control", Direction.WORKER_TO_BROKER, 400),
        ("lane", Direction.CLIENT_TO_BROKER, 200),
        ("workers/lane", Direction.WORKER_TO_BROKER, 400),
    ],
)
def test_nonsense_on_any_socket_is_survived(
    name: str, direction: Direction, most_bytes: int
) -> None:
    """Ten thousand random multiparts: it answers, idles, and neither grows nor leaks."""
    rng = random.Random(name)  # noqa: S311  # repeatable, not secret
    kinds = sorted(DIRECTIONS[direction])
    with running_broker(ONLY_BROKER) as broker:
        until(lambda: has_its_ledger(broker.pid), 20)
        files, memory = open_files(broker.pid), rss_bytes(broker.pid)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        fool = context.socket(zmq.DEALER)
        fool.setsockopt(zmq.LINGER, int(5000 * SLOW))
        fool.setsockopt(zmq.SNDTIMEO, int(20_000 * SLOW))
        fool.connect(f"ipc://{broker.run_dir}/{name}")
        for _ in range(FRAMES):
            fool.send_multipart(_nonsense(rng, kinds, most_bytes))
            while fool.poll(0):
                fool.recv_multipart()
        # What has not been read of a connection that closes is lost: first the facts, then the end.
        if name.endswith("control"):
            until(lambda: sum(broker.status()["refused"].values()) > FRAMES // 2)
        if name == "lane":
            until(lambda: broker.status()["counters"].get("stray_lane_frames", 0) >= FRAMES)
        assert _answers(broker)
        fool.close()
        context.term()
        until(lambda: open_files(broker.pid) <= files + 1)
        assert _idle_share(broker.pid) < 0.02 * SLOW  # a loaded core costs a wake-up more
        assert rss_bytes(broker.pid) < memory + 16 * 2**20
        assert broker.child is not None
        assert broker.child.poll() is None


def test_a_log_that_can_not_be_written_stops_nothing() -> None:
    """Disk full: it answers, and says how many lines were lost."""
    with run_directory() as root, broker_in(root, ONLY_BROKER) as broker:
        (broker.run_dir / "stderr").symlink_to("/dev/full")
        broker.start()
        with RawClient(broker.endpoint) as client:
            client.hello()
            until(lambda: client.status()["counters"]["log.lost"] > 0)


def test_a_broker_that_was_stopped_kills_nobody(broker: BrokerProcess) -> None:
    """SIGSTOP for longer than a lease: the worker is the same afterwards."""
    broker.until_ready("scripted")
    workers = broker.worker_pids()
    broker.signal(signal.SIGSTOP)
    time.sleep(4)  # the fault itself: nothing can be waited for
    broker.signal(signal.SIGCONT)
    before = _load(broker)
    assert broker.worker_pids() == workers
    for _ in range(2):  # late ticks come within one heartbeat
        before = until(lambda seen=before: _load(broker) != seen and _load(broker))
    assert broker.worker_pids() == workers
    assert all(is_alive(pid) for pids in workers.values() for pid in pids)


# --- other processes ------------------------------------------------------------------------


def test_a_killed_worker_is_started_again(broker: BrokerProcess) -> None:
    """Its exit is known at once, and how it ended."""
    broker.until_ready("scripted")
    (worker,) = broker.worker_pids()["scripted"]
    os.kill(worker, signal.SIGKILL)

    def replaced() -> bool:
        pids = broker.worker_pids().get("scripted", [])
        return bool(pids) and pids != [worker]

    until(replaced, 10)
    status = broker.until_ready("scripted")
    slot = status["pools"][0]["slots"][0]
    assert "signal 9" in str(slot["lastExit"])
    assert slot["restarts"] == 1


_CLIENT = """
import sys
from tests.support.raw_peer import RawClient
client = RawClient(sys.argv[1])
client.hello()
print("greeted", flush=True)
sys.stdin.read()
"""


def test_a_killed_client_is_forgotten(broker: BrokerProcess) -> None:
    """Within a second of its death; a client that lives is not."""
    with RawClient(broker.endpoint) as here:
        here.hello()
        child = subprocess.Popen(  # noqa: S603  # the script above
            [sys.executable, "-c", _CLIENT, broker.endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        with child:
            assert child.stdout.readline() == b"greeted\n"
            assert {c["pid"] for c in here.status()["clients"]} == {child.pid, os.getpid()}
            child.kill()
        until(lambda: [c["pid"] for c in here.status()["clients"]] == [os.getpid()], 1)
