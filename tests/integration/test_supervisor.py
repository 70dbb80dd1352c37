"""The broker under systemd, which is played by a socket and by signals."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import broker_in, run_directory
from tests.support.timing import SLOW

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
