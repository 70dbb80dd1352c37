"""TCP endpoints: who gets in, who does not, and that both sides say why within two seconds."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trunkline
import zmq
from trunkline_broker.key_files import add_peer, make_server, new_pair, remove_peer
from trunkline_protocol.curve import CurveKeys, keys_text

from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.timing import SLOW, until, until_answered

pytestmark = pytest.mark.integration
TOLD_S = 2.0
CONFIG = """\
[broker]
tcp_clients = "127.0.0.1:0"
tcp_clients_lane = "127.0.0.1:0"
tcp_workers = "127.0.0.1:0"
tcp_workers_lane = "127.0.0.1:0"
keys_dir = "keys"

[client.narrow]
providers = ["other"]

[client.chief]
admin = true

[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
"""
SOCKETS = {
    "control": "clients",
    "lane": "clients",
    "workersControl": "workers",
    "workersLane": "workers",
}
REFUSED = (
    zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
)


@dataclass(slots=True)
class Guarded:
    """A broker with four TCP endpoints, and keys of everybody."""

    broker: BrokerProcess
    root: Path
    keys: dict[str, CurveKeys]

    @property
    def keys_dir(self) -> Path:
        return self.root / "keys"

    def endpoints(self) -> dict[str, str]:
        return self.broker.status()["endpoints"]["tcp"]


@contextmanager
def guarded_broker(config: str = CONFIG) -> Iterator[Guarded]:
    with run_directory() as root:
        directory = root / "keys"
        make_server(directory)
        keys = {
            name: add_peer(directory, "workers" if name == "gpu" else "clients", name, root / name)
            for name in ("laptop", "narrow", "chief", "gpu")
        }
        with broker_in(root, config) as broker:
            broker.start()
            broker.until_ready("scripted")
            yield Guarded(broker, root, keys)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with guarded_broker() as found:
        yield found


def outcome(endpoint: str, keys: CurveKeys | None) -> str:
    """Shake hands as a bare DEALER; return `in`, or the event that says why not."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        if keys is not None:
            dealer.curve_publickey = keys.public.encode()
            dealer.curve_secretkey = keys.secret.get_secret_value().encode()
            dealer.curve_serverkey = keys.server.encode()
        monitor = dealer.get_monitor_socket(int(REFUSED | zmq.Event.HANDSHAKE_SUCCEEDED))
        try:
            dealer.connect(endpoint)
            assert monitor.poll(int(TOLD_S * SLOW * 1000)), "no outcome in time"
            packed = monitor.recv_multipart()[0]
        finally:
            dealer.disable_monitor()
            monitor.close(0)
        event = zmq.Event(int.from_bytes(packed[:2], sys.byteorder))
        return "in" if event == zmq.Event.HANDSHAKE_SUCCEEDED else str(event.name)


def unlisted(server: str) -> CurveKeys:
    return CurveKeys(*new_pair(), server)


# --- the four sockets -----------------------------------------------------------------------


@pytest.mark.parametrize("socket", SOCKETS)
def test_each_socket_admits_a_listed_key_of_its_kind_alone(guarded: Guarded, socket: str) -> None:
    endpoint, kind = guarded.endpoints()[socket], SOCKETS[socket]
    right, wrong = ("laptop", "gpu") if kind == "clients" else ("gpu", "laptop")
    server = guarded.keys["laptop"].server
    assert outcome(endpoint, guarded.keys[right]) == "in"
    assert outcome(endpoint, guarded.keys[wrong]) == "HANDSHAKE_FAILED_AUTH"
    assert outcome(endpoint, unlisted(server)) == "HANDSHAKE_FAILED_AUTH"
    other_broker = replace(guarded.keys[right], server=new_pair()[0])
    assert outcome(endpoint, other_broker) == "HANDSHAKE_FAILED_NO_DETAIL"
    no_key = outcome(endpoint, None)
    assert no_key in {"HANDSHAKE_FAILED_PROTOCOL", "HANDSHAKE_FAILED_NO_DETAIL"}


@pytest.mark.parametrize("socket", SOCKETS)
def test_the_broker_says_within_two_seconds_what_failed(guarded: Guarded, socket: str) -> None:
    """On each socket; a key that is not listed, and a handshake that is none."""
    endpoint, kind = guarded.endpoints()[socket], SOCKETS[socket]
    before = guarded.broker.status()["counters"]
    outcome(endpoint, unlisted(guarded.keys["laptop"].server))
    outcome(endpoint, replace(guarded.keys["laptop"], server=new_pair()[0]))

    def grew(name: str) -> bool:
        return guarded.broker.status()["counters"].get(name, 0) > before.get(name, 0)

    until(lambda: grew("security.key_refused"), TOLD_S)
    until(lambda: grew("security.handshake_failed"), TOLD_S)
    named = "control" if "ontrol" in socket else f"{kind} lane"
    lines = guarded.broker.log_text().splitlines()
    assert any("key_refused" in line and kind in line for line in lines)
    assert any("handshake_failed" in line and named in line for line in lines)


# --- clients --------------------------------------------------------------------------------


async def test_a_listed_client_streams_over_tcp(guarded: Guarded) -> None:
    """Control and lane, on the host of the one address that it was given."""
    endpoint = guarded.endpoints()["control"]
    async with trunkline.connect(endpoint, keys=guarded.keys["laptop"]) as llm:
        result = await llm.generate(provider="scripted", model="echo", messages="hello")
        assert result.message.content
        with pytest.raises(trunkline.LlmError) as caught:
            await llm.query("status", {})
        assert caught.value.code == "FORBIDDEN"


async def test_the_keys_come_from_the_environment_too(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUNKLINE_KEYS", str(guarded.root / "laptop"))
    monkeypatch.setenv("TRUNKLINE_ENDPOINT", guarded.endpoints()["control"])
    async with trunkline.connect() as llm:
        assert [info.id for info in await llm.list_providers()] == ["scripted"]


@pytest.mark.parametrize("case", ["unlisted", "other kind", "no key", "wrong server key"])
async def test_a_client_is_told_within_two_seconds_why_it_is_not_let_in(
    guarded: Guarded, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRUNKLINE_KEYS", raising=False)
    laptop = guarded.keys["laptop"]
    keys = {
        "unlisted": unlisted(laptop.server),
        "other kind": guarded.keys["gpu"],
        "no key": None,
        "wrong server key": replace(laptop, server=new_pair()[0]),
    }[case]
    endpoint = guarded.endpoints()["control"]
    begun_s = time.monotonic()
    with pytest.raises(trunkline.BrokerRefusedError) as caught:
        async with trunkline.connect(endpoint, keys=keys, timeout_s=10 * SLOW):
            pass
    assert time.monotonic() - begun_s < TOLD_S * SLOW
    assert caught.value.code == "HANDSHAKE"
    assert "key" in str(caught.value)


async def test_a_client_may_use_the_providers_of_its_table_alone(guarded: Guarded) -> None:
    endpoint = guarded.endpoints()["control"]
    async with trunkline.connect(endpoint, keys=guarded.keys["narrow"]) as llm:
        result = await llm.generate(provider="scripted", model="echo", messages="hello")
        assert result.failure is not None
        assert result.failure.code == "FORBIDDEN"
        assert await llm.list_providers() == []
        for question in (llm.list_models("scripted"), llm.provider_retry_policy("scripted")):
            with pytest.raises(trunkline.LlmError) as caught:
                await question
            assert caught.value.code == "FORBIDDEN"


async def test_a_client_that_may_administer_does(guarded: Guarded) -> None:
    endpoint = guarded.endpoints()["control"]
    async with trunkline.connect(endpoint, keys=guarded.keys["chief"]) as llm:
        status = await llm.query("status", {})
        assert status["pid"] == guarded.broker.pid


async def test_a_reload_changes_what_a_connected_key_may_do(guarded: Guarded) -> None:
    """Its running call goes on, its next one obeys."""
    endpoint, config = guarded.endpoints()["control"], guarded.broker.config
    text = config.read_text()

    async def reload(table: str) -> None:
        config.write_text(f"{text}\n[client.laptop]\n{table}")
        async with trunkline.connect(guarded.broker.endpoint) as local:
            assert (await local.query("reload", {}))["clients"] == ["laptop"]

    async with trunkline.connect(endpoint, keys=guarded.keys["laptop"]) as llm:
        stream = llm.stream(provider="scripted", model="echo", messages="one two three")
        seen = [await anext(stream)]
        try:
            await reload('providers = ["other"]')
            seen += [chunk async for chunk in stream]
            assert isinstance(seen[-1], trunkline.Finish)
            result = await llm.generate(provider="scripted", model="echo", messages="hello")
            assert result.failure is not None
            assert result.failure.code == "FORBIDDEN"
            await reload("admin = true")
            assert (await llm.query("status", {}))["pid"] == guarded.broker.pid
        finally:
            await reload("")
            config.write_text(text)


async def test_keys_are_added_and_removed_without_a_restart(guarded: Guarded) -> None:
    """A removed key ends the connection that was made with it."""
    endpoint = guarded.endpoints()["control"]
    keys = add_peer(guarded.keys_dir, "clients", "guest", guarded.root / "guest")

    async def admitted() -> bool:
        try:
            async with trunkline.connect(endpoint, keys=keys, timeout_s=5 * SLOW):
                return True
        except trunkline.BrokerRefusedError:
            return False

    await until_answered(admitted)  # read again at most once a second
    async with trunkline.connect(endpoint, keys=keys) as llm:
        before = guarded.broker.status()["connections"]["clients"]
        remove_peer(guarded.keys_dir, "clients", "guest")
        await asyncio.to_thread(
            until,
            lambda: guarded.broker.status()["connections"]["clients"] < before,
            5.0,
        )
        with pytest.raises((trunkline.LlmError, TimeoutError)):
            async with asyncio.timeout(1.0 * SLOW):
                await llm.list_providers()
    assert not await admitted()


# --- workers --------------------------------------------------------------------------------


def worker_command(endpoint: str, *more: str) -> list[str]:
    command = [sys.executable, "-m", "trunkline_workers", "--connect", endpoint]
    return [*command, "--pool", "far", "--adapter", "scripted", "--provider", "far", *more]


@contextmanager
def far_worker(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        environ = {**os.environ, "PYTHONWARNINGS": "error"}
        environ.pop("TRUNKLINE_KEYS", None)
        child = subprocess.Popen(command, stdout=file, stderr=file, env=environ)  # noqa: S603
        try:
            yield child
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
            child.wait(15 * SLOW)


async def test_a_worker_on_another_host_serves_over_tcp(guarded: Guarded) -> None:
    """Its chunks go over its own lane endpoint to a client that came over TCP, or ipc."""
    endpoint = guarded.endpoints()["workersControl"]
    command = worker_command(endpoint, "--keys", str(guarded.root / "gpu"))
    with far_worker(command, guarded.root / "far.log"):
        await asyncio.to_thread(guarded.broker.until_ready, "far")
        tcp = guarded.endpoints()["control"]
        for address, keys in ((tcp, guarded.keys["laptop"]), (guarded.broker.endpoint, None)):
            async with trunkline.connect(address, keys=keys) as llm:
                result = await llm.generate(provider="far", model="echo", messages="hello")
                assert result.message.content


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("unlisted", "does not accept"),
        ("other kind", "does not accept"),
        ("no key", "keys"),
        ("wrong server key", "not this broker"),
    ],
)
def test_a_worker_says_within_two_seconds_why_it_is_not_let_in(
    guarded: Guarded, case: str, said: str
) -> None:
    gpu = guarded.keys["gpu"]
    keys = {
        "unlisted": unlisted(gpu.server),
        "other kind": guarded.keys["laptop"],
        "no key": None,
        "wrong server key": replace(gpu, server=new_pair()[0]),
    }[case]
    file = guarded.root / f"wrong-{case.replace(' ', '-')}"
    if keys is not None:
        file.write_text(keys_text(keys, "wrong"))
    more = ["--keys", str(file)] if keys is not None else []
    log = guarded.root / "refused.log"
    with far_worker(worker_command(guarded.endpoints()["workersControl"], *more), log):
        # The start of an interpreter is not the worker's patience.
        until(lambda: "handshake failed" in log.read_text(), 10.0, log.read_text())
        assert said in log.read_text()
        assert gpu.secret.get_secret_value() not in log.read_text()


# --- what the configuration refuses ---------------------------------------------------------


def test_tcp_without_keys_is_refused() -> None:
    with run_directory() as root, broker_in(root, CONFIG) as broker:
        broker.launch()
        assert broker.wait() == 1
        assert "trunkline keys server" in broker.log_text()


def test_plain_tcp_is_for_loopback_and_by_a_switch_only() -> None:
    plain = CONFIG.replace('keys_dir = "keys"', "plain_tcp = true")
    with run_directory() as root:
        path = root / "open.toml"
        path.write_text(plain.replace("127.0.0.1:0", "0.0.0.0:0"))
        check = [sys.executable, "-m", "trunkline_broker.cli.main", "config", "check"]
        check += ["--config", str(path)]
        found = subprocess.run(check, capture_output=True, text=True, check=False)  # noqa: S603
        assert found.returncode != 0
        assert "no loopback address" in found.stderr + found.stdout


async def test_plain_tcp_serves_on_loopback_but_is_not_administered() -> None:
    plain = CONFIG.replace('keys_dir = "keys"', "plain_tcp = true")
    with run_directory() as root, broker_in(root, plain) as broker:
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(broker.until_ready, "scripted")
        endpoint = broker.status()["endpoints"]["tcp"]["control"]
        async with trunkline.connect(endpoint) as llm:
            result = await llm.generate(provider="scripted", model="echo", messages="hello")
            assert result.message.content
            with pytest.raises(trunkline.LlmError) as caught:
                await llm.query("stop", {})
            assert caught.value.code == "FORBIDDEN"


# --- the command ----------------------------------------------------------------------------


def run_keys(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ: dict[str, Any] = {**os.environ, "XDG_CONFIG_HOME": str(root / "config")}
    environ.pop("TRUNKLINE_CONFIG", None)
    command = [sys.executable, "-m", "trunkline_broker.cli.main", "keys", *arguments]
    return subprocess.run(  # noqa: S603
        command, cwd=root, env=environ, capture_output=True, text=True, check=False
    )


def test_the_command_makes_keys_that_nobody_else_can_read(tmp_path: Path) -> None:
    assert "trunkline keys server" in run_keys(tmp_path, "client", "laptop").stderr
    for arguments in (["server"], ["client", "laptop"], ["worker", "gpu1"]):
        done = run_keys(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
    assert run_keys(tmp_path, "server").returncode != 0
    directory = tmp_path / "config" / "trunkline" / "keys"
    secrets = [
        directory / "server.key",
        tmp_path / "laptop.client.key",
        tmp_path / "gpu1.worker.key",
    ]
    for path in secrets:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listed = run_keys(tmp_path, "list").stdout
    assert "client  laptop" in listed
    assert "worker  gpu1" in listed
    assert "../x" not in json.dumps(run_keys(tmp_path, "client", "../x").stdout)
    assert run_keys(tmp_path, "remove", "client", "laptop").returncode == 0
    assert "laptop" not in run_keys(tmp_path, "list").stdout


# --- strangers ------------------------------------------------------------------------------


async def test_bytes_that_are_no_handshake_hurt_nobody(guarded: Guarded) -> None:
    """Port scanners, browsers, halves of handshakes, on each of the four ports."""
    rng = random.Random(3)  # noqa: S311
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(48)
    for endpoint in guarded.endpoints().values():
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        for turn in range(50):
            with socket.create_connection((host, int(port))) as stranger:
                noise = rng.randbytes(rng.randrange(400))
                sent = (noise, b"GET / HTTP/1.1\r\n\r\n", greeting + noise, greeting[: turn + 1])
                stranger.sendall(sent[turn % 4])
    async with trunkline.connect(
        guarded.endpoints()["control"], keys=guarded.keys["laptop"]
    ) as llm:
        result = await llm.generate(provider="scripted", model="echo", messages="hello")
        assert result.message.content
    assert guarded.broker.status()["counters"]["security.handshake_failed"] > 0
