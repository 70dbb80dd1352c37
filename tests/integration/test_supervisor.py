"""The broker under systemd and as the first process of a container."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import broker_in, run_directory
from tests.support.processes import is_alive
from tests.support.raw_peer import RawClient
from tests.support.timing import SLOW, until

pytestmark = pytest.mark.integration


def heard(notify: socket.socket, wanted: str) -> str:
    """Receive until a message has the text; return that message."""
    notify.settimeout(15 * SLOW)
    while True:
        text = notify.recv(4096).decode()
        if wanted in text:
            return text


def beats(notify: socket.socket) -> Iterator[bytes]:
    """Receive until there is nothing in time."""
    try:
        while True:
            yield notify.recv(4096)
    except TimeoutError:
        return


def test_systemd_is_told_ready_alive_and_stopping() -> None:
    """And no worker can speak for the broker: the variables end with it."""
    with run_directory() as root, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(root / "notify"))
        environ = {"NOTIFY_SOCKET": str(root / "notify"), "WATCHDOG_USEC": "2000000"}
        with broker_in(root, environ=environ) as broker:
            broker.launch()
            assert f"MAINPID={broker.pid}" in heard(notify, "READY=1")
            for _ in range(3):
                heard(notify, "WATCHDOG=1")
            broker.until_ready("scripted")
            for pids in broker.worker_pids().values():
                for pid in pids:
                    assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
            broker.signal(signal.SIGTERM)
            heard(notify, "STOPPING=1")
            assert broker.wait() == 0


def test_a_broker_whose_loop_hangs_beats_no_more() -> None:
    """What the watchdog is for; a stopped process stands for a loop that is stuck."""
    with run_directory() as root, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(root / "notify"))
        environ = {"NOTIFY_SOCKET": str(root / "notify"), "WATCHDOG_USEC": "2000000"}
        with broker_in(root, environ=environ) as broker:
            broker.launch()
            heard(notify, "WATCHDOG=1")
            broker.signal(signal.SIGSTOP)
            notify.settimeout(2.0)
            assert len(list(beats(notify))) < 10  # what was sent before
            broker.signal(signal.SIGCONT)
            heard(notify, "WATCHDOG=1")


def test_workers_outlive_a_reload_as_the_unit_does_it() -> None:
    """SIGUSR2 to the main process alone, then a new main process: the same workers serve."""
    with run_directory() as root, broker_in(root) as broker:
        broker.start()
        broker.until_ready("scripted")
        workers = broker.worker_pids()
        broker.signal(signal.SIGUSR2)
        assert broker.wait() == 0
        broker.start()
        broker.until_ready("scripted")
        assert broker.worker_pids() == workers


def test_no_process_leaves_a_memory_image_when_it_crashes() -> None:
    """A core file of a worker would hold the keys of its provider."""
    with run_directory() as root, broker_in(root) as broker:
        broker.start()
        broker.until_ready("scripted")
        (pids,) = broker.worker_pids().values()
        for pid in (broker.pid, *pids):
            limits = Path(f"/proc/{pid}/limits").read_text()
            assert re.search(r"Max core file size +0 +0 ", limits)


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_the_entry_point_of_the_container_is_a_good_first_process() -> None:
    """As pid 1 of a namespace: it serves, restarts a worker, and a stop ends everything."""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:  # noqa: S603
        pytest.skip("no namespaces here")
    with run_directory() as root:
        config = root / "test.toml"
        command = [*unshare, "--kill-child", sys.executable, "-m", "trunkline_broker.cli.main"]
        environ = {"TRUNKLINE_CONFIG": str(config)}
        with broker_in(root, environ=environ, command=[*command, "up"]) as broker:
            broker.launch()
            with RawClient(broker.endpoint) as client:
                client.hello(20)
                until(lambda: client.status()["processes"], 20)
                document = client.status()
                assert document["pid"] == 1
                inside = document["processes"][0]["pid"]
            tree = descendants(broker.pid)
            assert len(tree) >= 2
            assert inside < 100  # of the namespace
            (first,) = (pid for pid in tree if _inner_pid(pid) == 1)
            os.kill(first, signal.SIGTERM)
            assert broker.wait() == 0
            until(lambda: not any(is_alive(pid) for pid in tree), 15)


def descendants(pid: int) -> list[int]:
    """Return the live processes below one."""
    found: list[int] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found


def _inner_pid(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"^NSpid:.*?(\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else 0
